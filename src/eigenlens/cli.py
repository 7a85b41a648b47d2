"""The command line: one thin function a command."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from .errors import EigenlensError

app = typer.Typer(
    help="How low-dimensional is the attention of a transformer?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
)

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]
Out = Annotated[Path, typer.Option("-o", "--out", help="The folder of the study.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite an existing study.")]
Inputs = Annotated[int, typer.Option("--inputs", min=3, help="How many inputs, fit and held out together.")]


def _version(wanted: bool) -> None:
    from . import __version__

    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def settings(
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads (default: all cores).")] = None,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Print the version and end.")
    ] = False,
) -> None:
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


@app.command()
def demo(
    out: Out = Path("demo"),
    inputs: Inputs = 300,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Study the default model on the default text, print what was found and draw it."""
    from .study.pictures import draw

    made = _study("minilm", None, out / "study", inputs=inputs, force=force)
    pictures = draw(made, out / "pictures")
    if as_json:
        print(json.dumps({**made.record(), "pictures": [str(path) for path in pictures]}))
        return
    _show(made)
    print(f"\nThe study is in {made.folder}, {len(pictures)} pictures are in {out / 'pictures'}.")


@app.command()
def models(as_json: Json = False) -> None:
    """List the catalogue: models with real weights, and data, that install from the package registries."""
    from .sources.catalogue import MODELS, installed
    from .sources.datasets import DATASETS

    listed = [
        {
            "name": entry.name, "kind": entry.kind, "layers": entry.layers, "heads": entry.heads, "kv_heads": entry.kv_heads,
            "width": entry.width, "package": f"{entry.source.name}=={entry.source.version} ({entry.source.registry})",
            "megabytes": entry.megabytes, "licence": entry.licence, "here": installed(entry.name), "note": entry.note,
        }
        for entry in MODELS.values()
    ]  # fmt: skip
    data = [{"name": d.name, "kind": d.kind, "megabytes": d.megabytes, "note": d.note} for d in DATASETS.values()]
    if as_json:
        print(json.dumps({"models": listed, "data": data}))
        return
    rows = [
        {
            "name": m["name"], "kind": m["kind"], "layers × heads × width": f"{m['layers']} × {m['heads']} × {m['width']}",
            "installs from": m["package"], "MB": m["megabytes"], "here": "yes" if m["here"] else "no", "what": m["note"],
        }
        for m in listed
    ]  # fmt: skip
    _table("Models", rows)
    _table("Data", data)


@app.command()
def study(
    model: Annotated[str, typer.Argument(help="A catalogue name, a folder, or a hub id.")],
    data: Annotated[
        list[str] | None,
        typer.Argument(help="Text files, folders, - for standard input, a named set, token ids (.npy), pictures, .wav files."),
    ] = None,
    out: Out = Path("study"),
    length: Annotated[int | None, typer.Option(help="Tokens in an input (default 128; for vision 224 pixels).")] = None,
    inputs: Inputs = 1000,
    held_out: Annotated[float, typer.Option(help="Share of the inputs held out, by document.")] = 0.2,
    only: Annotated[str, typer.Option(help="Statistics, with commas: rows, moments, matrices.")] = "rows,moments,matrices",
    seed: Annotated[int, typer.Option(help="Order and split of the documents.")] = 0,
    of: Annotated[str, typer.Option(help="scores (before the softmax) or pattern (after it).")] = "scores",
    before_rope: Annotated[bool, typer.Option("--before-rope", help="Scores before the rotary embedding.")] = False,
    pad: Annotated[bool, typer.Option("--pad", help="One input a document, padded, instead of packed text.")] = False,
    rank: Annotated[int, typer.Option(min=1, help="Components of the matrix spectra.")] = 64,
    matrix_memory: Annotated[float, typer.Option(help="Most gigabytes for matrix spectra; beyond, they are left out.")] = 4.0,
    batch: Annotated[int | None, typer.Option(min=1, help="Inputs in a batch (default: 4096 tokens).")] = None,
    device: Annotated[str, typer.Option(help="Where the model runs, such as cpu or cuda.")] = "cpu",
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted study.")] = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Study a model's attention on data, in one pass, into a folder."""
    names = tuple(name.strip() for name in only.split(",") if name.strip())
    made = _study(
        model, data or None, out, length=length, inputs=inputs, held_out=held_out, only=names, seed=seed, of=of,
        before_rope=before_rope, pad=pad, rank=rank, matrix_gigabytes=matrix_memory, batch=batch, device=device,
        resume=resume, force=force,
    )  # fmt: skip
    if as_json:
        print(json.dumps(made.record()))
    else:
        _show(made)
        print(f"\nThe study is in {made.folder}; see it again with: eigenlens show {made.folder}")


@app.command()
def show(
    folder: Annotated[Path, typer.Argument(help="The folder of a study.")],
    pictures: Annotated[Path | None, typer.Option(help="Draw the pictures of the study into this folder.")] = None,
    as_json: Json = False,
) -> None:
    """Print what a study found."""
    from .study import Study
    from .study.pictures import draw

    opened = Study.open(folder)
    drawn = draw(opened, pictures) if pictures is not None else []
    if as_json:
        print(json.dumps({**opened.record(), "pictures": [str(path) for path in drawn]}))
        return
    _show(opened)
    if drawn:
        print(f"\n{len(drawn)} pictures are in {pictures}.")


@app.command()
def compare(
    folders: Annotated[list[Path], typer.Argument(help="Two or more folders of studies of one length.")],
    centring: Annotated[str, typer.Option(help="raw, centred or row-centred.")] = "centred",
    ranks: Annotated[str | None, typer.Option(help="Ranks of the eigenspaces, with commas (default 4,16).")] = None,
    as_json: Json = False,
) -> None:
    """Print how far the eigenspaces of studies overlap, and what variance of one the other captures."""
    from .spectra.centring import CENTRINGS
    from .study import compare as compare_studies

    if centring not in CENTRINGS:
        raise EigenlensError(f"no centring {centring!r}; there are {', '.join(CENTRINGS)}")
    try:
        numbers = None if ranks is None else [int(rank) for rank in ranks.split(",")]
    except ValueError as error:
        raise EigenlensError(f"ranks are whole numbers with commas, not {ranks!r}") from error
    if numbers is not None and min(numbers) < 1:
        raise EigenlensError(f"a rank is at least 1, not {min(numbers)}")
    found = compare_studies(*folders, ranks=numbers, centring=centring)
    if as_json:
        print(json.dumps(found.record()))
    else:
        _table(f"Row eigenspaces, {centring}", found.rows())


def _study(*args: Any, **options: Any) -> Any:
    from .run.progress import bar
    from .study import study as make

    try:
        with bar() as report:
            return make(*args, **options, report=report)
    except KeyboardInterrupt:
        raise EigenlensError("interrupted; the same command with --resume goes on from the last checkpoint") from None


def _show(made: Any) -> None:
    from .study.tables import layer_rows, sentence, summary_rows

    facts, kinds = made.facts, {s.analysis for s in made.spectra}  # the spectra first: a damaged study shows nothing
    where = f"{facts['inputs']} inputs of {facts['length']} tokens, {facts['data']['inputs_held_out']} of them held out"
    documents = f"{facts['data']['documents_held_out']} of {facts['data']['documents']} documents"
    print(f"{made.name}: {where} ({documents}), {facts['seconds']} s")
    for note in facts["notes"]:
        print(f"Note: {note}.")
    _table("Dimensions that hold a share of the held-out variance, median of the heads", summary_rows(made))
    if "rows" in kinds:
        _table("Dimensions of each head's rows for 90 %, centred, held out", layer_rows(made))
    if "rows" in kinds and len({site["keys"] for site in made.sites.values()}) == 1:
        most = min(16, made.length - 1)
        found = [made.overlap(rank=r).summary() for r in sorted({min(4, most), most})]
        shown = [{key: value for key, value in row.items() if key not in {"left", "right", "best"}} for row in found]
        _table("Overlap of heads' row eigenspaces, centred", shown)
    print(sentence(made))


def _table(title: str, rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", show_edge=False, pad_edge=False)
    for name in rows[0] if rows else []:
        table.add_column(
            name.replace("_", " "),
            justify="left" if isinstance(rows[0][name], str) and not rows[0][name][:1].isdigit() else "right",
        )
    for row in rows:
        table.add_row(*(_cell(value) for value in row.values()))
    console = Console()
    if not console.is_terminal:
        console = Console(width=200)
    console.print(table)
    console.print()


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def main() -> None:
    """Run a command; what the user can mend ends with one sentence and exit code 2."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        app()
    except EigenlensError as error:
        print(f"eigenlens: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()

"""The command line: one thin function a command."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from .errors import EigenlensError
from .terminal import print_claims, print_plan, print_study, print_table

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
    """Study the default model on the default text, plan a quarter of its scores' work, measure that, and draw it all."""
    from .reconstruct import evaluate as measure
    from .reconstruct import plan as make
    from .reconstruct.tables import curve_rows, sentence
    from .run.charts import save_charts
    from .run.progress import bar
    from .study.pictures import draw

    made = _study("minilm", None, out / "study", inputs=inputs, force=force)
    with bar() as report:
        planned = make(made, budget=0.25, out=out / "plan", force=force, report=report)
        found = measure("minilm", plan=planned, report=report)
    pictures = [*draw(made, out / "pictures"), *save_charts({"budgets": planned.plot()}, out / "pictures")]
    if as_json:
        more = {"plan": planned.record(), "evaluation": found.record(), "pictures": [str(path) for path in pictures]}
        print(json.dumps({**made.record(), **more}))
        return
    print_study(made)
    print_table("Scores from a part of the work: every estimator at every budget, mean of the heads", curve_rows(planned))
    print(sentence(planned) + "\n")
    print_table("The model with that plan, on documents that neither study nor plan has seen", found.rows())
    where = f"The study is in {made.folder}, the plan in {out / 'plan'}"
    print(f"{where}, {len(pictures)} pictures are in {out / 'pictures'}.")


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
    print_table("Models", rows)
    print_table("Data", data)


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
        print_study(made)
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
    print_study(opened)
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
        print_table(f"Row eigenspaces, {centring}", found.rows())


@app.command()
def plan(
    folder: Annotated[Path, typer.Argument(help="The folder of a study.")],
    data: Annotated[
        list[str] | None, typer.Argument(help="Data to choose on (default: what the study held out of its own).")
    ] = None,
    budget: Annotated[float | None, typer.Option(help="Work for scores, as a share of the exact ones, such as 0.25.")] = None,
    error: Annotated[float | None, typer.Option(help="Most total variation of a head's patterns, such as 0.05.")] = None,
    out: Annotated[Path, typer.Option("-o", "--out", help="The folder of the plan.")] = Path("plan"),
    estimators: Annotated[str | None, typer.Option(help="Estimators to choose from, with commas (default: all).")] = None,
    blocks: Annotated[
        bool, typer.Option("--blocks", help="Block-adaptive attention for long inputs of a language model.")
    ] = False,
    length: Annotated[int | None, typer.Option(help="Tokens in an input of a plan of blocks (default 4096).")] = None,
    inputs: Annotated[int | None, typer.Option(min=1, help="Inputs to choose on (default 16; 1 with --blocks).")] = None,
    model: Annotated[str | None, typer.Option(help="The model, where it is no longer where the study found it.")] = None,
    seed: Annotated[int, typer.Option(help="Random choices of pairs and landmarks.")] = 0,
    device: Annotated[str, typer.Option(help="Where the model runs, such as cpu or cuda.")] = "cpu",
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing plan.")] = False,
    as_json: Json = False,
) -> None:
    """Choose an estimator for every head of a studied model, within a budget or an error."""
    from .reconstruct import plan as make
    from .reconstruct import plan_blocks
    from .run.charts import save_charts
    from .run.progress import bar

    shared: dict[str, Any] = {"model": model, "data": data or None, "out": out, "force": force, "device": device}
    if blocks and (budget is None or error is not None or estimators is not None):
        raise EigenlensError("a plan of blocks needs a budget, and takes no error and no estimators")
    if not blocks and length is not None:
        raise EigenlensError("the length of a plan is that of its study; only a plan of --blocks has its own")
    names = None if estimators is None else [name.strip() for name in estimators.split(",") if name.strip()]
    with bar() as report:
        if blocks and budget is not None:
            made = plan_blocks(folder, budget=budget, length=length or 4096, inputs=inputs or 1, report=report, **shared)
        else:
            made = make(
                folder, budget=budget, error=error, estimators=names, inputs=inputs or 16, seed=seed, report=report, **shared
            )  # fmt: skip
    drawn = save_charts({"shares" if blocks else "budgets": made.plot()}, out)
    if as_json:
        print(json.dumps({**made.record(), "pictures": [str(path) for path in drawn]}))
        return
    print_plan(made)
    print(f"\nThe plan is in {out}; measure it with: eigenlens evaluate {made.facts['model']['name']} --plan {out}")


@app.command()
def evaluate(
    model: Annotated[str, typer.Argument(help="A catalogue name, a folder, or a hub id.")],
    data: Annotated[list[str] | None, typer.Argument(help="Data as for study (default: what the study held out).")] = None,
    plan: Annotated[Path, typer.Option(help="The folder of the plan.")] = Path("plan"),
    inputs: Annotated[int, typer.Option(min=1, help="How many inputs.")] = 48,
    length: Annotated[int | None, typer.Option(help="Tokens in an input (default: as the plan).")] = None,
    pad: Annotated[bool, typer.Option("--pad", help="One input a document, padded, instead of packed text.")] = False,
    device: Annotated[str, typer.Option(help="Where the model runs, such as cpu or cuda.")] = "cpu",
    as_json: Json = False,
) -> None:
    """Measure a plan: quality and cost of the model with it, beside the model without."""
    from .reconstruct import evaluate as measure
    from .run.progress import bar

    with bar() as report:
        found = measure(
            model, data or None, plan=plan, inputs=inputs, length=length, pad=pad, device=device, report=report
        )  # fmt: skip
    if as_json:
        print(json.dumps(found.record()))
        return
    facts = found.facts
    for note in facts["notes"]:
        print(f"Note: {note}.")
    print_table(f"{facts['model']} on {facts['data']}: {facts['inputs']} inputs of {facts['length']}", found.rows())


@app.command()
def reproduce(
    papers: Annotated[list[str] | None, typer.Argument(help="Papers by name (default: all).")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A miniature of a minute or two.")] = False,
    out: Annotated[Path, typer.Option("-o", "--out", help="A folder for the results, one inside it for each paper.")] = Path(
        "reproduction"
    ),
    seed: Annotated[int, typer.Option(help="Order and split of the documents.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted reproduction.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing reproduction.")] = False,
    as_json: Json = False,
) -> None:
    """Print the claims of papers: what was published, what is measured here, and the verdict."""
    from .papers import PAPERS, paper
    from .papers.pictures import draw
    from .run.progress import bar

    chosen = {name: paper(name) for name in papers or PAPERS}
    records = []
    for name, run in chosen.items():
        try:
            with bar() as report:
                done = run(quick, out / name, seed, report, resume=resume, force=force)
        except KeyboardInterrupt:
            raise EigenlensError("interrupted; the same command with --resume goes on after the last finished part") from None
        drawn = draw(done, out / name / "pictures")
        records.append({**done.record(), "pictures": [str(path) for path in drawn]})
        if not as_json:
            print_claims(done)
            print(f"Everything is in {out / name}, the picture is {drawn[0]}.")
    if as_json:
        print(json.dumps(records[0] if len(records) == 1 else records))


def _study(*args: Any, **options: Any) -> Any:
    from .run.progress import bar
    from .study import study as make

    try:
        with bar() as report:
            return make(*args, **options, report=report)
    except KeyboardInterrupt:
        raise EigenlensError("interrupted; the same command with --resume goes on from the last checkpoint") from None


def main() -> None:
    """Run a command; what the user can mend ends with one sentence and exit code 2."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        app()
    except EigenlensError as error:
        print(f"eigenlens: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("eigenlens: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()

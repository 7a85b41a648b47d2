"""The command that holds mechanisms against each other: bench."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import EigenlensError
from ..names import several, unknown
from .app import Device, Json, app
from .places import place_for
from .terminal import show

if TYPE_CHECKING:
    pass


@app.command()
def bench(
    benches: Annotated[
        list[str] | None,
        typer.Argument(help="Of speed, quality, damage, spectra, choose (default: all)."),
    ] = None,
    output_dir: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output-dir",
            help=(
                "A folder for the results, one inside it for each bench (default: bench, or"
                " bench-2, … where one of the "
                "benches is in that already)."
            ),
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A miniature of a minute or two.")] = False,
    mechanisms: Annotated[
        str | None,
        typer.Option(
            help="Mechanisms that take part, with commas (default: every one that is known)."
        ),
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option(help="Lengths of the speed bench, with commas (default: 256 to 16384)."),
    ] = None,
    load: Annotated[
        Path | None,
        typer.Option(
            help='A Python file of yours that makes a mechanism known with @mechanism("name").'
        ),
    ] = None,
    device: Device = "auto",
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an interrupted bench.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Overwrite an existing bench.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Hold attention mechanisms against each other: time, quality, damage to trained models,
    spectra, a choice by head.
    """
    from ..bench import SCALES, check_needs, load_file, run_bench
    from ..run.charts import save_charts
    from ..run.progress import bar

    if wrong := [name for name in benches or () if name not in SCALES]:
        raise unknown("bench", wrong[0], SCALES)
    if lengths is not None and benches and "speed" not in benches:
        raise EigenlensError(
            "lengths are those of the speed bench, which is not among the benches asked for"
        )
    for name in benches or SCALES:
        check_needs(name, quick)
    added = [] if load is None else load_file(load)
    named = None if mechanisms is None else [*several(mechanisms), *added]
    output_dir = place_for(
        output_dir,
        "bench",
        [f"{name}/bench.json" for name in benches or SCALES],
        resume=resume,
        force=overwrite,
    )
    records: list[dict[str, Any]] = []
    for name in SCALES:
        if benches and name not in benches:
            continue
        try:
            with bar() as progress:
                found = run_bench(
                    name,
                    output_dir,
                    quick=quick,
                    mechanisms=named,
                    lengths=_numbers(lengths),
                    device=device,
                    resume=resume,
                    overwrite=overwrite,
                    progress=progress,
                )
        except KeyboardInterrupt:
            raise EigenlensError(
                "interrupted; the same command with --resume goes on after the last finished part"
            ) from None
        drawn = save_charts(found.charts(), output_dir / name / "pictures")
        records.append({**found.record(), "pictures": [str(path) for path in drawn]})
        if not as_json:
            show(found)
            print(f"Everything is in {output_dir / name}, the picture is {drawn[0]}.\n")
    if as_json:
        print(json.dumps(records[0] if len(records) == 1 else records))


def _numbers(text: str | None) -> list[int] | None:
    try:
        return None if text is None else [int(part) for part in several(text)]
    except ValueError as error:
        raise EigenlensError(f"lengths are whole numbers with commas, not {text!r}") from error

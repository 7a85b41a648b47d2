"""The command that compares mechanisms: bench."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import EigenlensError
from ..names import split_names, unknown_name
from .app import app, resumable
from .options import (
    MEASURE,
    Command,
    Device,
    Json,
    Overwrite,
    Quick,
    Resume,
    example,
    folder_option,
)
from .output_folder import choose_output_dir
from .terminal import show


@app.command(cls=Command, epilog=example("eigenlens bench speed --lengths 512,2048"))
def bench(
    benches: Annotated[
        list[str] | None,
        typer.Argument(
            help="Benches to run: speed, quality, damage, spectra, choose (default: all)."
        ),
    ] = None,
    output_dir: Annotated[
        Path | None, folder_option("bench", "A folder for the results, with one folder per bench")
    ] = None,
    quick: Quick = False,
    mechanisms: Annotated[
        str | None,
        typer.Option(
            help="Mechanisms that take part, separated by commas (default: all).",
            rich_help_panel=MEASURE,
        ),
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option(
            help="Lengths of the bench speed in tokens, separated by commas (default: 256 to"
            " 16384).",
            rich_help_panel=MEASURE,
        ),
    ] = None,
    load: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=(
                'A Python file of yours that adds a mechanism with @mechanism("name")'
                " (default: none)."
            ),
            rich_help_panel=MEASURE,
        ),
    ] = None,
    device: Device = "auto",
    resume: Resume = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Compare attention mechanisms by time, quality, damage and spectra.

    Damage is what a mechanism does to models that were trained without it. The bench choose picks
    a mechanism for every head.
    """
    from ..bench import SCALES, check_needs, load_file, run_bench
    from ..run.charts import save_charts

    if wrong := [name for name in benches or () if name not in SCALES]:
        raise unknown_name("bench", wrong[0], SCALES)
    if lengths is not None and benches and "speed" not in benches:
        raise EigenlensError(
            "--lengths is for the bench speed, which is not among those named; add it or leave"
            " --lengths out"
        )
    for name in benches or SCALES:
        check_needs(name, quick)
    added = [] if load is None else load_file(load)
    named = None if mechanisms is None else [*split_names(mechanisms), *added]
    output_dir = choose_output_dir(
        output_dir,
        "bench",
        [f"{name}/bench.json" for name in benches or SCALES],
        resume=resume,
        overwrite=overwrite,
    )
    records: list[dict[str, Any]] = []
    for name in SCALES:
        if benches and name not in benches:
            continue
        with resumable() as progress:
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
        drawn = save_charts(found.charts(), output_dir / name / "pictures")
        records.append({**found.record(), "pictures": [str(path) for path in drawn]})
        if not as_json:
            show(found, folder=output_dir / name)
            print(f"Everything is in {output_dir / name}; the main picture is {drawn[0]}.\n")
    if as_json:
        print(json.dumps(records[0] if len(records) == 1 else records))


def _numbers(text: str | None) -> list[int] | None:
    try:
        return None if text is None else [int(part) for part in split_names(text)]
    except ValueError as error:
        raise EigenlensError(
            f"lengths are whole numbers separated by commas, not {text!r}"
        ) from error

"""The command that trains lab models: train."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ..errors import EigenlensError
from .app import Json, app
from .places import place_for
from .terminal import show


@app.command()
def train(
    file: Annotated[
        Path | None, typer.Argument(help="The file of the run (TOML): task, model, training.")
    ] = None,
    output_dir: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output-dir",
            help="The folder of the run (default: run, or run-2, … where that is taken).",
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Steps, instead of those in the file.")
    ] = None,
    example: Annotated[
        bool, typer.Option("--example", help="Print a file with every key, explained, and end.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an interrupted run.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Overwrite an existing run.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Train a small transformer as one file says: any mechanism in any layer or head, on text or a
    toy task.
    """
    from ..lab import EXAMPLE, Run
    from ..lab import run as make
    from ..run.charts import save_charts
    from ..run.progress import bar

    if example:
        print(EXAMPLE, end="")
        return
    if file is None:
        raise EigenlensError(
            "name the file of the run; `eigenlens train --example > run.toml` writes one to begin"
            " with"
        )
    asked = Run.read(file).with_steps(steps)
    output_dir = place_for(output_dir, "run", ["run.json"], resume=resume, force=overwrite)
    try:
        with bar() as progress:
            done = make(asked, output_dir, resume, overwrite, progress)
    except KeyboardInterrupt:
        raise EigenlensError(
            "interrupted; the same command with --resume goes on after the last checkpoint"
        ) from None
    drawn = save_charts({"loss": done.plot()}, output_dir / "pictures")
    if as_json:
        print(json.dumps({**done.record(), "pictures": [str(path) for path in drawn]}))
        return
    show(done)
    print(
        f"\nThe run is in {output_dir}; in Python: from eigenlens import lab;"
        f" lab.open({str(output_dir)!r}).model()"
    )

"""The command that trains lab models: train."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ..errors import EigenlensError
from .app import app, resumable
from .options import MEASURE, RESULT, Command, Json, Overwrite, Resume, folder_option
from .options import example as shown
from .output_folder import choose_output_dir
from .terminal import show


@app.command(
    cls=Command,
    epilog=shown("eigenlens train --example > run.toml", "eigenlens train run.toml -o first-run"),
)
def train(
    config: Annotated[
        Path | None,
        typer.Argument(help="The file of the run (TOML), with its task, model and training."),
    ] = None,
    output_dir: Annotated[Path | None, folder_option("run", "The folder of the run")] = None,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="Steps (default: those in the file).", rich_help_panel=MEASURE),
    ] = None,
    example: Annotated[
        bool,
        typer.Option(
            "--example",
            help="Print a file with every key, explained, and end (default: train).",
            rich_help_panel=RESULT,
        ),
    ] = False,
    resume: Resume = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Train a small transformer that a file describes.

    Any layer or head can have any mechanism; the task is text or a toy.
    """
    from ..lab import EXAMPLE, RunFile
    from ..lab import run as make
    from ..run.charts import save_charts

    if example:
        print(EXAMPLE, end="")
        return
    if config is None:
        raise EigenlensError(
            "name the file of the run; `eigenlens train --example > run.toml` writes one to start"
            " from"
        )
    asked = RunFile.read(config)
    output_dir = choose_output_dir(
        output_dir, "run", ["run.json"], resume=resume, overwrite=overwrite
    )
    with resumable("after the last checkpoint") as progress:
        done = make(
            asked,
            output_dir,
            steps=steps,
            resume=resume,
            overwrite=overwrite,
            progress=progress,
        )
    drawn = save_charts({"loss": done.plot()}, output_dir / "pictures")
    if as_json:
        print(json.dumps({**done.record(), "pictures": [str(path) for path in drawn]}))
        return
    show(done, folder=output_dir)
    print(
        f"\nThe run is in {output_dir}; in Python: from eigenlens import lab;"
        f" lab.open({str(output_dir)!r}).model()"
    )

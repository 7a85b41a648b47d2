"""The command that measures what keeps tokens from collapsing: collapse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from .app import app, engine_of, resumable
from .options import (
    DATA,
    MEASURE,
    Command,
    DataNames,
    Device,
    EngineName,
    Float64,
    Json,
    MaxLength,
    ModelName,
    OnFailure,
    Overwrite,
    Padding,
    Resume,
    Scheduler,
    Workers,
    example,
    folder_option,
    inputs_option,
)
from .output_folder import choose_output_dir
from .terminal import show


@app.command(cls=Command, epilog=example("eigenlens collapse minilm book.txt --float64"))
def collapse(
    model: ModelName,
    data: DataNames = None,
    output_dir: Annotated[Path | None, folder_option("collapse", "The folder of the run")] = None,
    max_length: MaxLength = None,
    max_inputs: Annotated[int, inputs_option(3)] = 32,
    paths: Annotated[
        int,
        typer.Option(
            min=0,
            help="Inputs whose output is taken apart by path length.",
            rich_help_panel=MEASURE,
        ),
    ] = 8,
    bounds: Annotated[
        int,
        typer.Option(
            min=0,
            help="Inputs on which the bounds of every head are worked out.",
            rich_help_panel=MEASURE,
        ),
    ] = 2,
    by: Annotated[
        Literal["attention", "mlp", "both"],
        typer.Option(help="Hops that count in a path.", rich_help_panel=MEASURE),
    ] = "attention",
    variants: Annotated[
        str | None,
        typer.Option(help="Ablations, with commas (default: all).", rich_help_panel=MEASURE),
    ] = None,
    float64: Float64 = False,
    padding: Padding = False,
    seed: Annotated[int, typer.Option(help="Order of the documents.", rich_help_panel=DATA)] = 0,
    device: Device = "auto",
    engine: EngineName = "local",
    workers: Workers = None,
    scheduler: Scheduler = None,
    on_failure: OnFailure = "stop",
    resume: Resume = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Measure what keeps a model's tokens from collapsing.

    Runs the model with parts of its blocks off, takes its output apart by path length, and works
    out the bounds of every head.
    """
    from ..collapses import collapse as make
    from ..collapses.plots import charts
    from ..run.charts import save_charts

    output_dir = choose_output_dir(
        output_dir, "collapse", ["collapse.json"], resume=resume, overwrite=overwrite
    )
    with resumable() as progress:
        made = make(
            model,
            data or None,
            output_dir,
            max_length=max_length,
            max_inputs=max_inputs,
            paths=paths,
            bounds=bounds,
            by=by,
            variants=variants,
            float64=float64,
            padding=padding,
            seed=seed,
            device=device,
            resume=resume,
            overwrite=overwrite,
            progress=progress,
            engine=engine_of(engine, workers, scheduler, on_failure),
        )
    drawn = save_charts(charts(made), output_dir / "pictures")
    if as_json:
        print(json.dumps({**made.record(), "pictures": [str(path) for path in drawn]}))
        return
    show(made, folder=output_dir)
    print(
        f"\nEverything is in {output_dir}, {len(drawn)} pictures are in {output_dir / 'pictures'}."
    )

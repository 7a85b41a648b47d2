"""Commands about why and whether: collapse, reproduce."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from ..errors import EigenlensError
from .app import app, engine_of
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
    Quick,
    Resume,
    Scheduler,
    Workers,
    example,
    folder_option,
)
from .places import place_for
from .terminal import show


@app.command(cls=Command, epilog=example("eigenlens collapse minilm book.txt --float64"))
def collapse(
    model: ModelName,
    data: DataNames = None,
    output_dir: Annotated[Path | None, folder_option("collapse", "The folder of the run")] = None,
    max_length: MaxLength = None,
    max_inputs: Annotated[
        int, typer.Option(min=3, help="At most this many inputs.", rich_help_panel=DATA)
    ] = 32,
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
    from ..run.progress import bar

    output_dir = place_for(
        output_dir, "collapse", ["collapse.json"], resume=resume, overwrite=overwrite
    )
    try:
        with bar() as progress:
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
    except KeyboardInterrupt:
        raise EigenlensError(
            "interrupted; the same command with --resume goes on after the last finished part"
        ) from None
    drawn = save_charts(charts(made), output_dir / "pictures")
    if as_json:
        print(json.dumps({**made.record(), "pictures": [str(path) for path in drawn]}))
        return
    show(made)
    print(
        f"\nEverything is in {output_dir}, {len(drawn)} pictures are in {output_dir / 'pictures'}."
    )


@app.command(cls=Command, epilog=example("eigenlens reproduce sinks --quick"))
def reproduce(
    papers: Annotated[
        list[str] | None, typer.Argument(help="Papers by name (default: all).")
    ] = None,
    quick: Quick = False,
    output_dir: Annotated[
        Path | None,
        folder_option("reproduction", "A folder for the results, with one folder per paper"),
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Order and split of the documents.", rich_help_panel=DATA)
    ] = 0,
    engine: EngineName = "local",
    workers: Workers = None,
    scheduler: Scheduler = None,
    on_failure: OnFailure = "stop",
    resume: Resume = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Measure the claims of papers again and print the verdicts.

    Every claim is shown with what was published, what is measured here, and the verdict.
    """
    from ..papers import PAPERS, find_paper
    from ..papers.pictures import draw
    from ..run.engine import use_engine
    from ..run.progress import bar

    chosen = {name: find_paper(name) for name in papers or PAPERS}
    for paper in chosen.values():
        paper.check(quick)
    output_dir = place_for(
        output_dir,
        "reproduction",
        [f"{name}/reproduction.json" for name in chosen],
        resume=resume,
        overwrite=overwrite,
    )
    records = []
    working = engine_of(engine, workers, scheduler, on_failure)
    with use_engine(working):  # one cluster for all papers
        for name, paper in chosen.items():
            try:
                with bar() as progress:
                    done = paper(
                        quick, output_dir / name, seed, progress, resume=resume, overwrite=overwrite
                    )
            except KeyboardInterrupt:
                raise EigenlensError(
                    "interrupted; the same command with --resume goes on after the last finished"
                    " part"
                ) from None
            drawn = draw(done, output_dir / name / "pictures")
            records.append({**done.record(), "pictures": [str(path) for path in drawn]})
            if not as_json:
                show(done)
                print(f"Everything is in {output_dir / name}, the picture is {drawn[0]}.\n")
    if as_json:
        print(json.dumps(records[0] if len(records) == 1 else records))

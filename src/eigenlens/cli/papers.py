"""Commands about why and whether: collapse, reproduce."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from ..errors import EigenlensError
from .app import Device, EngineName, Json, OnFailure, Scheduler, Workers, app, engine_of
from .places import place_for
from .terminal import show


@app.command()
def collapse(
    model: Annotated[str, typer.Argument(help="A catalogue name, a folder, or a hub id.")],
    data: Annotated[list[str] | None, typer.Argument(help="Data as for study.")] = None,
    output_dir: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output-dir",
            help="The folder of the run (default: collapse, or collapse-2, … where that is taken).",
        ),
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(help="Tokens in an input (default 128; for vision 224 pixels).")
    ] = None,
    max_inputs: Annotated[int, typer.Option(min=3, help="How many inputs.")] = 32,
    paths: Annotated[
        int, typer.Option(min=0, help="Inputs whose output is taken apart by path length.")
    ] = 8,
    bounds: Annotated[
        int, typer.Option(min=0, help="Inputs on which the bounds of every head are worked out.")
    ] = 2,
    by: Annotated[
        Literal["attention", "mlp", "both"], typer.Option(help="Hops that count.")
    ] = "attention",
    variants: Annotated[
        str | None, typer.Option(help="Ablations, with commas (default: all).")
    ] = None,
    float64: Annotated[
        bool, typer.Option("--float64", help="Run everything in double precision.")
    ] = False,
    padding: Annotated[
        bool,
        typer.Option("--padding", help="One input a document, padded, instead of packed text."),
    ] = False,
    seed: Annotated[int, typer.Option(help="Order of the documents.")] = 0,
    device: Device = "auto",
    engine: EngineName = "local",
    workers: Workers = None,
    scheduler: Scheduler = None,
    on_failure: OnFailure = "stop",
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an interrupted run.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Overwrite an existing run.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Say where a model's tokens would collapse and what holds them apart: ablations, path lengths,
    bounds.
    """
    from ..collapses import collapse as make
    from ..collapses.plots import charts
    from ..run.charts import save_charts
    from ..run.progress import bar

    output_dir = place_for(
        output_dir, "collapse", ["collapse.json"], resume=resume, force=overwrite
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


@app.command()
def reproduce(
    papers: Annotated[
        list[str] | None, typer.Argument(help="Papers by name (default: all).")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A miniature of a minute or two.")] = False,
    output_dir: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output-dir",
            help=(
                "A folder for the results, one inside it for each paper (default: reproduction, or"
                " reproduction-2, … where "
                "one of the papers is in that already)."
            ),
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Order and split of the documents.")] = 0,
    engine: EngineName = "local",
    workers: Workers = None,
    scheduler: Scheduler = None,
    on_failure: OnFailure = "stop",
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an interrupted reproduction.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Overwrite an existing reproduction.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Print the claims of papers: what was published, what is measured here, and the verdict."""
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
        force=overwrite,
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

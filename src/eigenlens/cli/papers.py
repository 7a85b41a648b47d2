"""The command that measures the claims of papers again: reproduce."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import EigenlensError
from .app import app, engine_of, resumable
from .options import (
    DATA,
    MEASURE,
    Command,
    EngineName,
    Json,
    OnFailure,
    Overwrite,
    Quick,
    Resume,
    Scheduler,
    Seed,
    Workers,
    example,
    folder_option,
)
from .output_folder import choose_output_dir
from .terminal import show

if TYPE_CHECKING:
    from ..papers.own_models import OwnModels
    from ..papers.paper import Paper, Size


@app.command(cls=Command, epilog=example("eigenlens reproduce sinks --quick"))
def reproduce(
    papers: Annotated[
        list[str] | None, typer.Argument(help="Papers by name (default: all).")
    ] = None,
    quick: Quick = False,
    thorough: Annotated[
        bool,
        typer.Option(
            "--thorough",
            help="The long form of papers whose full run is cut down to 40 minutes (default: off).",
            rich_help_panel=MEASURE,
        ),
    ] = False,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help=(
                "A folder, a hub id or a name of the catalogue, to be measured in the place of the"
                " paper's models; may be given several times (default: those of the catalogue)."
            ),
            rich_help_panel=DATA,
        ),
    ] = None,
    output_dir: Annotated[
        Path | None,
        folder_option("reproduction", "A folder for the results, with one folder per paper"),
    ] = None,
    seed: Seed = 0,
    engine: EngineName = "local",
    workers: Workers = None,
    scheduler: Scheduler = None,
    on_failure: OnFailure = "stop",
    resume: Resume = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Measure the claims of papers again and print the verdicts.

    Every claim is shown with what was published, what is measured here, and the verdict. With
    --model and no paper, those run that can measure one of the models.
    """
    from ..papers import PAPERS, find_paper
    from ..papers.own_models import OwnModels
    from ..papers.pictures import draw
    from ..run.engine import use_engine

    if quick and thorough:
        raise EigenlensError("give --quick or --thorough, not both")
    size: Size = "quick" if quick else "thorough" if thorough else "full"
    chosen = {name: find_paper(name) for name in papers or PAPERS}
    own = OwnModels.of(model) if model else None
    if own is not None and not papers:
        chosen = _able(chosen, own, size)
    for paper in chosen.values():
        paper.check(size, own)
    output_dir = choose_output_dir(
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
            with resumable() as progress:
                done = paper(
                    *(size, output_dir / name, seed, progress),
                    resume=resume,
                    overwrite=overwrite,
                    model=own or (),
                )
            drawn = draw(done, output_dir / name / "pictures")
            records.append({**done.record(), "pictures": [str(path) for path in drawn]})
            if not as_json:
                show(done, folder=output_dir / name)
                print(f"Everything is in {output_dir / name}; the main picture is {drawn[0]}.\n")
    if as_json:
        print(json.dumps(records[0] if len(records) == 1 else records))


def _able(papers: dict[str, Paper], own: OwnModels, size: Size) -> dict[str, Paper]:
    """The papers that can measure one of the models; which are left out is said."""
    found, refused = {}, {}
    for name, paper in papers.items():
        try:
            own.put_into(paper.scale(size), paper)
            found[name] = paper
        except EigenlensError as error:
            refused[name] = error
    if not found:
        raise next(error for name, error in refused.items() if papers[name].models)
    if refused:
        names = f"{', '.join(refused)} {'are' if len(refused) > 1 else 'is'}"
        whom = "they measure" if len(refused) > 1 else "it measures"
        print(f"eigenlens: {names} left out: {whom} no such model", file=sys.stderr)
    return found

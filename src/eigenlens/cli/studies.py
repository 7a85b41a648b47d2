"""Commands that look at attention: study, show, compare."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import EigenlensError
from ..names import unknown_name
from ..shell import command
from . import terminal
from .app import app, engine_of, resumable
from .options import (
    DATA,
    MEASURE,
    MEMORY,
    RESULT,
    Command,
    DataNames,
    Device,
    EngineName,
    Float64,
    Full,
    Json,
    MaxLength,
    ModelName,
    OnFailure,
    Overwrite,
    Padding,
    Resume,
    Scheduler,
    Seed,
    Workers,
    example,
    folder_option,
    inputs_option,
)
from .output_folder import choose_output_dir

MaxInputs = Annotated[int, inputs_option(3, ", fit and held out together")]


@app.command(
    cls=Command,
    epilog=example("eigenlens study minilm book.txt --max-inputs 200 -o book-study"),
)
def study(
    model: ModelName,
    data: DataNames = None,
    output_dir: Annotated[Path | None, folder_option("study", "The folder of the study")] = None,
    max_length: MaxLength = None,
    max_inputs: MaxInputs = 1000,
    held_out: Annotated[
        float,
        typer.Option(
            help="Share of the inputs that is held out, by document.", rich_help_panel=DATA
        ),
    ] = 0.2,
    only: Annotated[
        str,
        typer.Option(
            help=(
                "Statistics, with commas: rows, moments, matrices, within, depth, diagnostics, or"
                " single diagnostics."
            ),
            rich_help_panel=MEASURE,
        ),
    ] = "rows,moments,matrices,within,depth,diagnostics",
    seed: Seed = 0,
    of: Annotated[
        str,
        typer.Option(
            help="scores (before the softmax) or pattern (after it).", rich_help_panel=MEASURE
        ),
    ] = "scores",
    before_rope: Annotated[
        bool,
        typer.Option(
            "--before-rope",
            help="Scores before the rotary embedding (default: after it).",
            rich_help_panel=MEASURE,
        ),
    ] = False,
    padding: Padding = False,
    rank: Annotated[
        int,
        typer.Option(min=1, help="Components of the matrix spectra.", rich_help_panel=MEASURE),
    ] = 64,
    matrix_memory: Annotated[
        float,
        typer.Option(
            help="Most gigabytes for matrix spectra; if they need more they are left out.",
            rich_help_panel=MEMORY,
        ),
    ] = 4.0,
    max_memory: Annotated[
        float | None,
        typer.Option(
            help="Most gigabytes the study may take (default: what is free).",
            rich_help_panel=MEMORY,
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            min=1, help="Inputs per batch (default: 4096 tokens).", rich_help_panel=MEMORY
        ),
    ] = None,
    shard_size: Annotated[
        int | None,
        typer.Option(
            min=1, help="Inputs per shard (default: 16384 tokens).", rich_help_panel=MEMORY
        ),
    ] = None,
    depth_every: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=(
                "Metrics along depth on every n-th input (default: 32, or more often if the inputs"
                " are few)."
            ),
            rich_help_panel=MEASURE,
        ),
    ] = None,
    diagnostics_every: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=(
                "Diagnostics on every n-th input (default: 32, or more often if the inputs are"
                " few)."
            ),
            rich_help_panel=MEASURE,
        ),
    ] = None,
    thresholds: Annotated[
        list[str] | None,
        typer.Option(
            "--thresholds",
            metavar="DIAGNOSTIC.NAME=VALUE",
            help=(
                "A threshold of a diagnostic, such as sinks.epsilon=0.2; once for each (default:"
                " those of the papers)."
            ),
            rich_help_panel=MEASURE,
        ),
    ] = None,
    float64: Float64 = False,
    device: Device = "auto",
    engine: EngineName = "local",
    workers: Workers = None,
    scheduler: Scheduler = None,
    on_failure: OnFailure = "stop",
    resume: Resume = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Study a model's attention on data, in one pass.

    Measures how many dimensions the attention of every head needs, how tokens and patterns change
    along depth, and what heads and layers do.
    """
    from ..studies import study as make

    output_dir = choose_output_dir(
        output_dir, "study", ["study.json"], resume=resume, overwrite=overwrite
    )
    with resumable("from the last checkpoint") as progress:
        made = make(
            model,
            data or None,
            output_dir,
            max_length=max_length,
            max_inputs=max_inputs,
            held_out=held_out,
            only=only,
            seed=seed,
            of=of,  # type: ignore[arg-type]  # which `study` checks
            before_rope=before_rope,
            padding=padding,
            rank=rank,
            matrix_memory=matrix_memory,
            max_memory=max_memory,
            batch_size=batch_size,
            shard_size=shard_size,
            device=device,
            engine=engine_of(engine, workers, scheduler, on_failure),
            thresholds=_thresholds(thresholds or []),
            depth_every=depth_every,
            diagnostics_every=diagnostics_every,
            float64=float64,
            resume=resume,
            overwrite=overwrite,
            progress=progress,
        )
    if as_json:
        print(json.dumps(made.record()))
    else:
        terminal.show(made, folder=made.folder)
        print(
            f"\nThe study is in {made.folder}. See it as a page: {command('report', made.folder)}"
        )


@app.command(cls=Command, epilog=example("eigenlens show book-study --pictures pictures"))
def show(
    folder: Annotated[
        Path,
        typer.Argument(help="The folder of a result: a study, plan, evaluation or any other kind."),
    ],
    pictures: Annotated[
        Path | None,
        typer.Option(
            help="Draw the pictures of the result into this folder (default: none).",
            rich_help_panel=RESULT,
        ),
    ] = None,
    full: Full = False,
    as_json: Json = False,
) -> None:
    """Print a result of any kind that is in a folder."""
    from .opening import open_result

    kind, opened = open_result(folder)
    drawn = [] if pictures is None else kind.draw(opened, pictures)
    if as_json:
        print(json.dumps({**opened.record(), "pictures": [str(path) for path in drawn]}))
        return
    terminal.show(opened, full, folder)
    if drawn:
        print(f"\n{len(drawn)} pictures are in {pictures}.")


@app.command(cls=Command, epilog=example("eigenlens compare before-study after-study"))
def compare(
    studies: Annotated[
        list[Path], typer.Argument(help="Two or more folders of studies of one length.")
    ],
    ranks: Annotated[
        str | None,
        typer.Option(
            help="Dimensions of the eigenspaces, with commas (default: 4,16).",
            rich_help_panel=MEASURE,
        ),
    ] = None,
    centring: Annotated[
        str, typer.Option(help="raw, centred or row-centred.", rich_help_panel=MEASURE)
    ] = "centred",
    full: Full = False,
    as_json: Json = False,
) -> None:
    """Compare studies: eigenspaces of their heads, and diagnostics.

    Prints how far the eigenspaces overlap, and what changed in the diagnostics of heads and layers.
    """
    from ..spectra.centring import CENTRINGS
    from ..studies import compare as compare_studies

    if centring not in CENTRINGS:
        raise unknown_name("centring", centring, CENTRINGS)
    try:
        numbers = None if ranks is None else [int(rank) for rank in ranks.split(",")]
    except ValueError as error:
        raise EigenlensError(f"ranks are whole numbers with commas, not {ranks!r}") from error
    if numbers is not None and min(numbers) < 1:
        raise EigenlensError(f"a rank is at least 1, not {min(numbers)}")
    found = compare_studies(*studies, ranks=numbers, centring=centring)
    if as_json:
        print(json.dumps(found.record()))
    else:
        terminal.show(found, full)


def _thresholds(given: list[str]) -> dict[str, dict[str, Any]]:
    """`sinks.epsilon=0.2` → `{"sinks": {"epsilon": 0.2}}`."""
    from .plans import settings_of

    found: dict[str, dict[str, Any]] = {}
    for name, value in settings_of(given).items():
        diagnostic, dot, setting = name.partition(".")
        if not dot:
            raise EigenlensError(
                "a threshold is diagnostic.name=value, such as sinks.epsilon=0.2, not"
                f" {name}={value}"
            )
        found.setdefault(diagnostic, {})[setting] = value
    return found

"""Commands that use what a study found: plan, evaluate."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import EigenlensError
from ..shell import command
from .app import app, engine_of
from .options import (
    DATA,
    MEASURE,
    RESULT,
    Command,
    Device,
    EngineName,
    Json,
    ModelName,
    OnFailure,
    Overwrite,
    Padding,
    Scheduler,
    Workers,
    example,
    folder_option,
    inputs_option,
)
from .output_folder import choose_output_dir, latest
from .terminal import show


@app.command(
    cls=Command,
    epilog=example(
        "eigenlens plan smollm2-study --loss 1% --max-length 4096",
        "eigenlens plan book-study --budget 0.25 -o book-plan",
    ),
)
def plan(
    study: Annotated[Path, typer.Argument(help="The folder of a study.")],
    data: Annotated[
        list[str] | None,
        typer.Argument(help="Data to choose on (default: what the study held out of its own)."),
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE",
            help=(
                "How much worse the model may get, such as 1% or 0.005: the fastest plan within"
                " that (default: none; give this, --budget or --error)."
            ),
            rich_help_panel=MEASURE,
        ),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(
            help=(
                "Work as a share of that of exact scores, such as 0.25, simulated; with --blocks of"
                " full attention, in seconds (default: none)."
            ),
            rich_help_panel=MEASURE,
        ),
    ] = None,
    error: Annotated[
        float | None,
        typer.Option(
            help=(
                "Most total variation of a head's patterns, from 0 to 1, such as 0.05, simulated"
                " (default: none)."
            ),
            rich_help_panel=MEASURE,
        ),
    ] = None,
    blocks: Annotated[
        bool,
        typer.Option(
            "--blocks",
            help=(
                "With --budget: leave keys out of long inputs (default: an estimator of scores per"
                " head, simulated)."
            ),
            rich_help_panel=MEASURE,
        ),
    ] = False,
    estimators: Annotated[
        str | None,
        typer.Option(
            help="Estimators to choose from, with commas (default: all but joint-fitted).",
            rich_help_panel=MEASURE,
        ),
    ] = None,
    max_length: Annotated[
        int | None,
        typer.Option(
            help="Tokens per input (default: those of the study; 4096 with --blocks).",
            rich_help_panel=DATA,
        ),
    ] = None,
    max_inputs: Annotated[
        int | None,
        inputs_option(
            1, " to choose on (default: 16; with --loss 8, and 8 to check on; 1 with --blocks)"
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="The model, if it has moved (default: where the study found it).",
            rich_help_panel=DATA,
        ),
    ] = None,
    output_dir: Annotated[Path | None, folder_option("plan", "The folder of the plan")] = None,
    overwrite: Overwrite = False,
    seed: Annotated[
        int,
        typer.Option(help="Random choices of pairs and landmarks.", rich_help_panel=MEASURE),
    ] = 0,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Make attention faster within a loss, or cheaper within a budget.

    With --loss every head gets the form that makes the model fastest, in seconds on this machine,
    as long as its own measure stays within the loss on held-out documents. With --budget or --error
    every head gets an estimator of its scores, which is simulated: it counts what a kernel would
    save.
    """
    from ..plans import plan as make
    from ..run.charts import save_charts
    from ..run.progress import progress_bar

    output_dir = choose_output_dir(output_dir, "plan", ["plan.json"], overwrite=overwrite)
    with progress_bar() as progress:
        made = make(
            study,
            loss=loss,
            budget=budget,
            error=error,
            blocks=blocks,
            estimators=estimators,
            max_length=max_length,
            max_inputs=max_inputs,
            model=model,
            data=data or None,
            output_dir=output_dir,
            overwrite=overwrite,
            seed=seed,
            device=device,
            progress=progress,
        )
    drawn = save_charts({"budgets" if made.simulated else "shares": made.plot()}, output_dir)
    if as_json:
        print(json.dumps({**made.record(), "pictures": [str(path) for path in drawn]}))
        return
    show(made, folder=output_dir)
    how = command("evaluate", made.facts.model.load_from, "--plan", output_dir)
    print(f"\nThe plan is in {output_dir}. Measure what it costs and loses: {how}")


@app.command(
    cls=Command,
    epilog=example(
        "eigenlens evaluate minilm --plan book-plan",
        "eigenlens evaluate smollm2 --attention window --settings window=64",
    ),
)
def evaluate(
    model: ModelName,
    data: Annotated[
        list[str] | None,
        typer.Argument(help="Data as for study (default: what the study held out)."),
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option(
            help="The folder of the plan (default: the last of plan, plan-2, … that is there).",
            rich_help_panel=MEASURE,
        ),
    ] = None,
    attention: Annotated[
        str | None,
        typer.Option(
            help=(
                "Instead of a plan: a mechanism by name, put into the model without training"
                " (default: none)."
            ),
            rich_help_panel=MEASURE,
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--settings",
            metavar="NAME=VALUE",
            help=(
                "A setting of the mechanism, such as window=64; once for each (default: the"
                " mechanism's own)."
            ),
            rich_help_panel=MEASURE,
        ),
    ] = None,
    max_inputs: Annotated[int, inputs_option(1)] = 48,
    max_length: Annotated[
        int | None,
        typer.Option(
            help="Tokens per input (default: the plan's length; 128 with --attention).",
            rich_help_panel=DATA,
        ),
    ] = None,
    padding: Padding = False,
    output_dir: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output-dir",
            help="A folder for the evaluation (default: none is written).",
            rich_help_panel=RESULT,
        ),
    ] = None,
    overwrite: Overwrite = False,
    device: Device = "auto",
    engine: EngineName = "local",
    workers: Workers = None,
    scheduler: Scheduler = None,
    on_failure: OnFailure = "stop",
    as_json: Json = False,
) -> None:
    """Measure a plan or a mechanism beside the plain model.

    Prints what the model loses with it and what it costs: patterns, the measure of its task,
    seconds.
    """
    from ..plans import evaluate as measure
    from ..run.progress import progress_bar

    if plan is None and attention is None:
        plan = latest("plan", "plan.json")
    with progress_bar() as progress:
        found = measure(
            model,
            data or None,
            plan=plan,
            attention=attention,
            settings=settings_of(settings or []),
            max_inputs=max_inputs,
            max_length=max_length,
            padding=padding,
            output_dir=output_dir,
            overwrite=overwrite,
            device=device,
            progress=progress,
            engine=engine_of(engine, workers, scheduler, on_failure),
        )
    if as_json:
        print(json.dumps(found.record()))
        return
    show(found, folder=output_dir)
    if output_dir is not None:
        print(f"\nThe evaluation is in {output_dir}.")


def settings_of(given: Sequence[str]) -> dict[str, Any]:
    """`["window=64", "causal=true"]` as numbers, truth values, lists or words by name."""
    found: dict[str, Any] = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not sign or not name.strip():
            raise EigenlensError(f"a setting is name=value, such as window=64, not {text!r}")
        try:
            found[name.strip()] = json.loads(value)
        except ValueError:
            found[name.strip()] = value
    return found

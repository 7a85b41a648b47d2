"""Commands that use what a study found: plan, evaluate."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import EigenlensError
from ..shell import command
from .app import Device, EngineName, Json, OnFailure, Scheduler, Workers, app, engine_of
from .places import latest, place_for
from .terminal import show


@app.command()
def plan(
    folder: Annotated[Path, typer.Argument(help="The folder of a study.")],
    data: Annotated[
        list[str] | None,
        typer.Argument(help="Data to choose on (default: what the study held out of its own)."),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(help="Work for scores, as a share of the exact ones, such as 0.25."),
    ] = None,
    error: Annotated[
        float | None, typer.Option(help="Most total variation of a head's patterns, such as 0.05.")
    ] = None,
    output_dir: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output-dir",
            help="The folder of the plan (default: plan, or plan-2, … where that is taken).",
        ),
    ] = None,
    estimators: Annotated[
        str | None, typer.Option(help="Estimators to choose from, with commas (default: all).")
    ] = None,
    blocks: Annotated[
        bool,
        typer.Option(
            "--blocks", help="Block-adaptive attention for long inputs of a language model."
        ),
    ] = False,
    max_length: Annotated[
        int | None, typer.Option(help="Tokens in an input of a plan of blocks (default 4096).")
    ] = None,
    max_inputs: Annotated[
        int | None, typer.Option(min=1, help="Inputs to choose on (default 16; 1 with --blocks).")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="The model, where it is no longer where the study found it.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Random choices of pairs and landmarks.")] = 0,
    device: Device = "auto",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Overwrite an existing plan.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Choose an estimator for every head of a studied model, within a budget or an error."""
    from ..plans import plan as make
    from ..run.charts import save_charts
    from ..run.progress import bar

    output_dir = place_for(output_dir, "plan", ["plan.json"], force=overwrite)
    with bar() as progress:
        made = make(
            folder,
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
    drawn = save_charts({"shares" if blocks else "budgets": made.plot()}, output_dir)
    if as_json:
        print(json.dumps({**made.record(), "pictures": [str(path) for path in drawn]}))
        return
    show(made)
    how = command("evaluate", made.facts.model.load_from, "--plan", output_dir)
    print(f"\nThe plan is in {output_dir}; measure it with: {how}")


@app.command()
def evaluate(
    model: Annotated[str, typer.Argument(help="A catalogue name, a folder, or a hub id.")],
    data: Annotated[
        list[str] | None,
        typer.Argument(help="Data as for study (default: what the study held out)."),
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option(
            help="The folder of the plan (default: the last of plan, plan-2, … that is there)."
        ),
    ] = None,
    attention: Annotated[
        str | None,
        typer.Option(
            help="Instead of a plan: a mechanism by name, put into the model without training."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--settings", help="A setting of the mechanism, such as window=64; once for each."
        ),
    ] = None,
    max_inputs: Annotated[int, typer.Option(min=1, help="How many inputs.")] = 48,
    max_length: Annotated[
        int | None, typer.Option(help="Tokens in an input (default: as the plan; 128 of text).")
    ] = None,
    padding: Annotated[
        bool,
        typer.Option("--padding", help="One input a document, padded, instead of packed text."),
    ] = False,
    output_dir: Annotated[
        Path | None,
        typer.Option("-o", "--output-dir", help="A folder for what was found (default: none)."),
    ] = None,
    device: Device = "auto",
    engine: EngineName = "local",
    workers: Workers = None,
    scheduler: Scheduler = None,
    on_failure: OnFailure = "stop",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Overwrite an existing evaluation.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Measure a plan, or another attention mechanism: quality and cost of the model with it, beside
    the model without.
    """
    from ..plans import evaluate as measure
    from ..run.progress import bar

    if plan is None and attention is None:
        plan = latest("plan", "plan.json")
    with bar() as progress:
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
    show(found)
    if output_dir is not None:
        print(f"\nThe evaluation is in {output_dir}")


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

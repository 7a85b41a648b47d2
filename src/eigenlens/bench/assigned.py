"""Whether choosing a mechanism for each head helps.

Trained models with chosen mechanisms are fine-tuned beside full, uniform and shuffled ones.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..display import numbered, percent
from ..lab import TrainingSettings, Transformer, evaluate, train
from ..run.parts import Parts
from ..run.progress import Progress
from .choice import Chosen, choose, uniform
from .entrants import FULL, SMALL, settings_for
from .result import Bench
from .training import LabScale, config_of, spread, task_named, trained

Row = dict[str, Any]
LOCAL = "local"
SETTINGS = {**SMALL, LOCAL: {"window": 4}, "window": {"window": 12, "sinks": 1}}
"""The candidates at 64 tokens, at rising cost.

A narrow window, a wide one with a sink, and everything.
"""


@dataclass(frozen=True)
class ChoiceScale:
    """Shares of full attention's cost, the candidates, and the steps of fine-tuning.

    Fine-tuning follows the training of `lab`.
    """

    lab: LabScale = field(default_factory=lambda: LabScale(layers=4))
    budgets: tuple[float, ...] = (0.3, 0.6)
    candidates: tuple[str, ...] = (FULL, "window", LOCAL)
    steps: int = 100


CHOICE_QUICK = ChoiceScale(
    LabScale(("next bytes",), (0,), 20, 8, length=32, width=32, windows=16, characters=60_000),
    (0.6,),
    (FULL, LOCAL),
    5,
)


def choices(scale: ChoiceScale, parts: Parts, progress: Progress, store: Path) -> Bench:
    """Every way of giving mechanisms to heads, before and after fine-tuning.

    Each way is tried at every budget and from every seed.
    """
    each: list[Row] = []
    heads: list[Row] = []
    for at, seed, budget in itertools.product(scale.lab.tasks, scale.lab.seeds, scale.budgets):
        name = f"{at.replace(' ', '-')}/budget-{budget}-seed-{seed}"
        found = parts.part(name, functools.partial(_one, at, budget, seed, scale, store, progress))
        each += found["rows"]
        heads += [{"task": at, "seed": seed, "budget": budget, **row} for row in found["heads"]]
    rows = _summary(each)
    return Bench(
        "choose",
        f"A mechanism for each head, {numbered(len(scale.lab.seeds), 'seed')}",
        sentence(rows),
        tables={"choices": rows, "heads": heads, "runs": each},
        notes=("shuffled gives the chosen mechanisms to random heads, at the same cost",),
        shown=(
            (
                (
                    "Held-out loss with chosen mechanisms, before and after fine-tuning; least and"
                    " largest of the seeds"
                ),
                "choices",
            ),
        ),
    )


def _one(
    at: str, budget: float, seed: int, scale: ChoiceScale, store: Path, progress: Progress
) -> dict[str, Any]:
    lab = scale.lab
    task = task_named(at, lab)
    model, _ = trained(
        task,
        config_of(task, FULL, lab),
        seed,
        lab,
        store,
        progress,
        f"training full attention on the task {at}",
    )
    chosen = choose(model, task, budget, scale.candidates, SETTINGS)
    ways: dict[str, Any] = {
        "chosen": chosen.mechanism,
        "shuffled": shuffled(chosen, seed).mechanism,
    }
    if budget == scale.budgets[0]:  # these two do not depend on it
        ways |= {
            "all full": uniform(FULL, lab.layers, lab.heads),
            "all local": uniform(LOCAL, lab.layers, lab.heads),
        }
    rows = []
    for way, mechanism in ways.items():
        other = with_mechanisms(
            model, mechanism, {LOCAL: settings_for(LOCAL, SETTINGS)}, chosen.settings
        )
        share = other.attention_cost(task.length) / model.attention_cost(task.length)
        before = evaluate(other, task)[0]
        settings = TrainingSettings(
            steps=scale.steps,
            batch=lab.batch,
            rate=lab.rate / 10,
            warmup=5,
            measure=scale.steps,
            seed=seed + 1,
        )
        tuned = train(
            other,
            task,
            settings,
            progress=progress,
            label=f"fine-tuning on the task {at}, mechanisms: {way}",
        )
        shown = None if way.startswith("all") else budget
        row = {"task": at, "way": way, "budget": shown, "seed": seed, "share": share}
        rows.append({**row, "before": before, "after": tuned.loss})
    return {"rows": rows, "heads": chosen.rows()}


def with_mechanisms(
    model: Transformer, mechanism: Any, *settings: Mapping[str, Mapping[str, Any]]
) -> Transformer:
    """A copy of a model, all weights included, with other mechanisms.

    Later settings go over earlier ones.
    """
    together: dict[str, Mapping[str, Any]] = {}
    for some in settings:
        together |= some
    other = Transformer(replace(model.config, mechanism=mechanism, mechanism_settings=together))
    other.load_state_dict(model.state_dict())
    return other


def shuffled(chosen: Chosen, seed: int) -> Chosen:
    """The same mechanisms, at other heads by chance."""
    order = [head.mechanism for head in chosen.heads]
    random.Random(seed).shuffle(order)
    heads = tuple(replace(head, mechanism=name) for head, name in zip(chosen.heads, order))
    return replace(chosen, heads=heads)


def _summary(each: Sequence[Row]) -> list[Row]:
    rows = []
    for key in dict.fromkeys((row["task"], row["way"], row["budget"]) for row in each):
        mine = [row for row in each if (row["task"], row["way"], row["budget"]) == key]
        row: Row = {
            **dict(zip(("task", "way", "budget"), key)),
            "share": spread([r["share"] for r in mine])[0],
        }
        for figure in ("before", "after"):
            row[figure], row[f"{figure}_low"], row[f"{figure}_high"] = spread(
                [r[figure] for r in mine]
            )
        rows.append(row)
    order = list(dict.fromkeys(row["task"] for row in rows))
    return sorted(rows, key=lambda row: (order.index(row["task"]), row["budget"] or 0))


def sentence(rows: Sequence[Row]) -> str:
    """What the choice loses beside full attention, and what chance would lose, in words."""
    message: list[str] = []
    for task in dict.fromkeys(row["task"] for row in rows):
        mine = [row for row in rows if row["task"] == task]
        full = next(row for row in mine if row["way"] == "all full")
        pairs = [
            (row, next(r for r in mine if r["way"] == "shuffled" and r["budget"] == row["budget"]))
            for row in mine
            if row["way"] == "chosen"
        ]
        ways = ", ".join(
            f"at {percent(c['share'])} of the cost {c['after']:.3f} (shuffled {r['after']:.3f})"
            for c, r in pairs
        )
        begin = "On" if not message else "on"
        message.append(
            f"{begin} {task} full attention comes to a loss of {full['after']:.3f}, mechanisms"
            f" chosen by head {ways}"
        )
    return f"{'; '.join(message)}."

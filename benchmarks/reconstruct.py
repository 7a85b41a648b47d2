"""Quality and cost of estimated scores, on documents that nothing was fitted or chosen on.

    python benchmarks/reconstruct.py estimators     every estimator at 5/10/25/50 %, in the model
    python benchmarks/reconstruct.py plan           the plan at 25 % of the score cost, on two texts
    python benchmarks/reconstruct.py selection      rules that choose the computed keys
    python benchmarks/reconstruct.py time           what making a plan costs, beside its study

Each prints a Markdown table; `benchmarks/reconstruct.md` holds what was measured, with the command.
The study is made once into `--folder` and used again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import eigenlens as el
from eigenlens.captures import Site
from eigenlens.estimators.candidates import BUDGETS, ESTIMATORS
from eigenlens.estimators.rows import RowConditional
from eigenlens.estimators.selection import RULES
from eigenlens.plans.make_plan import SHAPE
from eigenlens.plans.parts import PlanPart
from eigenlens.plans.result import Plan
from eigenlens.plans.site_statistics import site_statistics
from eigenlens.plans.trials import Trials
from tables import table

MODEL, DATA, INPUTS = "minilm", "python-docs", 1000


def study(folder: Path) -> el.Study:
    return (
        el.Study.open(folder)
        if (folder / "study.json").is_file()
        else el.study(MODEL, DATA, folder, max_inputs=INPUTS)
    )


def equal_plan(made: el.Study, estimators: dict[Site, Any]) -> Plan:
    """All heads by the same estimator, chosen on nothing.

    Every held-out document is left for the measurement.
    """
    parts = {
        site: [PlanPart(tuple(range(made.sites[site].heads)), e)] for site, e in estimators.items()
    }
    facts = {
        "model": made.stored["model"],
        "length": made.length,
        "groups": [0, 2, 4, 6],
        "target": {},
        "curve": [],
        "study": {
            "name": made.name,
            "request": made.stored["options"]["request"],
            "data": made.stored["data"],
        },
        "shapes": {
            str(site): {key: getattr(info, key) for key in SHAPE}
            for site, info in made.sites.items()
        },
    }
    return Plan(facts, (), parts)


def measured(model: el.Model, plan: Plan, inputs: int, data: Any = None) -> dict[str, Any]:
    found = el.evaluate(model, data, plan=plan, max_inputs=inputs)
    scores = [head["score_error"] for head in found.heads]
    return {
        "pairs": found.value("share of the pairs computed exactly"),
        "work": found.value("share of the multiply-adds for pairs"),
        "score error, median head": float(np.median(scores)),
        "score error, mean": float(np.mean(scores)),
        "total variation": found.value("total variation of the patterns"),
        "KL": found.value("KL of the patterns"),
        "top-1": found.value("top-1 agreement of the patterns"),
        "output error": found.value("relative error of the attention output"),
        "cosine": found.value("cosine of the embeddings"),
        "retrieval": found.value("retrieval agreement (nearest other input)"),
        "inputs": found.facts.inputs,
    }


def run_estimators(folder: Path, inputs: int) -> list[dict[str, Any]]:
    made, model = study(folder), el.load(MODEL)
    trials = Trials(
        site_statistics(made), [name for name in ESTIMATORS if name != "adaptive"], None, 0
    )
    rows = []
    for i, candidate in enumerate(trials.candidates):
        plan = equal_plan(made, {site: fitted[i] for site, fitted in trials.fitted.items()})
        rows.append(
            {
                "estimator": candidate.name,
                "budget": candidate.budget or "–",
                **measured(model, plan, inputs),
            }
        )
    for budget in BUDGETS:
        plan = el.plan(made, budget=budget, estimators=["adaptive", "mean"], model=model)
        rows.append(
            {"estimator": "adaptive, per head", "budget": budget, **measured(model, plan, inputs)}
        )
    return rows


def run_plan(folder: Path, inputs: int, budget: float) -> list[dict[str, Any]]:
    made, model = study(folder), el.load(MODEL)
    plan = el.plan(made, budget=budget, model=model)
    rows = [{"measured on": f"{DATA}, unseen documents", **measured(model, plan, inputs)}]
    for other in ("wikipedia", "reviews"):
        rows.append({"measured on": other, **measured(model, plan, inputs, other)})
    return rows


def run_selection(folder: Path, inputs: int) -> list[dict[str, Any]]:
    made, model = study(folder), el.load(MODEL)
    known, rows = site_statistics(made), []
    for rule in RULES:
        row: dict[str, Any] = {"rule": rule}
        for keys in (8, 16, 32, 64):
            plan = equal_plan(
                made,
                {site: RowConditional.fit(s, keys=keys, rule=rule) for site, s in known.items()},
            )
            row[f"m={keys}"] = measured(model, plan, inputs)["score error, median head"]
        rows.append(row)
    return rows


def run_time(inputs: int, rounds: int) -> list[dict[str, Any]]:
    """Study and plan in turn, in one run."""
    seconds: dict[str, list[float]] = {"study": [], "plan": []}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as scratch:
            begin = time.perf_counter()
            made = el.study(MODEL, DATA, Path(scratch) / "study", max_inputs=inputs)
            middle = time.perf_counter()
            el.plan(made, budget=0.25)
            seconds["study"].append(middle - begin)
            seconds["plan"].append(time.perf_counter() - middle)
    ratio = [p / s for p, s in zip(seconds["plan"], seconds["study"])]
    mid = {name: statistics.median(times) for name, times in seconds.items()}
    return [
        {
            "inputs": inputs,
            "study, s": mid["study"],
            "plan, s": mid["plan"],
            "plan / study": statistics.median(ratio),
        }
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["estimators", "plan", "selection", "time"])
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path("benchmark-study"),
        help="the study, made if it is not there",
    )
    parser.add_argument(
        "--max-inputs", type=int, default=64, help="inputs measured; of the study for `time`"
    )
    parser.add_argument("--budget", type=float, default=0.25)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.what == "estimators":
        rows = run_estimators(given.folder, given.max_inputs)
    elif given.what == "plan":
        rows = run_plan(given.folder, given.max_inputs, given.budget)
    elif given.what == "selection":
        rows = run_selection(given.folder, given.max_inputs)
    else:
        rows = run_time(given.max_inputs, given.rounds)
    if given.json:
        print(json.dumps(rows))
    else:
        table(rows)


if __name__ == "__main__":
    main()

"""Quality and cost of estimated scores, on documents that nothing was fitted or chosen on.

    python benchmarks/reconstruct.py estimators     every estimator at 5/10/25/50 %, in the model
    python benchmarks/reconstruct.py plan           the plan at 25 % of the score cost, on two texts
    python benchmarks/reconstruct.py selection      rules that choose the computed keys
    python benchmarks/reconstruct.py time           what making a plan costs, beside its study
    python benchmarks/reconstruct.py limit          one projection for all inputs, and for each
    python benchmarks/reconstruct.py pairs          projections fitted on the attended pairs

The last two take `--model minilm` or `--model smollm2`, which is causal and has grouped queries.
Each prints a Markdown table; `benchmarks/reconstruct.md` holds what was measured, with the command.
The study is made once into `--folder` and used again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import eigenlens as el
from eigenlens.captures import AttentionCall, Site
from eigenlens.data.datasets import text
from eigenlens.estimators.candidates import BUDGETS, chosen_names
from eigenlens.estimators.estimator import Estimator, SiteStatistics
from eigenlens.estimators.fitted import FittedSubspace
from eigenlens.estimators.limit import BEST, SHARED, RankLimit
from eigenlens.estimators.measures import Errors, Truth
from eigenlens.estimators.rows import RowConditional
from eigenlens.estimators.selection import RULES
from eigenlens.estimators.subspace import JointSubspace
from eigenlens.plans.attended_pairs import with_attended_pairs
from eigenlens.plans.held_out import HeldOut, held_out_of
from eigenlens.plans.make_plan import SHAPE
from eigenlens.plans.parts import PlanPart
from eigenlens.plans.result import Plan
from eigenlens.plans.site_statistics import site_statistics
from eigenlens.plans.trials import Trials
from tables import table

MODEL, DATA, INPUTS = "minilm", "python-docs", 1000
ARTICLES = 400
"""Wikipedia articles whose first 128 tokens are the inputs of SmolLM2: a fifth is held out."""
RANKS = (4, 8, 16)


def study(folder: Path) -> el.Study:
    return (
        el.Study.open(folder)
        if (folder / "study.json").is_file()
        else el.study(MODEL, DATA, folder, max_inputs=INPUTS)
    )


def moments_study(folder: Path, model: str) -> el.Study:
    """A study of queries and keys alone; it serves beside a whole one."""
    if model == MODEL and (folder / "study.json").is_file():
        return study(folder)
    folder = folder.with_name(f"{folder.name}-{model}")
    if (folder / "study.json").is_file():
        return el.Study.open(folder)
    data: Any = DATA
    if model != MODEL:
        data = folder.with_name(f"{folder.name}.jsonl")
        long = (article for article in text("wikipedia") if len(article) > 800)
        lines = [json.dumps({"text": article[:800]}) for article in islice(long, ARTICLES)]
        data.write_text("\n".join(lines), encoding="utf-8")
        data = f"{data}:text"
    return el.study(model, data, folder, max_inputs=INPUTS, max_length=128, only="moments")


@contextmanager
def held_out(made: el.Study) -> Iterator[HeldOut]:
    """All held-out documents: nothing is chosen on them."""
    with tempfile.TemporaryDirectory() as scratch:
        loaded = el.load(made.facts.model.load_from)
        held = held_out_of(made, loaded, None, Path(scratch))
        held.groups = held.inputs.groups[1:]
        yield held


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
        site_statistics(made), [name for name in chosen_names(None) if name != "adaptive"], None, 0
    )
    rows = []
    for i, candidate in enumerate(trials.candidates):
        if any(fitted[i] is None for fitted in trials.fitted.values()):
            continue  # `joint-grouped` is `joint` where no heads share their keys
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


def run_limit(folder: Path, inputs: int, model: str) -> list[dict[str, Any]]:
    """Errors at equal rank, as shares of the row-centred energy: median of the heads, and range."""
    made = moments_study(folder, model)
    limits = {site: RankLimit.of(known, RANKS) for site, known in site_statistics(made).items()}
    with held_out(made) as held:
        held.run(lambda call: limits[call.site].add(call), inputs)
    masked = any(info.mask != "full" for info in made.sites.values())
    grouped = any(info.kv_heads < info.heads for info in made.sites.values())
    own = [name for name in next(iter(limits.values())).fitted if name != "joint with tail"]
    best = [BEST, SHARED] if grouped else [BEST]

    def errors(name: str, of: Any = "centred", over: Any = "square") -> np.ndarray:
        return np.concatenate([limit.error(name, of, over).numpy() for limit in limits.values()])

    every = "all, without the mask" if masked else "all"
    found = [(every, "centred", name, errors(name)) for name in (*best, *own, "joint with tail")]
    found += [(every, "scores", name, errors(name, "scores")) for name in (*best, *own)]
    if masked:
        found += [
            ("attended", "centred", name, errors(name, over="valid"))
            for name in (*own, "joint with tail")
        ]
    pairs = [("joint", BEST), ("joint", "kq-svd"), ("joint", "key-pca")]
    if grouped:
        pairs += [("joint-grouped", SHARED), ("joint-grouped", "joint")]
    found += [(every, "centred", f"{a} / {b}", errors(a) / errors(b)) for a, b in pairs]
    return [
        {"pairs": over, "of": of, "estimator": name, **by_rank(values)}
        for over, of, name, values in found
    ]


def by_rank(values: np.ndarray) -> dict[str, str]:
    """`(heads, ranks)` as median and range."""
    columns = zip(RANKS, values.T)
    return {f"r={r}": f"{np.median(x):.3f} ({x.min():.3f}–{x.max():.3f})" for r, x in columns}


def run_pairs(folder: Path, inputs: int, model: str, layers: list[int]) -> list[dict[str, Any]]:
    """Error of fitted projections as a share of `joint`'s, over attended pairs, held out.

    Adopted if the median is below 0.97 and no head is above 1.05.
    """
    made = moments_study(folder, model)
    known = {
        site: x for site, x in site_statistics(made).items() if not layers or site.layer in layers
    }
    found: dict[Site, Comparison] = {}
    with held_out(made) as held:
        for site, one in with_attended_pairs(known, held).items():
            found[site] = Comparison(one)

        def compare(call: AttentionCall) -> None:
            if call.site in found:
                found[call.site].add(call)

        held.run(compare, inputs)
    rows = []
    for at, rank in enumerate(RANKS):
        row: dict[str, Any] = {"r": rank, "heads": sum(x.heads for x in found.values())}
        for name in Comparison.NAMES:
            ratio = np.concatenate([x.ratio(name, at) for x in found.values()])
            row[name] = f"{np.median(ratio):.3f} ({ratio.min():.3f}–{ratio.max():.3f})"
        rows.append(row)
    return rows


def without_tail(one: Estimator) -> Estimator:
    """The same projections, fitted once, and nothing for what they leave out."""
    kept = {name: one.tensors[name] for name in ("to_x", "to_y", "centre")}
    return type(one)({**one.settings, "tail": False}, kept)


class Comparison:
    """Fitted projections beside `joint` at equal rank, with and without the positions' mean."""

    NAMES = ("error", "error with tail", "total variation with tail")

    def __init__(self, known: SiteStatistics) -> None:
        self.heads = known.heads

        self.mine: dict[bool, list[Estimator]] = {}
        self.joint: dict[bool, list[Estimator]] = {}
        for found, kind in ((self.mine, FittedSubspace), (self.joint, JointSubspace)):
            found[True] = [kind.fit(known, rank=r) for r in RANKS]
            found[False] = [without_tail(one) for one in found[True]]
        fitted = {f"mine {tail}": self.mine[tail] for tail in self.mine}
        self.limit = RankLimit(RANKS, fitted | {f"joint {t}": self.joint[t] for t in self.joint})
        self.errors = [(Errors(), Errors()) for _ in RANKS]

    def add(self, call: AttentionCall) -> None:
        self.limit.add(call)
        truth = Truth(call)
        for (mine, other), a, b in zip(self.errors, self.mine[True], self.joint[True]):
            mine.add(truth, a.estimate(call), all_measures=False)
            other.add(truth, b.estimate(call), all_measures=False)

    def ratio(self, name: str, at: int) -> np.ndarray:
        if name == "total variation with tail":
            mine, other = self.errors[at]
            return (mine.total_variation / other.total_variation).numpy()
        tail = name == "error with tail"
        mine, other = (
            self.limit.error(f"{who} {tail}", over="valid")[:, at] for who in ("mine", "joint")
        )
        return (mine / other).numpy()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "what", choices=["estimators", "plan", "selection", "time", "limit", "pairs"]
    )
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
    parser.add_argument("--model", choices=["minilm", "smollm2"], default=MODEL)
    parser.add_argument("--layers", default="", help="of `pairs`: some layers, such as 0,5,11")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.what == "estimators":
        rows = run_estimators(given.folder, given.max_inputs)
    elif given.what == "plan":
        rows = run_plan(given.folder, given.max_inputs, given.budget)
    elif given.what == "selection":
        rows = run_selection(given.folder, given.max_inputs)
    elif given.what == "limit":
        rows = run_limit(given.folder, given.max_inputs, given.model)
    elif given.what == "pairs":
        layers = [int(layer) for layer in given.layers.split(",") if layer]
        rows = run_pairs(given.folder, given.max_inputs, given.model, layers)
    else:
        rows = run_time(given.max_inputs, given.rounds)
    if given.json:
        print(json.dumps(rows))
    else:
        table(rows)


if __name__ == "__main__":
    main()

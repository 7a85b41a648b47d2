"""The claims about relevance, and what was measured of it and of the methods beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...display import percent
from ..claims import Claim, Tables
from ..verdicts import judged

BASELINES = ("attention", "rollout", "Grad-CAM", "attention × gradient")
BETTER = "better curves in both orders than these baselines"
LENS = "deletion curves better than those of raw attention and rollout"


def claims_of(tables: Tables, quick: bool) -> tuple[Claim, ...]:
    tasks = list(dict.fromkeys(row["task"] for row in tables["areas"]))
    against = [
        (task, "relevance", other, BETTER) for task in tasks for other in (*BASELINES, "random")
    ]
    against += [
        (task, "TensorLens In+Out", other, LENS)
        for task in tasks
        for other in ("attention", "rollout")
    ]
    return (*_checks(tables), *(_gain(tables, *what) for what in against), *_planted(tables))


def _checks(tables: Tables) -> tuple[Claim, ...]:
    value = {row["check"]: float(row["value"]) for row in tables["checks"]}
    padding = value["batch: largest relevance of padding"]
    numbers = value["rows without mass: entries of R̄ that are no numbers"]
    return (
        judged(
            "one layer: R = I + Ā",
            "exact",
            value["one layer: largest |R − (I + Ā)|"],
            None,
            "largest difference in float64, the first block of minilm under a probe, Ā from eager"
            " attention and torch's gradients; reproduced if at most 1e-10",
            at_most=1e-10,
        ),
        judged(
            "all entries of R are at least 0",
            "≥ 0",
            value["all layers: least entry of R"],
            None,
            "the least entry, minilm on reviews; reproduced if at least 0",
            at_least=0.0,
        ),
        judged(
            "a batch gives what one by one gives",
            "not in the paper",
            value["batch against one by one: largest relative difference"],
            None,
            "largest difference over the largest relevance of the input, minilm on reviews;"
            f" padding gets {padding:g}; reproduced if at most 1e-5 (float32)",
            at_most=1e-5,
        ),
        judged(
            "a row without mass leaves R̄ = I there",
            "not in the paper: in its code one such row wipes out the map",
            numbers + value["rows without mass: largest |R̄ − I| of them"],
            None,
            "entries that are no numbers, plus the largest |R̄ − I|; reproduced if 0",
            at_most=0.0,
        ),
    )


def _gain(tables: Tables, task: str, method: str, other: str, published: str) -> Claim:
    """One method better than another in both orders: no interval of the difference reaches 0."""
    rows = {
        row["order"]: row
        for row in tables["pairs"]
        if (row["task"], row["method"], row["against"]) == (task, method, other)
    }
    first, last = rows["positive"], rows["negative"]
    areas = {row["method"]: row for row in tables["areas"] if row["task"] == task}
    message = ", ".join(
        f"{name} {areas[name]['positive']:.3f} / {areas[name]['negative']:.3f}"
        for name in (method, other)
    )
    holds = first["low"] > 0 and last["low"] > 0
    return Claim(
        f"{task}: {method} better than {other}",
        "not in the paper" if other == "random" else published,
        first["gain"],
        (first["low"], first["high"]),
        "reproduced" if holds else "not reproduced",
        f"area saved with the most relevant tokens going first, mean over {areas[method]['inputs']}"
        " inputs, interval: 95 % of paired resamples; with the least relevant first"
        f" {last['gain']:+.3f} ({last['low']:+.3f} … {last['high']:+.3f}); areas positive /"
        f" negative: {message}; reproduced if both intervals lie above 0",
    )


def _planted(tables: Tables) -> tuple[Claim, ...]:
    made = []
    for method in ("relevance", "TensorLens In+Out"):
        rows = [row for row in tables["planted"] if row["method"] == method]
        tops, right = [row["top-ranked"] for row in rows], min(row["accuracy"] for row in rows)
        rising = (
            f"; ∂score/∂A > 0 for {percent(_mean([row['rising'] for row in rows]))}"
            " of the attention to it"
        )
        made.append(
            judged(
                f"planted token: {method} ranks it first",
                "not in the paper; expected in 95 %",
                _mean(tops),
                (min(tops), max(tops)),
                f"share of inputs, mean of {len(rows)} lab models, interval: least and largest"
                f" model; {_builds(rows)}{rising if method == 'relevance' else ''}; the models are"
                f" right in at least {percent(right)}; reproduced if at least 95 % in the mean",
                at_least=0.95,
            )
        )
    rows = [row for row in tables["planted"] if row["method"] == "relevance"]
    gaps = [
        min(row["random, positive"] - row["positive"], row["negative"] - row["random, negative"])
        for row in rows
    ]
    made.append(
        Claim(
            "planted token: area positive < random < negative",
            "not in the paper; expected in this order",
            _mean(gaps),
            (min(gaps), max(gaps)),
            "reproduced" if min(gaps) > 0 else "not reproduced",
            f"relevance, the lesser of the two gaps to random orders, mean of {len(rows)} lab"
            " models, interval: least and largest model; reproduced if above 0 in every model",
        )
    )
    return tuple(made)


def _builds(rows: Sequence[dict[str, Any]]) -> str:
    """Means over seeds of every build: `pre-norm, class token 63 %`."""
    kinds = list(dict.fromkeys((row["norms"], row["read"]) for row in rows))
    means = {
        kind: _mean([row["top-ranked"] for row in rows if (row["norms"], row["read"]) == kind])
        for kind in kinds
    }
    return ", ".join(f"{norms}, {read} {percent(mean)}" for (norms, read), mean in means.items())


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)

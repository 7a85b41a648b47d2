"""The claims about relevance, and about TensorLens beside it; what stands beside them is no claim.

Random orders and attention × gradient are measured too, in the tables of areas and of pairs; so is
the planted token. The papers say nothing of them.
"""

from __future__ import annotations

from ..claims import Claim, Tables
from ..verdicts import judged, judged_at, out_of_reach

BASELINES = ("attention", "rollout", "Grad-CAM")
BETTER = "better curves in both orders than these baselines"
LENS = "deletion curves better than those of raw attention and rollout"


def claims_of(tables: Tables, quick: bool) -> tuple[Claim, ...]:
    tasks = list(dict.fromkeys(row["task"] for row in tables["areas"]))
    against = [(task, "relevance", other, BETTER) for task in tasks for other in BASELINES]
    against += [
        (task, "TensorLens In+Out", other, LENS)
        for task in tasks
        for other in ("attention", "rollout")
    ]
    return (*_rules(tables), *(_gain(tables, *what) for what in against), _far())


def _rules(tables: Tables) -> tuple[Claim, ...]:
    value = {row["check"]: float(row["value"]) for row in tables["checks"]}
    off = value["one layer: largest |R − (I + Ā)|"]
    least = value["all layers: least entry of R"]
    return (
        judged(
            "one layer: R = I + Ā",
            "exact",
            off,
            None,
            "reproduced if at most 1e-10",
            "largest difference in float64, the first block of minilm under a probe, Ā from eager"
            " attention and torch's gradients",
            at_most=1e-10,
            reason=f"the protocol: the rule as built is off by {off:.1e}",
        ),
        judged(
            "all entries of R are at least 0",
            "≥ 0",
            least,
            None,
            "reproduced if at least 0",
            "the least entry, minilm on reviews",
            at_least=0.0,
            reason=f"the protocol: the rule as built gives {least:.1e}",
        ),
    )


def _gain(tables: Tables, task: str, method: str, other: str, published: str) -> Claim:
    """One method better than another: in the mean and beyond its interval, in both orders."""
    rows = {
        row["order"]: row
        for row in tables["pairs"]
        if (row["task"], row["method"], row["against"]) == (task, method, other)
    }
    areas = {row["method"]: row for row in tables["areas"] if row["task"] == task}
    points = {}
    for order, words in (("positive", "most relevant first"), ("negative", "least relevant first")):
        row = rows[order]
        points[f"{words}, the mean ({row['gain']:+.3f})"] = row["gain"] > 0
        points[f"{words}, all of its interval (from {row['low']:+.3f})"] = row["low"] > 0
    first = rows["positive"]
    message = ", ".join(
        f"{name} {areas[name]['positive']:.3f} / {areas[name]['negative']:.3f}"
        for name in (method, other, "random")
    )
    return judged_at(
        f"{task}: {method} better than {other}",
        published,
        first["gain"],
        points,
        (first["low"], first["high"]),
        "holds where the area that is gained is above 0",
        f"measured is the area saved with the most relevant tokens going first, mean over"
        f" {areas[method]['inputs']} inputs, interval: 95 % of paired resamples; areas positive /"
        f" negative: {message}",
        reason=f"the claim: it is worse in both orders, areas positive / negative: {message}",
    )


def _far() -> Claim:
    return out_of_reach(
        "the areas of VisualBERT, LXMERT and ViT, and the segmentations of DETR",
        "relevance leads in each",
        "these models, and the data sets that they answer questions about",
        "the three models above stand in for them",
    )

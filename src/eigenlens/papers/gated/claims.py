"""The claims about gates, and the criterion of each verdict."""

from __future__ import annotations

import math

from ..claims import Claim, Tables
from ..fits import rank_correlation, rank_correlation_interval
from ..verdicts import judged, judged_if, out_of_reach

PUBLISHED = {  # gate: perplexity, mean gate, attention to the first token, largest activation
    "none": (6.026, None, 0.467, 1053),
    "G1": (5.761, 0.116, 0.048, 94),
    "G1-head": (5.792, 0.172, 0.073, 98),
    "G2": (5.820, 0.221, 0.297, 125),
    "G3": (6.016, None, None, None),
    "G4": (5.981, None, None, None),
    "G5": (6.017, None, None, None),
}
EXACT, OPEN = 1e-10, 1e-12
SINK = 2.0
"""The first token is a sink if it gets so many times what even attention would give it."""
LARGE = "a mixture-of-experts model of 15 billion parameters, two of them active"


def claims_of(tables: Tables, quick: bool) -> tuple[Claim, ...]:
    return (*_exact(tables), _spans(tables), _sink(tables), *_far(tables))


def _exact(tables: Tables) -> list[Claim]:
    def worst(check: str) -> float:
        return max(row["error"] for row in tables["exact"] if row["check"] == check)

    routes, half, plain = (worst(check) for check in ("decomposition", "W = 0", "bias 40"))
    return [
        judged(
            "Gated attention is a sum over routes: attention and gate choose among linear experts",
            "exact",
            routes,
            None,
            f"reproduced if at most {EXACT:g}",
            "largest error of the sum over heads, elements and tokens, relative to the output,"
            " float64, G1",
            at_most=EXACT,
            reason=f"the claim: the sum is off by {routes:.1e} of the output",
        ),
        judged(
            "A gate with W_θ = 0 gives half of the plain output",
            "exactly half",
            half,
            None,
            "reproduced if exactly 0",
            "largest difference from half, G1, G2, G5, float64 (at G3 and G4 the gate is inside the"
            " softmax)",
            at_most=0.0,
            reason=f"the claim: the output is off by {half:.1e} from half",
        ),
        judged(
            "A large positive bias gives the plain output back",
            "the plain output",
            plain,
            None,
            f"reproduced if at most {OPEN:g}",
            "largest difference at a bias of 40, relative, G1 to G5, float64",
            at_most=OPEN,
            reason=f"the claim: at a bias of 40 the output is off by {plain:.1e}",
        ),
    ]


def _spans(tables: Tables) -> Claim:
    wanted = {
        "none": lambda n, d: 1,
        "G1-head": lambda n, d: 1,
        "G1": lambda n, d: min(n, d),
    }
    off = [
        row
        for row in tables["spans"]
        if row["span"] != wanted[row["gate"]](row["queries"], row["head_width"])
    ]
    return judged(
        "The span of the queries' value-output maps rises from 1 to min(n, d_head)",
        "1 → min(n, d_head)",
        float(len(off)),
        None,
        "reproduced if none",
        f"cases of {len(tables['spans'])} (n queries, no gate, one per head, one per element) with"
        " another dimension; one gate per head scales the map and leaves the span at 1",
        at_most=0.0,
        reason=f"the claim: {len(off)} of {len(tables['spans'])} cases have another dimension",
    )


def _sink(tables: Tables) -> Claim:
    """Judged where a model without a gate has a sink; otherwise there is none to shrink."""
    rows = [row for row in tables["runs"] if row["mean_gate"] is not None]
    gate, sink = ([row[key] for row in rows] for key in ("mean_gate", "first_token"))
    low, high = rank_correlation_interval(gate, sink)
    found = rank_correlation(gate, sink)
    plain = [row for row in tables["runs"] if row["gate"] == "none"]
    there = sum(row["first_token"] for row in plain) / len(plain)
    even = plain[0]["even"]
    claim = "The lower the mean gate, the smaller the sink"
    published = "mean gate .116 / .172 / .221, attention to the first token .048 / .073 / .297"
    note = (
        f"rank correlation of mean gate and attention to the first token over {len(rows)} trained"
        " models, interval: 95 % of draws of models with replacement; without a gate the first"
        f" token gets {there:.3f}, and {even:.3f} if all tokens were attended to alike"
    )
    if there < SINK * even:
        missing = (
            f"a model whose first token gets at least {SINK:g} times what even attention would give"
            f" it, and these have no such sink; the published figures are of {LARGE}"
        )
        return out_of_reach(claim, published, missing, note, measured=found, interval=(low, high))
    return judged_if(
        low > 0,
        claim,
        published,
        found,
        (low, high),
        "reproduced if the interval lies above 0; judged since the models without a gate have a"
        f" sink, at least {SINK:g} times what even attention would give",
        note,
        reason=f"the claim: the sink is there ({there:.3f}), and over {len(rows)} models its size"
        f" goes with the mean gate by {found:.2f} ({low:.2f} to {high:.2f})",
    )


def _far(tables: Tables) -> list[Claim]:
    """What was published of a model of 15 billion parameters, beside the same ratio here."""
    runs = {(row["gate"], row["seed"]): row for row in tables["runs"]}
    seeds = sorted({seed for _, seed in runs})

    def ratios(gate: str, key: str) -> list[float]:
        pairs = [(runs[gate, seed][key], runs["none", seed][key]) for seed in seeds]
        return [math.exp(a - b) if key == "loss" else a / b for a, b in pairs]

    names = (
        ("perplexity", "loss"),
        ("attention to the first token", "first_token"),
        ("largest activation", "largest_activation"),
    )
    found = []
    for gate in ("G1", "G1-head", "G2"):
        for at, (name, key) in zip((0, 2, 3), names):
            before, after = PUBLISHED["none"][at], PUBLISHED[gate][at]
            assert before is not None and after is not None
            here = ratios(gate, key)
            found.append(
                out_of_reach(
                    f"{gate} changes the {name} of a 15A2B model",
                    f"{before:g} → {after:g}, × {after / before:.3f}",
                    LARGE,
                    "the ratio to no gate in the small models here, mean and range over seeds",
                    measured=sum(here) / len(here),
                    interval=(min(here), max(here)),
                )
            )
    order = [gate for gate in PUBLISHED if all((gate, seed) in runs for seed in seeds)]
    ranks = [
        rank_correlation(
            [float(PUBLISHED[g][0] or 0) for g in order], [runs[g, seed]["loss"] for g in order]
        )
        for seed in seeds
    ]
    return [
        *found,
        out_of_reach(
            "Gates at G1 help most, then G2; G3, G4 and G5 help little",
            "PPL 5.761, 5.792, 5.820, 6.016, 5.981, 6.017; none 6.026",
            LARGE,
            "rank correlation of the published perplexities and the losses here, mean and range"
            " over seeds",
            measured=sum(ranks) / len(ranks),
            interval=(min(ranks), max(ranks)),
        ),
    ]

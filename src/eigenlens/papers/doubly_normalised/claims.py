"""What was measured of the keys' weights, beside the paper's claims, and its pictures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..claims import Claim, Tables, judged
from ..curves import curves

LEAST = "doubly normalised: least · S"


def claims_of(tables: Tables, quick: bool) -> tuple[Claim, ...]:
    """The guarantee and the view are mathematics; of benchmarks there is only a miniature."""
    return (*_mathematics(tables), *_models(tables), *_training(tables))


def _mathematics(tables: Tables) -> tuple[Claim, ...]:
    random, edge = tables["random scores"], tables["tightness"]
    least = min(row[LEAST] for row in [*random, *edge])
    off = max(row["doubly normalised: rows off 1"] for row in random)
    lost = min(row["softmax: least · S"] / row["S"] for row in random)
    apart = max(row["largest difference"] for row in tables["mixtures"])
    moved = max(row["earlier patterns move by"] for row in tables["causal"])
    where = f"{len(random)} sizes and scales of random scores"
    return (
        judged(
            "doubly normalised, every key keeps a weight of at least 1/S",
            "column sums ≥ 1/S",
            least,
            None,
            f"the least weight times S, {where} and {len(edge)} at the edge; rows sum to 1 within"
            f" {off:.1e}; reproduced if at least 1 − 1e-6",
            at_least=1 - 1e-6,
        ),
        judged(
            "the bound is tight",
            "attained",
            min(row[LEAST] for row in edge),
            None,
            "the least weight times S where one query outbids all others for every key; reproduced"
            " if at most 1.001",
            at_most=1.001,
        ),
        judged(
            "softmax has no such bound",
            "column sums down to 1e-28",
            lost,
            None,
            f"the least weight of a key, {where}; reproduced if at most 1e-20",
            at_most=1e-20,
        ),
        judged(
            "both patterns are posteriors of Gaussian mixtures",
            "keys, or queries, as centres",
            apart,
            None,
            "the largest difference of patterns and outputs from those of the densities; reproduced"
            " if at most 1e-10",
            at_most=1e-10,
        ),
        judged(
            "a causal mask would leak the future through the step over queries",
            "not in the paper",
            moved,
            None,
            "the most that weights of earlier queries move with the last one; reproduced if at"
            " least 0.01; the mechanism refuses such a mask",
            at_least=0.01,
        ),
    )


def _models(tables: Tables) -> tuple[Claim, ...]:
    rows = tables["models"]
    softmax = [row for row in rows if row["attention"] == "softmax"]
    both = [row for row in rows if row["attention"] == "doubly normalised"]
    shares = [row["keys below 1/S"] for row in softmax]
    message = ", ".join(
        f"{row['model']} {row['keys below 1/S']:.2%} (least {row['least']:.0e})" for row in softmax
    )
    made = [
        Claim(
            "trained transformers explain keys away",
            "they tend to",
            sum(shares) / len(shares),
            (min(shares), max(shares)),
            "reproduced" if min(shares) >= 0.01 else "not reproduced",
            "share of keys of all heads with a weight below 1/S, mean of the models, interval:"
            f" least and largest model; {message}; reproduced if at least 1 % in every model",
        )
    ]
    if both:
        names = ", ".join(f"{row['model']} least {row['least'] * row['S']:.3g}/S" for row in both)
        made.append(
            judged(
                "on the same scores the doubly normalised pattern explains none away",
                "none below 1/S",
                max(row["keys below 1/S"] for row in both),
                None,
                "share of keys below 1/S, the largest of the models without a causal mask;"
                f" {names}; reproduced if none",
                at_most=0.0,
            )
        )
    return tuple(made)


def _training(tables: Tables) -> tuple[Claim, ...]:
    """Differences between runs of one task and seed, which begin with the same weights and see the
    same inputs.
    """
    made = []
    rows = {(row["task"], row["mechanism"], row["seed"]): row["loss"] for row in tables["training"]}
    for name in ("doubly-normalised", "hybrid-normalised"):
        for task in dict.fromkeys(row["task"] for row in tables["training"]):
            some = [
                row
                for row in tables["training"]
                if row["task"] == task and row["mechanism"] == "softmax"
            ]
            gains = [row["loss"] - rows[task, name, row["seed"]] for row in some]
            made.append(
                Claim(
                    f"models trained {name} are better (here: {task})",
                    "better on several benchmarks",
                    sum(gains) / len(gains),
                    (min(gains), max(gains)),
                    "out of reach",
                    f"miniature, {task}: nats of held-out loss gained over softmax after"
                    f" {some[0]['steps']} steps (above 0 is better); {len(gains)} seeds, interval:"
                    f" least and largest; softmax {_mean(some, 'loss'):.3f} nats,"
                    f" {_mean(some, 'accuracy'):.1%} right",
                )
            )
    return tuple(made)


def _mean(rows: Sequence[dict[str, Any]], key: str) -> float:
    return sum(float(row[key]) for row in rows) / len(rows)


def key_charts(tables: Tables) -> dict[str, Any]:
    """Weights of keys; keys explained away by layer; the least weight of random scores;
    training.
    """
    import altair as alt

    models = list(dict.fromkeys(row["model"] for row in tables["histogram"]))
    spread = [
        _histogram(
            [row for row in tables["histogram"] if row["model"] == model], model, _size(tables)
        )
        for model in models
    ]
    layers = [
        _by_layer([row for row in tables["heads"] if row["model"] == model], model)
        for model in models
    ]
    largest = max(row["S"] for row in tables["random scores"])
    names = ("softmax", "doubly normalised", "Sinkhorn, 5")
    random = [
        {
            "normalised": name,
            "scale": row["scale of scores"],
            "least": math.log10(max(row[f"{name}: least · S"], 1e-300)),
        }
        for name in names
        for row in tables["random scores"]
        if row["S"] == largest
    ]
    training = [
        curves(
            [row for row in tables["training curves"] if row["task"] == task],
            "step",
            "loss",
            "run",
            title=task,
            names=("step", "held-out nats"),
        )
        for task in dict.fromkeys(row["task"] for row in tables["training curves"])
    ]
    return {
        "keys": alt.concat(*spread, columns=2),
        "layers": alt.concat(*layers, columns=2),
        "random": curves(
            random,
            "scale",
            "least",
            "normalised",
            title=f"Random scores, {largest} keys",
            names=("standard deviation of scores", "log10 of the least weight times S"),
            log=("x",),
        ),
        "training": alt.hconcat(*training),
    }


def _size(tables: Tables) -> int:
    return int(tables["models"][0]["S"])


def _histogram(rows: Sequence[dict[str, Any]], model: str, S: int) -> Any:
    """The share of keys by the logarithm of their weight, with a line at the guarantee."""
    import altair as alt

    seen = [row for row in rows if row["share"] > 0]
    base = alt.Chart(alt.Data(values=seen)).encode(
        x=alt.X(
            "log10 of weight:Q",
            title="log10 of a key's weight",
            scale=alt.Scale(zero=False, nice=False),
        ),
        y=alt.Y(
            "share:Q",
            title="share of keys",
            scale=alt.Scale(type="log"),
            axis=alt.Axis(format=".0e"),
        ),
        color=alt.Color("attention:N", sort=["softmax", "doubly normalised"], title="normalised"),
    )
    bound = (
        alt.Chart(alt.Data(values=[{"x": math.log10(1 / S)}]))
        .mark_rule(strokeDash=[4, 3], color="black")
        .encode(x="x:Q")
    )
    lines = base.mark_line(strokeWidth=1.5) + base.mark_circle(size=25, opacity=1)
    return (lines + bound).properties(width=320, height=200, title=f"{model} (dashed: 1/S)")


def _by_layer(rows: Sequence[dict[str, Any]], model: str) -> Any:
    """A circle for each head, its share of keys below 1/S."""
    import altair as alt

    return (
        alt.Chart(alt.Data(values=list(rows)))
        .mark_circle(size=35, opacity=0.6)
        .encode(
            x=alt.X("layer:O", title="layer", axis=alt.Axis(labelAngle=0, labelOverlap=True)),
            y=alt.Y("below 1/S:Q", title="share of keys below 1/S", axis=alt.Axis(format="%")),
            color=alt.Color(
                "attention:N", sort=["softmax", "doubly normalised"], title="normalised"
            ),
            xOffset=alt.XOffset("attention:N", sort=["softmax", "doubly normalised"]),
            tooltip=["layer:O", "head:O", "attention:N", alt.Tooltip("below 1/S:Q", format=".2%")],
        )
        .properties(width=320, height=200, title=f"{model}: heads by layer")
    )

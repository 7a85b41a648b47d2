"""Unravelling attention via convex duality (arXiv 2205.08078).

Blocks with heads are compared with their certified optimum.

The mathematics is checked on drawn data of the size that was published. Clusters of tokens and
held-out accuracy are shown on frozen features of a vision model.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from ...display import numbered
from ...run.parts import Parts
from ...run.progress import Progress
from ..claims import Tables
from ..paper import Paper
from .blocks import block_run, counterexample, head_runs, path_rows
from .claims import claims_of
from .pictures import charts
from .tokens import PictureTokens, token_run


@dataclass(frozen=True)
class Scale:
    """Sizes of the drawn data: `n` inputs of `s` tokens of `d` numbers, `c` numbers out.

    There are `sets` of them, and `starts` of training with each number of heads.

    Then come `images` to fit, to choose β by and to judge by, at `side` pixels, their tokens in
    `features` numbers; `draws` of them.
    """

    n: int = 24
    s: int = 5
    d: int = 3
    c: int = 2
    beta: float = 0.5
    teachers: int = 2
    sets: int = 3
    starts: int = 3
    heads: tuple[int, ...] = (1, 2, 3, 4, 5, 6)
    model: str = "dinov2-small"
    data: str = "fashion-mnist"
    images: tuple[int, int, int] = (200, 100, 300)
    side: int = 56
    features: int = 10
    fractions: tuple[float, ...] = (0.03, 0.01, 0.003)
    tolerance: float = 1e-2
    draws: int = 2


FULL = Scale()
QUICK = Scale(
    sets=1, starts=2, heads=(1, 2, 6), images=(40, 20, 60), features=6, fractions=(0.1,), draws=1
)
BLOCKS = ("linear attention", "gated-ReLU attention", "linear mixer", "Fourier operator")
LOSSES = ("squared", "logistic")


def measure(scale: Scale, parts: Parts, seed: int, progress: Progress) -> Tables:
    of_blocks = {
        f"block-{name.replace(' ', '-')}-{loss}": partial(block_run, name, loss, scale, seed)
        for name in BLOCKS
        for loss in LOSSES
    }
    blocks = parts.each(
        of_blocks, progress, f"solving {numbered(len(of_blocks), 'convex problem')}"
    )
    makes = {
        f"heads-{one}": partial(head_runs, scale, 1000 * seed + one) for one in range(scale.sets)
    }
    makes["path"] = partial(path_rows, scale, 1000 * seed)
    makes["counterexample"] = partial(counterexample, scale, 1000 * seed)
    *sets, path, off = parts.each(makes, progress, "training heads and following the penalty")
    counted = [row for one in sets for row in one]
    tokens = PictureTokens(scale, seed)
    drawn = parts.each(
        {f"tokens-{draw}": partial(token_run, tokens, scale, draw) for draw in range(scale.draws)},
        progress,
        "clustering tokens of pictures",
    )
    return {
        "blocks": [run["row"] for run in blocks],
        "history": [row for run in blocks for row in run["history"]],
        "heads": counted,
        "head counts": count_rows(counted),
        "path": path,
        "counterexample": off,
        "accuracy": [row for run in drawn for row in run["accuracy"]],
        "clusters": [row for run in drawn for row in run["clusters"]],
        "flow": drawn[0]["flow"],
        "pictures": drawn[0]["shown"],
    }


def count_rows(counted: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per data set and number of heads: the least and the largest relative gap."""
    rows = []
    for key in dict.fromkeys((row["set"], row["heads"]) for row in counted):
        some = [row for row in counted if (row["set"], row["heads"]) == key]
        off = [row["off"] for row in some]
        rows.append(
            {
                "set": key[0],
                "heads": key[1],
                "optimum": some[0]["optimum"],
                "least off": min(off),
                "largest off": max(off),
                "starts": len(off),
                "heads of the optimum": some[0]["rank"],
            }
        )
    return rows


SHOWN = (
    ("Certified optimum of each block, and how far training is from it", "blocks"),
    ("Trained with m heads: relative distance to the optimum", "head counts"),
    ("Heads of the optimum by penalty β", "path"),
    ("Purity of clusters of tokens, by class of picture", "clusters"),
    ("Held-out accuracy of heads on frozen features", "accuracy"),
)
NOTES = (
    (
        "data sets are drawn anew: tokens are normal with mean squared norm 1, targets come from a"
        " block with two normal heads"
    ),
    (
        "CIFAR-100 and the backbones of the paper are in no package registry; pictures are"
        " Fashion-MNIST"
    ),
)
MAIN_COLUMNS = {
    "blocks": ("block", "loss", "optimum", "heads", "enough", "steps", "gap", "trained off"),
}
paper = Paper(
    "convex-duality",
    "Unravelling attention via convex duality (arXiv 2205.08078)",
    FULL,
    QUICK,
    measure,
    claims_of,
    charts,
    SHOWN,
    NOTES,
    columns=MAIN_COLUMNS,
    models=("model",),
    kinds=("vision",),
)

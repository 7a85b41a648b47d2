"""Every single path of a small frozen graph."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from ..anatomy.frozen import FrozenStack, FrozenStage
from ..errors import EigenlensError

MOST = 100_000


@dataclass(frozen=True, eq=False)
class Path:
    """One path: in every stage the branch and head it takes, or None for the skip.

    `term` (B, T, C) is what it adds to the output.
    """

    hops: tuple[tuple[str, int] | None, ...]
    term: Tensor

    def length(self, kind: str = "attention") -> int:
        return sum(hop is not None and hop[0] == kind for hop in self.hops)


def path_number(frozen: FrozenStack) -> int:
    """The number of paths; an MLP counts as a hop of its own."""
    return math.prod(len(_choices(stage)) for stage in frozen.stages())


def enumerate_paths(frozen: FrozenStack, most: int = MOST) -> Iterator[Path]:
    """Yield all paths; an error if there are more than `most`."""
    number = path_number(frozen)
    if number > most:
        raise EigenlensError(
            f"{number:,} paths are too many to enumerate (at most {most:,}); decompose_paths sums"
            " them without enumerating"
        )
    stages = list(frozen.stages())
    for hops in product(*(_choices(stage) for stage in stages)):
        y = frozen.inputs
        for stage, hop in zip(stages, hops):
            if hop is not None:
                kind, head = hop
                branch = next(branch for branch in stage.branches if branch.kind == kind)
                one = torch.tensor([head], device=y.device)
                y = branch.of_heads(y[None], one)[0] if kind == "attention" else branch.linear(y)
            if stage.after is not None:
                y = stage.after.linear(y)
        yield Path(hops, frozen.through_final_norm(y))


def _choices(stage: FrozenStage) -> list[tuple[str, int] | None]:
    found: list[tuple[str, int] | None] = [None] if stage.keeps else []
    for branch in stage.branches:
        if branch.kind != "cross":
            found += [(branch.kind, head) for head in range(branch.heads)]
    return found

"""Rank, residual and mixing of the tokens along the depth of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
from torch import Tensor

from ..captures import AttentionCall, Layer, Site
from ..captures.sites import field_of
from ..errors import EigenlensError
from . import geometry
from .intervals import t_interval_of_sums
from .statistic import State, add_sites, same_shape

TOKEN_METRICS = (
    "residual",
    "effective_rank",
    "stable_rank",
    "participation_ratio",
    "cosine",
    "high_frequency",
)
"""Metrics of the tokens that enter a block (point `input`) and leave it (`output`)."""
ATTENTION_METRICS = ("entropy", "singular_ratio", "dirichlet")
"""Metrics of the pattern of a block's self-attention (point `attention`).

Those of every head, and their mean under head None.
"""
TOKENS = ("all", "without sinks")

Point = Literal["input", "output", "attention"]
"""The points of a block at which something is measured."""
SHAPES = {"input": "2 6 1 3", "output": "2 6 1 3", "attention": "2 3 h 3"}
"""What a file must hold at each point: sets of tokens, metrics, heads and their mean, sums."""

PAIRS = 2**24
"""How many pairs of queries and keys a pattern holds at once."""


@dataclass(frozen=True)
class DepthNumber:
    """One metric at one point of a block: its mean over inputs, and its 95 % interval.

    The interval is None if there is only one input.
    """

    stack: str
    layer: int
    place: Point
    tokens: str
    metric: str
    head: int | None
    mean: float
    low: float | None
    high: float | None
    number: int


class DepthMetrics:
    """Sums `n, Σm, Σm²` over inputs of every metric m, at every block.

    Once over all tokens, and once without the sinks.

    `sinks` are how many of the valid tokens at the start and at the end the second set leaves out.
    Only every `every`-th input is measured. `centre` is what the residual is relative to: the token
    mean or the column median. Patterns are the model's own; if it has sink logits, their rows sum
    to less than 1, except in the set without sinks.

    Cost of a measured input: a Gram matrix and its eigenvalues (n³) for each stream and set of
    tokens, and for each head. Memory: a few hundred bytes per head.
    """

    def __init__(
        self,
        sinks: tuple[int, int] = (1, 0),
        every: int = 1,
        centre: Literal["mean", "median"] = "mean",
    ) -> None:
        if min(sinks) < 0:
            raise EigenlensError(
                f"sinks must be two numbers of tokens, at the start and at the end, not {sinks}"
            )
        if every < 1:
            raise EigenlensError(
                f"every must be at least 1 (every n-th input is measured), not {every}"
            )
        self.sinks, self.every, self.centre = sinks, every, centre
        self.sums: dict[str, Tensor] = {}  # `encoder/3/input` → (tokens, metrics, heads, 3) float64
        # what a block gave, as the next one takes it
        self._last: tuple[Tensor, int, Tensor | None, Tensor] | None = None

    @torch.no_grad()
    def update(self, layer: Layer, start: int = 0) -> None:
        """Measure a block; `start` is the position of the batch's first input among all inputs.

        It decides which inputs are measured.
        """
        first = -start % self.every
        if first >= len(layer.inputs):
            return
        chosen = slice(first, None, self.every)
        X, valid = layer.inputs[chosen], None if layer.valid is None else layer.valid[chosen]
        _check_finite(layer.site, X, valid)
        sets = self._sets(X, valid)
        known = self._last
        if (
            known is not None
            and known[0] is layer.inputs
            and known[1] == first
            and _equal(known[2], valid)
        ):
            values = known[3]
        else:
            values = self._of_tokens(X, sets)
        self._add(f"{layer.site}/input", values, sets)
        Y = layer.outputs[chosen]
        after = valid if Y.shape[:2] == X.shape[:2] else None  # a block may merge tokens
        _check_finite(layer.site, Y, after)
        outer = self._sets(Y, after)
        values = self._of_tokens(Y, outer)
        self._last = (layer.outputs, first, after, values)
        self._add(f"{layer.site}/output", values, outer)
        call = layer.calls[0] if layer.calls else None
        if call is not None and call.kind == "self" and _over(call, layer.inputs):
            self._add(
                f"{layer.site}/attention",
                self._of_attention(call.of_inputs(chosen), X, valid, sets),
                sets,
            )

    def _sets(self, X: Tensor, valid: Tensor | None) -> list[Tensor]:
        """Return the tokens of each set, (B, T) bool."""
        there = (
            torch.ones(X.shape[:2], dtype=torch.bool, device=X.device) if valid is None else valid
        )
        place, n = there.cumsum(1) - 1, there.sum(1, keepdim=True)
        front, end = self.sinks
        return [there, there & (place >= front) & (place < n - end)]

    def _of_tokens(self, X: Tensor, sets: list[Tensor]) -> Tensor:
        """Return the metrics of a stream, (B, tokens, metrics, 1)."""
        found = []
        for kept in sets:
            residual, high = geometry.spread(X, kept, self.centre)
            numbers = (residual, *geometry.ranks(X, kept), geometry.mean_cosine(X, kept), high)
            found.append(torch.stack(numbers, 1))
        return torch.stack(found, 1)[..., None]

    def _of_attention(
        self, call: AttentionCall, X: Tensor, valid: Tensor | None, sets: list[Tensor]
    ) -> Tensor:
        """Return metrics of a pattern, (B, tokens, metrics, H + 1); the last is the heads' mean."""
        B, H, T, _ = call.q.shape
        D = geometry.squared_distances(X, valid)
        size = max(1, PAIRS // (B * T * T))
        parts = []
        for some in range(0, H, size):
            # (B, h, T, T)
            P = (call if size >= H else call.of_heads(range(some, min(some + size, H)))).pattern()
            found = []
            for Q in (P, geometry.restricted(P, sets[1])):
                numbers = (
                    geometry.row_entropy(Q),
                    geometry.singular_ratio(Q),
                    geometry.dirichlet_energy(Q, D),
                )
                found.append(torch.stack(numbers, 1))
            parts.append(torch.stack(found, 1))
        heads = torch.cat(parts, 3)
        return torch.cat([heads, heads.mean(3, keepdim=True)], 3)

    def _add(self, name: str, values: Tensor, sets: list[Tensor]) -> None:
        """Add values (B, tokens, metrics, heads) of the inputs that have a token in the set."""
        counted = torch.stack([kept.any(1) for kept in sets], 1)[..., None, None].expand_as(values)
        values = torch.where(counted, values, 0.0)
        new = torch.stack([counted.double(), values, values.square()], -1).sum(0).cpu()
        if name in self.sums:
            same_shape(field_of(name)[0].full_label, tuple(self.sums[name].shape), tuple(new.shape))
            new = self.sums[name] + new
        self.sums[name] = new

    def merge(self, other: Self) -> None:
        add_sites(self.sums, other.sums, torch.add)

    def state(self) -> State:
        return {name: sums.contiguous() for name, sums in self.sums.items()}

    @classmethod
    def from_state(cls, state: State, **settings: Any) -> Self:
        metrics = cls(**settings)
        metrics.sums = dict(state)
        return metrics

    def result(self) -> tuple[DepthNumber, ...]:
        """Yield every metric at every point of every block, in the order of the layers."""
        numbers: list[DepthNumber] = []
        order = {"input": 0, "output": 1, "attention": 2}
        known = [(*field_of(name), sums) for name, sums in self.sums.items()]
        for site, point, sums in sorted(known, key=lambda found: (found[0], order[found[1]])):
            metrics = ATTENTION_METRICS if point == "attention" else TOKEN_METRICS
            for i, tokens in enumerate(TOKENS):
                for j, metric in enumerate(metrics):
                    for k, (n, first, second) in enumerate(sums[i, j].tolist()):
                        head = k if k < sums.shape[2] - 1 else None
                        if n:
                            mean, low, high = t_interval_of_sums(n, first, second)
                            where = (site.stack, site.layer, point, tokens, metric, head)
                            numbers.append(DepthNumber(*where, mean, low, high, int(n)))  # type: ignore[arg-type]
        return tuple(numbers)


def _over(call: AttentionCall, X: Tensor) -> bool:
    """Whether the pattern is over the tokens of the stream, not over windows or a memory."""
    B, _, T, _ = call.q.shape
    return X.shape[:2] == (B, T) and call.k.shape[2] == T


def _equal(one: Tensor | None, other: Tensor | None) -> bool:
    return one is other or (one is not None and other is not None and torch.equal(one, other))


def _check_finite(site: Site, X: Tensor, valid: Tensor | None) -> None:
    if not bool(torch.isfinite(X if valid is None else X[valid]).all()):
        raise EigenlensError(
            f"the tokens of block {site.full_label} are not finite: they overflow there, or the"
            " model or its inputs are damaged"
        )

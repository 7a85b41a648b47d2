"""The order of contraction, measured: `‖res(SA(1xᵀ + εR))‖ ~ ε^order` as ε → 0.

order 3  full attention: `P − 1qᵀ = O(ε²)`, as `E = scale · εR W_QK εRᵀ`, and it multiplies `εR`
order 1  a causal mask or a position bias: the rows of `P` differ at ε = 0, `P − 1qᵀ = O(1)`
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from ..errors import EigenlensError
from ..stats.geometry import composite_norm
from .bounds import residual, spread

Kind = Literal["full", "causal", "position bias"]
# ten per cent is not small yet; below 3e-4 rounding comes near
EPSILONS = tuple(10 ** (-1.5 - k / 4) for k in range(9))
NOISE = 1e-13
"""An output residual below this share of `‖εR‖ ‖W‖` is rounding and is not fitted."""


@dataclass(frozen=True)
class Order:
    """The slopes of `log ‖res(SA(X))‖` against `log ε`, one per instance.

    A slope is infinite if only rounding is left of the output.
    """

    kind: str
    slopes: tuple[float, ...]
    epsilons: tuple[float, ...]

    @property
    def mean(self) -> float:
        return math.fsum(self.slopes) / len(self.slopes)

    def row(self) -> dict[str, float | int | str | None]:
        figures = {"order": self.mean, "low": min(self.slopes), "high": max(self.slopes)}
        finite = {
            name: figure if math.isfinite(figure) else None for name, figure in figures.items()
        }
        return {"kind": self.kind, **finite, "instances": len(self.slopes)}


def slope_of(
    layer: Callable[[Tensor], Tensor],
    direction: Tensor,
    epsilons: Sequence[float] = EPSILONS,
    noise: float = NOISE,
) -> float:
    """The least-squares slope of `log ‖res(layer(εR))‖₁,∞` against `log ε`.

    `layer (T, C) → (T, C)` is any layer; it gets only the residual part `εR` and adds its own
    constant row. Outputs below `noise · ‖εR‖` are left out; with fewer than three others the slope
    is infinite.
    """
    points = []
    for epsilon in epsilons:
        r = epsilon * direction
        out = float(composite_norm(residual(layer(r))))
        if out > noise * float(composite_norm(r)):
            points.append((math.log(epsilon), math.log(out)))
    if len(points) < 3:
        return math.inf
    a, b = torch.tensor(points, dtype=torch.float64).unbind(1)
    a = a - a.mean()
    return float((a * b).sum() / a.square().sum())


@torch.no_grad()
def head_order(
    x: Tensor,
    weight_qk: Tensor,
    weight_vo: Tensor,
    scale: float,
    *,
    key_term: Tensor | None = None,
    bias: Tensor | None = None,
    epsilons: Sequence[float] = EPSILONS,
) -> float:
    """The order of one head, such as of a real model, about the mean of an input `x (T, C)`.

    `weight_qk`, `weight_vo (C, C)` as in `bounds.head_bound`; `key_term (C,)` is `W_K b_Q`, what a
    bias of the queries adds to the scores of every row: `scale · X key_term` (a bias of the keys
    adds row constants only). `bias (T, T)` is added to the scores and holds −inf where a mask
    excludes a pair. The direction R is the input's own residual, made so small that at ε = 1 no
    score of `1rᵀ + E` differs by more than 1 within a row: real heads are far from ε → 0 otherwise.
    Infinite for a head that leaves only rounding.
    """
    if (
        x.ndim != 2
        or weight_qk.shape != weight_vo.shape
        or tuple(weight_qk.shape) != (x.shape[-1],) * 2
    ):
        shapes = f"{tuple(x.shape)}, {tuple(weight_qk.shape)}, {tuple(weight_vo.shape)}"
        raise EigenlensError(f"a head's order needs x (T, C) and two weights (C, C), got {shapes}")
    x, w_qk, w = x.double(), weight_qk.double(), weight_vo.double()
    r = residual(x)
    mean = (x[:1] + (x - x[:1]).mean(0, keepdim=True))[0]  # (C,)
    to_keys = mean @ w_qk if key_term is None else mean @ w_qk + key_term.double()  # (C,)
    along = scale * to_keys @ r.T  # the r of 1rᵀ, linear in ε
    quadratic = float(spread(scale * r @ w_qk @ r.T).amax())
    size = max(float(along.amax() - along.amin()), math.sqrt(quadratic))
    r = r / size if size > 0 else r

    def head(r: Tensor) -> Tensor:
        # Left out: the scores' term X W_QK x, constant in a row, and the output's 1xᵀ W_VO,
        # constant in a column.
        scores = scale * (to_keys + r @ w_qk) @ r.T  # (T, T) = 1rᵀ + E
        scores = scores if bias is None else scores + bias.double()
        return torch.softmax(scores, -1) @ r @ w

    return slope_of(head, r, epsilons, NOISE * float(composite_norm(w)))


def contraction_order(
    kind: Kind = "full",
    *,
    tokens: int = 16,
    channels: int = 8,
    instances: int = 20,
    seed: int = 0,
    epsilons: Sequence[float] = EPSILONS,
) -> Order:
    """Measure the order over random Gaussian heads and inputs.

    Attention is `full`, has a `causal` mask, or a relative `position bias`.
    """
    if kind not in get_args(Kind):
        raise EigenlensError(
            f"unknown kind of attention {kind!r}: one of {', '.join(get_args(Kind))}"
        )
    if tokens < 2 or channels < 1 or instances < 1:
        raise EigenlensError(
            f"an order needs at least 2 tokens, 1 channel and 1 instance, got {tokens}, {channels}"
            f" and {instances}"
        )
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    slopes = []
    for _ in range(instances):
        bias = None
        if kind == "causal":
            bias = torch.full((tokens, tokens), -torch.inf, dtype=torch.float64).triu(1)
        elif kind == "position bias":
            distance = torch.arange(tokens)[:, None] - torch.arange(tokens)  # (T, T)
            bias = normal(2 * tokens - 1)[distance + tokens - 1]
        weight_qk, weight_vo = normal(channels, channels), normal(channels, channels)
        x = normal(1, channels) + normal(tokens, channels)
        slopes.append(
            head_order(x, weight_qk, weight_vo, channels**-0.5, bias=bias, epsilons=epsilons)
        )
    return Order(kind, tuple(slopes), tuple(epsilons))

"""The bounds of a whole layer `SA(X) = Σ_h P_h X W_h + 1bᵀ`.

By the triangle inequality those of its heads add up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import EigenlensError
from ..stats.geometry import composite_norm
from .bounds import HeadBound, head_bound, product, residual


@dataclass(frozen=True)
class LayerBound:
    """Bounds on the residual of `Σ_h P_h X W_h` about the token mean.

    A bound is None if it does not apply to one of the heads.
    """

    heads: tuple[HeadBound, ...]
    cubic: float | None  # Σ_h 4 γ_h β_h scale ‖R‖³
    published: float | None  # 4 γ β H scale ‖R‖³ with the largest γ and β of the heads
    unconditional: float | None
    sharp: float | None
    linear: float
    residual_in: float
    residual_out: float  # measured
    rounding: float

    @property
    def violated(self) -> tuple[str, ...]:
        """The names of bounds that the measured residual exceeds by more than rounding."""
        bounds = {
            name: getattr(self, name)
            for name in ("cubic", "published", "unconditional", "sharp", "linear")
        }
        return tuple(
            name
            for name, b in bounds.items()
            if b is not None and self.residual_out > b * (1 + 1e-9) + self.rounding
        )

    def row(self) -> dict[str, Any]:
        """The numbers of the layer as one plain row; those of its heads are in `heads`."""
        numbers = {k: v for k, v in asdict(self).items() if k != "heads"}
        plain = {
            k: None if v is not None and not math.isfinite(v) else v for k, v in numbers.items()
        }
        return {"number_of_heads": len(self.heads), **plain}


@torch.no_grad()
def layer_bound(
    x: Tensor,
    patterns: Tensor,
    weights_qk: Iterable[Tensor] | None,
    weights_vo: Iterable[Tensor],
    scale: float,
    *,
    applicable: bool,
    scores: Tensor | None = None,
    centre: Tensor | None = None,
) -> LayerBound:
    """The bounds of a layer on one input `x (T, C)` with `patterns (H, T, T)`.

    Arguments as in `head_bound`, one per head.

    The weights `(C, C)` may come one at a time from a generator: a large model's do not fit into
    memory together.
    """
    H = len(patterns)
    if H < 1:
        raise EigenlensError(
            "a layer without heads has no bound: give patterns (H, T, T) with H ≥ 1"
        )
    of_qk = [None] * H if weights_qk is None else weights_qk
    of_scores = [None] * H if scores is None else scores
    r = residual(x.double(), None if centre is None else centre.double())
    heads, out = [], torch.zeros_like(r)
    for p, w_qk, w, s in zip(patterns, of_qk, weights_vo, of_scores):
        heads.append(
            head_bound(x, p, w_qk, w, scale, applicable=applicable, scores=s, centre=centre)
        )
        out += p.double() @ r @ w.double()
    if len(heads) < H:
        raise EigenlensError(
            f"{H} patterns but weights of only {len(heads)} heads: give W_QK and W_VO for every"
            " head"
        )
    published = None
    if all(h.holds for h in heads):
        gamma, beta = max(h.gamma for h in heads), max(h.beta or 0.0 for h in heads)
        published = product(4 * gamma * H, beta, abs(scale), *[heads[0].residual_in] * 3)
    return LayerBound(
        heads=tuple(heads),
        cubic=_sum(h.cubic for h in heads),
        published=published,
        unconditional=_sum(h.unconditional for h in heads),
        sharp=_sum(h.sharp for h in heads),
        linear=sum(h.linear for h in heads),
        residual_in=heads[0].residual_in,
        residual_out=float(composite_norm(residual(out))),
        rounding=sum(h.rounding for h in heads),
    )


def _sum(bounds: Iterable[float | None]) -> float | None:
    total = 0.0
    for bound in bounds:
        if bound is None:
            return None
        total += bound
    return total

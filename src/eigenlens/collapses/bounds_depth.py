"""The bounds along a stack of layers, in logarithms.

Over L layers the cubic bound is raised to the power 3^L, far outside of any float: `log b_{l+1} =
log K_l + 3 log b_l`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import EigenlensError
from ..stats.geometry import composite_norm
from .bounds import LARGEST_D, mean_factor


@dataclass(frozen=True)
class LayerNorms:
    """The norms of a layer that the depth bounds need.

    Those of its weights, one per head, and of what follows the attention.
    """

    qk: tuple[float, ...]  # ‖W_QK,h‖₁
    vo: tuple[float, ...]  # ‖W_h‖₁,∞
    scale: float
    # λ of an MLP behind the attention, in the composite norm; see `mlp_lipschitz`
    lipschitz: float | None = None
    # γ_h measured about the token mean; None: the worst case √T
    gammas: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if (
            not self.qk
            or len(self.qk) != len(self.vo)
            or (self.gammas is not None and len(self.gammas) != len(self.qk))
        ):
            raise EigenlensError(
                f"a layer needs as many norms W_QK as W_VO (and γ), got {self.qk}, {self.vo},"
                f" {self.gammas}"
            )
        if (
            not min(*self.qk, *self.vo, *(self.gammas or ()), self.scale, self.lipschitz or 0.0)
            >= 0
        ):
            raise EigenlensError(f"norms, scale, λ and γ of a layer are not negative, got {self}")


@torch.no_grad()
def layer_norms(
    weights_qk: Iterable[Tensor],
    weights_vo: Iterable[Tensor],
    scale: float,
    lipschitz: float | None = None,
    gammas: tuple[float, ...] | None = None,
) -> LayerNorms:
    """Compute the norms of a layer's weights `(C, C)`, one pair per head."""
    qk = tuple(float(w.double().abs().sum(0).amax()) for w in weights_qk)
    return LayerNorms(
        qk,
        tuple(float(composite_norm(w.double())) for w in weights_vo),
        abs(scale),
        lipschitz,
        gammas,
    )


@torch.no_grad()
def mlp_lipschitz(weights: Iterable[Tensor], activation: float = 1.0) -> float:
    """The constant `λ = Π ‖W‖₁,∞ · ℓ^(n−1)` of an MLP with n weights.

    Between the weights is an elementwise activation of slope at most ℓ.

    Then `‖f(X) − 1f(x)ᵀ‖₁,∞ ≤ λ ‖X − 1xᵀ‖₁,∞`: an elementwise map scales both sums by ℓ, a matrix
    by its composite norm. ℓ is 1 for ReLU, 1.129 for GELU, 1.1 for SiLU.
    """
    norms = [float(composite_norm(w.double())) for w in weights]
    return math.prod(norms) * activation ** max(len(norms) - 1, 0)


def log_published(
    residual: float,
    layers: int,
    *,
    gamma: float,
    beta: float,
    scale: float,
    heads: int = 1,
    lipschitz: float = 1.0,
) -> float:
    """The log of `K^((3^L−1)/2) ‖res(X)‖^(3^L)` with `K = 4 γ β scale H λ`.

    It is computed by the recursion `b ← K b³`.
    """
    log_k = functools.reduce(_times, map(_log, (4 * gamma, beta, abs(scale), heads, lipschitz)))
    log_b = _log(residual)
    for _ in range(layers):
        log_b = _times(log_k, 3 * log_b)
    return log_b


@dataclass(frozen=True)
class DepthBound:
    """The logarithms of bounds on the residual about the token mean, at depths 0…L."""

    published: tuple[float, ...]  # the cubic bound of every layer fed into the next
    # Dobrushin's bound, with τ ≤ tanh(max D / 2), of every layer fed into the next
    sharp: tuple[float, ...]
    holds: tuple[bool, ...]  # max D ≤ 1.256 is certain in every layer up to this depth

    def rows(self) -> list[dict[str, float | int | bool | None]]:
        """One plain row per depth; None for a logarithm of zero or of an overflow."""
        return [
            {"depth": n, "log_published": _plain(p), "log_sharp": _plain(s), "holds": h}
            for n, (p, s, h) in enumerate(zip(self.published, self.sharp, self.holds))
        ]


def depth_bound(residual: float, layers: Sequence[LayerNorms], tokens: int) -> DepthBound:
    """Both bounds along a stack of attention layers, from the residual of its input.

    A layer may have an MLP. There are no skips, norms, masks and position biases: a SAN as in the
    paper.

    `published`: `b ← Σ_h 4 γ_h scale ‖W_QK,h‖₁ ‖W_h‖₁,∞ λ b³`, with γ = √T where none was measured.
    `sharp`: `b ← √(T−1) Σ_h tanh(scale ‖W_QK,h‖₁ b²/2) ‖W_h‖₁,∞ b`, times `2(1 − 1/T) λ` for an
    MLP, behind which the mean is another row. It needs no condition, is never above `published`
    with γ = √T, and where nothing contracts it grows by a constant factor only.
    """
    if tokens < 1 or not residual >= 0:
        raise EigenlensError(
            f"a depth bound needs a residual ≥ 0 and at least one token, got {residual} and"
            f" {tokens}"
        )
    published, sharp, holds = [_log(residual)], [_log(residual)], [True]
    for layer in layers:
        log_b, log_s = published[-1], sharp[-1]
        gammas = layer.gammas or (math.sqrt(tokens),) * len(layer.qk)
        lipschitz = 1.0 if layer.lipschitz is None else layer.lipschitz
        log_k = _log(
            4
            * layer.scale
            * lipschitz
            * sum(g * q * v for g, q, v in zip(gammas, layer.qk, layer.vo))
        )
        published.append(_times(log_k, 3 * log_b))
        # log of scale ‖W_QK‖₁ b² ≥ max D
        largest_d = _times(_log(layer.scale * max(layer.qk)), 2 * log_b)
        holds.append(holds[-1] and largest_d <= math.log(LARGEST_D))
        log_tau = [_log_tanh(_times(_log(layer.scale * q / 2), 2 * log_s)) for q in layer.qk]
        by_head = _log_sum([_times(tau, _log(v)) for tau, v in zip(log_tau, layer.vo)])
        behind = 1.0 if layer.lipschitz is None else mean_factor(tokens) * layer.lipschitz
        sharp.append(_times(_times(by_head, log_s), _log(math.sqrt(tokens - 1) * behind)))
    return DepthBound(tuple(published), tuple(sharp), tuple(holds))


def _log(x: float) -> float:
    return math.log(x) if x > 0 else -math.inf


def _times(a: float, b: float) -> float:
    """The logarithm of a product; zero times infinity is zero, so there is never a NaN."""
    return -math.inf if -math.inf in (a, b) else a + b


def _log_tanh(log_z: float) -> float:
    """The logarithm `log tanh z` from `log z`, where z itself may under- or overflow.

    It is never above `min(log z, 0)`.
    """
    if log_z < -18:  # tanh z = z(1 − z²/3 + …), and z² is below rounding
        return log_z
    return math.log(math.tanh(math.exp(log_z))) if log_z < 4 else 0.0


def _log_sum(logs: Sequence[float]) -> float:
    largest = max(logs)
    return (
        largest
        if math.isinf(largest)
        else largest + math.log(math.fsum(math.exp(v - largest) for v in logs))
    )


def _plain(x: float) -> float | None:
    return x if math.isfinite(x) else None

"""How much one attention head must shrink the residual: bounds, and what the head does.

With `X = 1xᵀ + R` the scores of a head without mask and position bias are row constants `+ 1rᵀ +
E`, `E = scale · R W_QK Rᵀ`. Row constants vanish in the softmax, so `P_ij = q_j e^{E_ij} / Σ_k q_k
e^{E_ik}` with `q = softmax(r)`, and the head gives `P X W = 1cᵀ + (P − 1qᵀ) R W`. All bounds are
bounds of `P − 1qᵀ` by the spread of a row, `D_i = max_j E_ij − min_j E_ij`. The derivation is in
docs/concepts/bounds.md. Everything is computed in float64.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from ..errors import EigenlensError
from ..stats.geometry import composite_norm

LARGEST_D = 1.256
"""The published cubic bound needs a `max D` of at most this, where `e^D − 1 ≤ 2D`."""


@dataclass(frozen=True)
class HeadBound:
    """Bounds on `‖res(P X W_VO)‖₁,∞`, the residual about the token mean, of one head on one input.

    Every bound here also holds for the smaller residual about the best constant row. A bound that
    does not apply is None.
    """

    max_d: float  # max_i D_i
    gamma: float  # √(Σ D_i / max D_i), between 1 and √T
    beta: float | None  # ‖W_QK‖₁ ‖W_VO‖₁,∞
    holds: bool  # max D ≤ 1.256, no mask, no position bias: the conditions of the cubic bound
    cubic: float | None  # 4 γ β scale ‖R‖³
    # √(Σ(e^D − 1) · max(e^D − 1)) ‖R‖ ‖W_VO‖; None where rows see different keys
    unconditional: float | None
    # 2(1 − 1/T) √(2 Σt · max t) ‖R‖ ‖W_VO‖, t = tanh(D/4); None where rows see different keys
    sharp: float | None
    dobrushin: float  # τ = ½ max_{i,i'} ‖P_i − P_i'‖₁
    # √(T − 1) τ ‖R‖ ‖W_VO‖: what τ says about the composite norm, masks and biases included
    linear: float
    residual_in: float  # ‖R‖₁,∞
    residual_out: float  # measured, about the token mean
    range_in: float  # largest column range max_i − min_i of X W_VO
    range_out: float  # of P X W_VO: at most τ times range_in
    rounding: float  # residuals below this are noise of the arithmetic that made the pattern

    @property
    def violated(self) -> tuple[str, ...]:
        """The names of bounds that the measured residual exceeds by more than rounding.

        Empty if the theory is right.
        """
        bounds = {
            name: getattr(self, name) for name in ("cubic", "unconditional", "sharp", "linear")
        }
        return tuple(
            name
            for name, b in bounds.items()
            if b is not None and self.residual_out > b * (1 + 1e-9) + self.rounding
        )

    def row(self) -> dict[str, float | bool | None]:
        """The bounds as one plain row; a bound that overflowed becomes None."""
        return {
            k: None if isinstance(v, float) and not math.isfinite(v) else v
            for k, v in asdict(self).items()
        }


def residual(x: Tensor, centre: Tensor | None = None) -> Tensor:
    """The residual `R = X − 1xᵀ` of `(…, T, C)`; x is `centre (…, C)` or the token mean.

    Equal tokens give exactly zero.
    """
    if centre is not None:
        return x - centre[..., None, :]
    # without this detour the mean of equal numbers can miss them by an ulp
    from_first = x - x[..., :1, :]
    return from_first - from_first.mean(-2, keepdim=True)


def spread(e: Tensor, seen: Tensor | None = None) -> Tensor:
    """The spread `D_i = max_j E_ij − min_j E_ij` over the keys of a row, `(…, T, T) → (…, T)`."""
    if seen is None:
        return e.amax(-1) - e.amin(-1)
    return e.masked_fill(~seen, -torch.inf).amax(-1) - e.masked_fill(~seen, torch.inf).amin(-1)


def deviation(scores: Tensor) -> tuple[Tensor, Tensor]:
    """The `E` of `scores = row constants + 1rᵀ + E`, and the pairs that are seen, `(…, T, T)`.

    `r` is the mean over rows of the row-centred scores. For scores `scale · X W_QK Xᵀ` this is
    `scale · R W_QK Rᵀ` about the token mean, up to row constants. Excluded pairs hold −inf in
    `scores` and 0 in `E`.
    """
    seen = ~torch.isneginf(scores)
    kept = scores.masked_fill(~seen, 0)
    for dim in (-1, -2):  # row constants first, then what all rows share
        number = seen.sum(dim, keepdim=True).clamp(min=1)
        kept = (kept - kept.sum(dim, keepdim=True) / number).masked_fill(~seen, 0)
    return kept, seen


def dobrushin(pattern: Tensor) -> Tensor:
    """The Dobrushin coefficient `τ(P) = ½ max_{i,i'} ‖P_i − P_i'‖₁`, `(…, T, S) → (…)`.

    It is between 0 (equal rows) and 1 (two rows share no key).

    It contracts distances between tokens: `‖y_i − y_i'‖ ≤ τ max_{j,j'} ‖x_j − x_j'‖` for `Y = PX`
    and any norm of a token, so also the range of every column.
    """
    return torch.cdist(pattern, pattern, p=1).amax((-2, -1)) / 2


@torch.no_grad()
def head_bound(
    x: Tensor,
    pattern: Tensor,
    weight_qk: Tensor | None,
    weight_vo: Tensor,
    scale: float,
    *,
    applicable: bool,
    scores: Tensor | None = None,
    centre: Tensor | None = None,
) -> HeadBound:
    """The bounds of one head on one input.

    `x (T, C)` is what the head reads (after a norm, if there is one; no padding), `pattern (T, T)`
    its probabilities, `weight_qk (C, C)` the product `W_Q W_Kᵀ` with scores `scale · X W_QK Xᵀ`,
    `weight_vo (C, C)` the product `W_V W_O`. `applicable` says that the scores are these products,
    up to terms of the query or of the key alone (biases of the projections are such terms): no
    mask, no position bias, no rotation, no cap. Where it is False, or `weight_qk` is None, `E`
    comes from the true `scores (T, T)` (−inf where excluded), or from `log pattern` without them.
    The residual of the input is about `centre (C,)`, the token mean by default; the bounds hold for
    every choice.
    """
    _check(x, pattern, weight_qk, weight_vo, scores)
    eps = max(torch.finfo(x.dtype).eps, torch.finfo(pattern.dtype).eps)
    x, p, w = x.double(), pattern.double(), weight_vo.double()
    T, C = x.shape
    r = residual(x, None if centre is None else centre.double())
    size, weight = float(composite_norm(r)), float(composite_norm(w))

    products = applicable and weight_qk is not None
    if products:
        assert weight_qk is not None
        w_qk = weight_qk.double()
        d = spread(scale * r @ w_qk @ r.T)  # (T,)
        same_keys = True
        largest_score = float((abs(scale) * x.abs() @ w_qk.abs() @ x.abs().T).amax())
    else:
        s = p.log() if scores is None else scores.double()
        e, seen = deviation(s)
        d = spread(e, seen)
        same_keys = bool((seen == seen[:1]).all())
        largest_score = float(s[seen].abs().amax())
    max_d = float(d.amax())
    gamma = math.sqrt(float(d.sum()) / max_d) if max_d > 0 else 1.0
    norm_qk = None if weight_qk is None else float(weight_qk.double().abs().sum(0).amax())
    beta = None if norm_qk is None else norm_qk * weight
    holds = products and max_d <= LARGEST_D

    y = p @ r @ w  # = P X W_VO up to a constant row, without the cancellation of a large mean
    tau = float(dobrushin(p))
    return HeadBound(
        max_d=max_d,
        gamma=gamma,
        beta=beta,
        holds=holds,
        cubic=(
            product(4 * gamma, beta, abs(scale), size, size, size)
            if holds and beta is not None
            else None
        ),
        unconditional=product(_off_rank_one(torch.expm1(d)), size, weight) if same_keys else None,
        sharp=(
            product(mean_factor(T) * math.sqrt(2) * _off_rank_one(torch.tanh(d / 4)), size, weight)
            if same_keys
            else None
        ),
        dobrushin=tau,
        linear=product(math.sqrt(T - 1) * tau, size, weight),
        residual_in=size,
        residual_out=float(composite_norm(residual(y))),
        range_in=_largest_range(r @ w),
        range_out=_largest_range(y),
        # softmax turns an error eps·|score| of a score into a relative error of a probability; sums
        # add T and C terms
        rounding=math.sqrt(T) * eps * (T + C) * (1 + largest_score) * size * weight,
    )


def mean_factor(tokens: int) -> float:
    """The factor `‖I − 11ᵀ/T‖₁,∞ = 2(1 − 1/T)`.

    By so much the residual about the mean can exceed the one about another constant row.
    """
    return 2 * (1 - 1 / tokens)


def _off_rank_one(d: Tensor) -> float:
    """The root `√(Σ d_i · max d_i)`, without overflow of the product."""
    return math.sqrt(float(d.sum())) * math.sqrt(float(d.amax()))


def product(*factors: float) -> float:
    """A product in which zero times infinity is zero: a bound times a zero residual is zero."""
    return 0.0 if 0.0 in factors else math.prod(factors)


def _largest_range(y: Tensor) -> float:
    return float((y.amax(0) - y.amin(0)).amax())


def _check(
    x: Tensor, pattern: Tensor, weight_qk: Tensor | None, weight_vo: Tensor, scores: Tensor | None
) -> None:
    if x.ndim != 2 or x.shape[0] < 1 or x.shape[1] < 1:
        raise EigenlensError(
            f"a head's input must be (tokens, channels), got {tuple(x.shape)}: give one input"
            " without padding"
        )
    if not bool(x.isfinite().all()):
        raise EigenlensError(
            f"a head's input must be finite, {int((~x.isfinite()).sum())} of its numbers are not:"
            " leave it out"
        )
    T, C = x.shape
    wanted = {"pattern": (pattern, (T, T)), "weight_vo": (weight_vo, (C, C))}
    wanted |= {"weight_qk": (weight_qk, (C, C))} if weight_qk is not None else {}
    wanted |= {"scores": (scores, (T, T))} if scores is not None else {}
    for name, (given, shape) in wanted.items():
        if given is not None and tuple(given.shape) != shape:
            raise EigenlensError(
                f"{name} must be {shape} for an input of {(T, C)}, got {tuple(given.shape)}"
            )
    total = pattern.double().sum(-1)
    if not bool(((total - 1).abs() <= 1e-2).all()):
        worst = float(total[(total - 1).abs().nan_to_num(torch.inf).argmax()])
        raise EigenlensError(
            f"the rows of a pattern must sum to 1, one sums to {worst:g}: leave padding out; "
            "heads with sink logits have no such bound"
        )

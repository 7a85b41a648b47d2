"""Random attention of T tokens.

Measured are its spectrum, the rank of what goes through it, and the gradients of its weights.

A layer is `X_l = A X_{l−1} W_l` with `W_l ~ N(0, 1)`, begun with isometric tokens, `X_0 X_0ᵀ = I`.
The outlier of A is removed by `A⊥ = A − 11ᵀ/T`, under a causal mask by the uniform matrix over the
keys that a query sees. With `skip` the layer's input is added, with `norm` every token is then
normalised.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Weigh = Callable[[Tensor, int], Tensor]
"""The attention matrix (T, T) of the tokens X (T, d) in a layer."""
MODELS = ("Markov", "key-query")


@dataclass(frozen=True)
class Variant:
    """Whether the outlier is removed, tokens are normalised, and a layer's input is added."""

    removed: bool = False
    norm: bool = False
    skip: bool = False

    @property
    def name(self) -> str:
        return ", ".join(
            ["A⊥" if self.removed else "A", *["norm"] * self.norm, *["skip"] * self.skip]
        )


VARIANTS = tuple(
    Variant(removed, norm, skip)
    for norm in (False, True)
    for skip in (False, True)
    for removed in (False, True)
)


def markov(T: int, draw: torch.Generator, causal: bool = False) -> Tensor:
    """`softmax(G)` by rows with `G ~ N(−ln 2/2, ln 2)`: (T, T).

    The exponentials of G have mean 1 and variance 1.
    """
    G = (
        math.sqrt(math.log(2)) * torch.randn(T, T, generator=draw, dtype=torch.float64)
        - math.log(2) / 2
    )
    return _softmax(G, causal)


def key_query(X: Tensor, draw: torch.Generator, causal: bool = False) -> Tensor:
    """`softmax(X W_Q W_Kᵀ Xᵀ / √d)` with `W_Q, W_K ~ N(0, 1)` for tokens X (T, d): (T, T)."""
    d = X.shape[1]
    q, k = (X @ torch.randn(d, d, generator=draw, dtype=X.dtype) for _ in range(2))
    return _softmax(q @ k.T / math.sqrt(d), causal)


def _softmax(scores: Tensor, causal: bool) -> Tensor:
    return (
        scores.masked_fill(torch.ones_like(scores).triu(1) > 0, -torch.inf) if causal else scores
    ).softmax(1)


def isometric(T: int, d: int, draw: torch.Generator) -> Tensor:
    """Tokens with `X Xᵀ = I`, (T, d), for T ≤ d."""
    return torch.linalg.qr(torch.randn(d, T, generator=draw, dtype=torch.float64)).Q.T


def uniform(T: int, causal: bool = False) -> Tensor:
    """`11ᵀ/T`, or under a causal mask `1/(i+1)` at the keys up to i: (T, T)."""
    ones = torch.ones(T, T, dtype=torch.float64)
    ones = ones.tril() if causal else ones
    return ones / ones.sum(1, keepdim=True)


def generator(*seeds: int) -> torch.Generator:
    """Numbers that depend on all the seeds."""
    mixed = 0
    for seed in seeds:
        mixed = (mixed * 1_000_003 + seed + 1) % (1 << 62)
    return torch.Generator().manual_seed(mixed)


def attention_of(model: str, T: int, d: int, draw: torch.Generator, causal: bool = False) -> Tensor:
    """A (T, T) of the first layer of a model of `MODELS`."""
    return (
        markov(T, draw, causal)
        if model == "Markov"
        else key_query(isometric(T, d, draw), draw, causal)
    )


def attention_by_layer(model: str, T: int, seed: int) -> Weigh:
    """The attention of every layer.

    In the Markov model it is drawn anew, in the key-query model it depends on the tokens.
    """
    return lambda X, layer: (
        markov(T, generator(seed, layer, 1))
        if model == "Markov"
        else key_query(X, generator(seed, layer, 2))
    )


def stable_rank(X: Tensor) -> float:
    """`Σ s_i² / max s_i²` over the singular values of `Σ = XXᵀ`, for X (T, d).

    0 where all tokens are zero.
    """
    if not X.any():
        return 0.0
    fourth = torch.linalg.svdvals(X / X.abs().max()) ** 4
    return float(fourth.sum() / fourth.max())


def spectrum(A: Tensor) -> dict[str, float]:
    """The outlier and the edge of the bulk: `s₁`, `s₂√T`, `|λ₂|√T`, and `s₁√T` of A⊥."""
    T = len(A)
    s, size = torch.linalg.svdvals(A), torch.linalg.eigvals(A).abs().sort(descending=True).values
    rest = torch.linalg.matrix_norm(A - uniform(T), 2)
    root = math.sqrt(T)
    return {
        "s1": float(s[0]),
        "s2·√T": float(s[1]) * root,
        "λ2·√T": float(size[1]) * root,
        "removed s1·√T": float(rest) * root,
    }


def layer_outputs(X: Tensor, W: list[Tensor], attention: Weigh, variant: Variant) -> list[Tensor]:
    """X after every layer, each (T, d)."""
    out, U = [], uniform(len(X))
    for layer, weight in enumerate(W):
        Y = attention(X, layer) @ X
        if variant.removed:
            rest = Y - U @ X
            # of tokens that are all equal rounding alone would be left
            Y = rest * (rest.norm() > 1e-12 * Y.norm())
        Y = Y @ weight
        Y = X + Y if variant.skip else Y
        X = torch.nn.functional.layer_norm(Y, Y.shape[1:]) if variant.norm else Y
        out.append(X)
    return out


def isometric_start(T: int, d: int, depth: int, seed: int) -> tuple[Tensor, list[Tensor]]:
    """Isometric tokens (T, d) and the value weights (d, d) of every layer."""
    draw = generator(seed, T, 3)
    return isometric(T, d, draw), [
        torch.randn(d, d, generator=draw, dtype=torch.float64) for _ in range(depth)
    ]


def gradient_norm(
    model: str, T: int, d: int, depth: int, variant: Variant, seed: int, probes: int
) -> float:
    """`‖∂X_L / ∂W_1‖_F`, from `E‖Jᵀz‖² = ‖J‖²` over random z: the mean of some probes.

    For the Markov model without norm and skip `X_L = A_L⋯A_1 X_0 W_1 W_2⋯W_L`, and it is `‖A_L⋯A_1
    X_0‖ ‖W_2⋯W_L‖`. The square of the second factor is about `d^L`. The first stays near 1 with A,
    whose outlier goes through; with A⊥ every layer after the first takes a factor of `1/T` from its
    square. The norm grows with T = d as `T^(L/2)`, and without the outlier as `T^(1/2)`.
    """
    X, W = isometric_start(T, d, depth, seed)
    W[0].requires_grad_()
    last = layer_outputs(X, W, attention_by_layer(model, T, seed), variant)[-1]
    draw, squares = generator(seed, T, 4), []
    for _ in range(probes):
        z = torch.randn(T, d, generator=draw, dtype=torch.float64)
        (found,) = torch.autograd.grad((last * z).sum(), W[0], retain_graph=True)
        squares.append(float(found.square().sum()))
    return math.sqrt(sum(squares) / probes)

"""Blocks as linear maps of one matrix Z.

Each has the map, its adjoint, and the block with heads that it stands for.

A block with heads `(W_1j, W_2j)` is linear in each of the two, so in `Z = Σ_j vec(W_1j) vec(W_2j)ᵀ`
(vec row by row), and the penalty `β/2 Σ_j(‖W_1j‖² + ‖W_2j‖²)`, least over the ways to write Z, is
`β‖Z‖_*` as soon as there are as many heads as Z can have rank. With four indices, `Z[a,k,l,b] = Σ_j
W_1j[a,k] W_2j[l,b]`:

- linear attention  `Σ_j (X W_1j Xᵀ) X W_2j = Σ_kl G[k,l] X Z^(k,l)`, `G = XᵀX`, `Z^(k,l) =
  Z[:,k,l,:]`
- gated attention   `Σ_p Σ_j (M_p ⊙ X W_1j Xᵀ) X W_2j`, in which row t has `G_t = Xᵀ diag(M_p[t,:])
  X` in place of G
- linear mixer      `Σ_j W_1j X W_2j = Σ_kl X[k,l] Z^(k,l)`
- Fourier operator  `Σ_j (circ(X) w_1j) w_2jᵀ = circ(X) Z`, a convolution round the circle of tokens

No map forms features of s·d³ numbers per sample: G is contracted with Z first, by one product of
matrices, and X after it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch
from torch import Tensor

from ...errors import EigenlensError
from .losses import Loss


class ConvexBlock(ABC):
    """A block on inputs X (n, s, d) with outputs (n, s, c).

    `left` and `right` are the shapes of a head's two matrices.

    >>> LinearAttention(torch.randn(24, 5, 3), 2).shape  # groups, d², dc
    (1, 9, 6)
    """

    name: str
    left: tuple[int, ...]
    right: tuple[int, ...]
    groups = 1
    """P: matrices Z_p, each with a nuclear norm of its own."""

    def __init__(self, X: Tensor, c: int) -> None:
        if X.ndim != 3 or not X.is_floating_point() or not X.numel():
            raise EigenlensError(
                f"inputs are numbers (n, s, d), at least one each; got {X.dtype} of shape"
                f" {tuple(X.shape)}"
            )
        if not bool(X.isfinite().all()):
            raise EigenlensError("some inputs are not finite; leave them out")
        if c < 1:
            raise EigenlensError(f"a block gives 1 number or more for each token, not {c}")
        self.X, self.c = X, c
        self.n, self.s, self.d = X.shape

    @property
    def shape(self) -> tuple[int, int, int]:
        """(P, numbers in W_1, numbers in W_2): the shape of Z."""
        return self.groups, prod(self.left), prod(self.right)

    @property
    def heads(self) -> int:
        """The number of heads from which on the block with heads and the convex problem are one.

        It is P · min(rows, columns).
        """
        return self.groups * min(self.shape[1:])

    @abstractmethod
    def apply(self, Z: Tensor) -> Tensor:
        """Weights (P, rows, columns) to outputs (n, s, c)."""

    @abstractmethod
    def adjoint(self, R: Tensor) -> Tensor:
        """(n, s, c) → (P, rows, columns): the transpose of `apply`."""

    @abstractmethod
    def attend(self, W1: Tensor, W2: Tensor, gate: Tensor) -> Tensor:
        """The block with heads: W_1 (m, *left), W_2 (m, *right), groups (m,) → (n, s, c)."""

    @abstractmethod
    def kept(self) -> int:
        """How many numbers are held at most.

        Those that are computed once, and those of the largest step between Z and the outputs.
        """


class LinearAttention(ConvexBlock):
    """`Σ_j (X W_1j Xᵀ) X W_2j`, W_1 (d, d), W_2 (d, c)."""

    name = "linear attention"

    def __init__(self, X: Tensor, c: int) -> None:
        super().__init__(X, c)
        self.left, self.right = (self.d, self.d), (self.d, c)

    @cached_property
    def gram(self) -> Tensor:
        return (self.X.mT @ self.X).flatten(1)  # (n, d²): G[k,l]

    def apply(self, Z: Tensor) -> Tensor:
        d, c = self.d, self.c
        # (n, d·c): Σ_kl G[k,l] Z[a,k,l,b]
        A = self.gram @ Z.view(d, d, d, c).permute(1, 2, 0, 3).reshape(d * d, d * c)
        return self.X @ A.view(-1, d, c)

    def adjoint(self, R: Tensor) -> Tensor:
        d, c = self.d, self.c
        B = (self.X.mT @ R).flatten(1)  # (n, d·c): Σ_t X[t,a] R[t,b]
        return (self.gram.T @ B).view(d, d, d, c).permute(2, 0, 1, 3).reshape(1, d * d, d * c)

    def attend(self, W1: Tensor, W2: Tensor, gate: Tensor) -> Tensor:
        X = self.X[:, None]  # (n, 1, s, d)
        return (X @ W1 @ X.mT @ (X @ W2)).sum(1)  # over heads of (n, m, s, c)

    def kept(self) -> int:
        return self.n * self.d**2 + 2 * self.n * self.d * self.c


class GatedAttention(ConvexBlock):
    """`Σ_p Σ_{j in p} (M_p ⊙ X W_1j Xᵀ) X W_2j` with fixed gates.

    `M_p = 1{X H_p Xᵀ ≥ 0}`, H (P, d, d).

    A ReLU is such a gate with H_p = W_1j; here the gates are drawn, and stay.
    """

    name = "gated-ReLU attention"

    def __init__(self, X: Tensor, c: int, H: Tensor) -> None:
        super().__init__(X, c)
        if H.ndim != 3 or not len(H) or tuple(H.shape[1:]) != (self.d, self.d):
            raise EigenlensError(
                f"gates are matrices (P, {self.d}, {self.d}), at least one; got {tuple(H.shape)}"
            )
        self.H, self.groups = H.to(X), len(H)
        self.left, self.right = (self.d, self.d), (self.d, c)

    def mask(self, p: int) -> Tensor:
        return (self.X @ self.H[p] @ self.X.mT >= 0).to(self.X.dtype)  # (n, s, s)

    @cached_property
    def gram(self) -> Tensor:
        """G_t of every token and gate, (P, n·s, d²)."""
        pairs = (self.X[..., :, None] * self.X[..., None, :]).flatten(2)  # (n, s, d²): x_t x_tᵀ
        made = pairs.new_empty(self.groups, self.n * self.s, self.d**2)
        for p in range(self.groups):
            torch.matmul(self.mask(p), pairs, out=made[p].view(pairs.shape))
        return made

    def apply(self, Z: Tensor) -> Tensor:
        d, c = self.d, self.c
        A = self.X.new_zeros(self.n * self.s, d * c)
        for gram, one in zip(self.gram, Z):
            A.addmm_(gram, one.view(d, d, d, c).permute(1, 2, 0, 3).reshape(d * d, d * c))
        return torch.einsum("nsa,nsab->nsb", self.X, A.view(self.n, self.s, d, c))

    def adjoint(self, R: Tensor) -> Tensor:
        d, c = self.d, self.c
        B = (self.X[..., None] * R[..., None, :]).view(-1, d * c)  # (n·s, d·c)
        return (
            (self.gram.mT @ B).view(-1, d, d, d, c).permute(0, 3, 1, 2, 4).reshape(-1, d * d, d * c)
        )

    def attend(self, W1: Tensor, W2: Tensor, gate: Tensor) -> Tensor:
        X, given = self.X[:, None], gate.tolist()
        M = {p: self.mask(p) for p in set(given)}
        masks = torch.stack([M[p] for p in given], 1)  # (n, m, s, s)
        return ((masks * (X @ W1 @ X.mT)) @ (X @ W2)).sum(1)

    def kept(self) -> int:
        each = self.n * self.s
        return each * (self.groups + 1) * self.d**2 + each * self.s + 2 * each * self.d * self.c


class LinearMixer(ConvexBlock):
    """`Σ_j W_1j X W_2j`, W_1 (s, s) over the tokens, W_2 (d, c) over their numbers."""

    name = "linear mixer"

    def __init__(self, X: Tensor, c: int) -> None:
        super().__init__(X, c)
        self.left, self.right = (self.s, self.s), (self.d, c)

    def apply(self, Z: Tensor) -> Tensor:
        s, d, c = self.s, self.d, self.c
        return (
            self.X.flatten(1) @ Z.view(s, s, d, c).permute(1, 2, 0, 3).reshape(s * d, s * c)
        ).view(-1, s, c)

    def adjoint(self, R: Tensor) -> Tensor:
        s, d, c = self.s, self.d, self.c
        return (
            (self.X.flatten(1).T @ R.flatten(1))
            .view(s, d, s, c)
            .permute(2, 0, 1, 3)
            .reshape(1, s * s, d * c)
        )

    def attend(self, W1: Tensor, W2: Tensor, gate: Tensor) -> Tensor:
        return (W1 @ self.X[:, None] @ W2).sum(1)

    def kept(self) -> int:
        return self.n * self.s * (self.d + self.c)


class FourierOperator(ConvexBlock):
    """`Σ_j (circ(X) w_1j) w_2jᵀ`, w_1 (s, d), w_2 (c).

    `circ(X)[t, (r,a)] = X[t − r mod s, a]` (s, s·d).

    circ(X) is never formed: round the circle of tokens `circ(X) Z` is a convolution, so a product
    in Fourier space.
    """

    name = "Fourier operator"

    def __init__(self, X: Tensor, c: int) -> None:
        super().__init__(X, c)
        self.left, self.right = (self.s, self.d), (c,)

    @cached_property
    def spectrum(self) -> Tensor:
        return torch.fft.rfft(self.X, dim=1).transpose(0, 1).contiguous()  # (f, n, d)

    def apply(self, Z: Tensor) -> Tensor:
        filters = torch.fft.rfft(Z.view(self.s, self.d, self.c), dim=0)  # (f, d, c)
        return torch.fft.irfft(self.spectrum @ filters, n=self.s, dim=0).transpose(0, 1)

    def adjoint(self, R: Tensor) -> Tensor:
        found = self.spectrum.mH @ torch.fft.rfft(R, dim=1).transpose(0, 1)  # (f, d, c)
        return torch.fft.irfft(found, n=self.s, dim=0).reshape(1, self.s * self.d, self.c)

    def attend(self, W1: Tensor, W2: Tensor, gate: Tensor) -> Tensor:
        # (n, t, r, d): X[t − r]
        shifted = torch.stack([self.X.roll(r, dims=1) for r in range(self.s)], 2)
        return torch.einsum("ntra,mra,mb->ntb", shifted, W1, W2)

    def kept(self) -> int:
        return 2 * (self.s // 2 + 1) * self.n * (self.d + 2 * self.c)  # complex numbers are two


@dataclass(frozen=True, eq=False)
class Problem:
    """`min_Z F(block(Z)) + β Σ_p ‖Z_p‖_*`.

    With `pooled` F sees the mean over tokens, (n, 1, c), as a classifier does.
    """

    block: ConvexBlock
    loss: Loss
    pooled: bool = False

    def __post_init__(self) -> None:
        block = self.block
        wanted = (block.n, 1 if self.pooled else block.s, block.c)
        if tuple(self.loss.shape) != wanted:
            raise EigenlensError(
                f"the block gives {wanted}, the loss takes {tuple(self.loss.shape)}; these must be"
                " the same"
            )
        object.__setattr__(self, "loss", self.loss.on(block.X))

    def apply(self, Z: Tensor) -> Tensor:
        return self.pool(self.block.apply(Z))

    def pool(self, out: Tensor) -> Tensor:
        return out.mean(1, keepdim=True) if self.pooled else out

    def adjoint(self, R: Tensor) -> Tensor:
        return self.block.adjoint(
            R.expand(-1, self.block.s, -1) / self.block.s if self.pooled else R
        )

    def beta_max(self) -> float:
        """`max_p ‖(A*∇F(0))_p‖₂`: from this β on, Z = 0 is the optimum."""
        zero = self.block.X.new_zeros(self.block.shape)
        return float(
            torch.linalg.matrix_norm(
                self.adjoint(self.loss.gradient(self.apply(zero))), ord=2
            ).max()
        )


def convex_memory(problem: Problem) -> int:
    """Bytes that a solution holds at its largest.

    `b·(n·s·d + kept + 8·n·s·c + 14·P·rows·columns + 6·P·min(rows, columns)²)`.

    b bytes per number. `kept` is n(d² + 2dc) of linear attention, n·s((P+1)d² + s + 2dc) of gated
    attention, n·s(d + c) of the mixer and (s + 2)·n·(d + 2c) of the Fourier operator. Then come the
    outputs and gradients of a step, and its matrices Z with their singular vectors. Features of all
    products, n·s·d³ numbers per gate, are never held.
    """
    block = problem.block
    groups, rows, columns = block.shape
    numbers = block.X.numel() + block.kept() + 8 * block.n * block.s * block.c
    numbers += 14 * groups * rows * columns + 6 * groups * min(rows, columns) ** 2
    return block.X.element_size() * numbers


def check_fits(problem: Problem, gigabytes: float) -> None:
    """Raise an error if a solution would hold more than that, before anything is computed."""
    if (needed := convex_memory(problem)) > gigabytes * 1e9:
        block = problem.block
        sizes = f"n={block.n}, s={block.s}, d={block.d}, c={block.c}"
        gates = f", {block.groups} gates" if block.groups > 1 else ""
        raise EigenlensError(
            f"{block.name} of {sizes}{gates} takes {needed / 1e9:.3g} GB, more than the limit of"
            f" {gigabytes:g} GB; reduce the features (d), take fewer samples, or raise gigabytes"
        )

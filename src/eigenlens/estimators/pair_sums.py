"""Sums over the pairs that are attended, from which projections are fitted on them.

The estimate `x_i·y_j` with `x = P_Qᵀq`, `y = P_Kᵀk` and a free constant for each row has over the
n valid pairs of N inputs the mean squared error

    f(M) = 1/n Σ_i Σ_j (s̃_ij − x_iᵀ M ỹ_ij)²

where x and y are the first R coordinates of `joint`, in which the projections are M = A Bᵀ (R, R),
and a tilde takes the mean over the keys that query i sees. With `G_i = Σ_j ỹ_ij ỹ_ijᵀ`,

    n f(M) = Σ s̃² − 2⟨M, L⟩ + Σ_i x_iᵀ M G_i Mᵀ x_i,    L = Σ_i x_i (Σ_j s̃_ij ỹ_ij)ᵀ.

So `L` and `Σ_i x_i x_iᵀ ⊗ G_i`, which is symmetric in both factors, say everything of all M.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..captures import AttentionCall

ROWS = 32
"""Queries of an input that are used; they are spread over it, others in each input."""


@dataclass(frozen=True)
class Quadratic:
    """`f(M) = const − 2⟨M, linear⟩ + Σ M_ac M_bd four_abcd` of one head."""

    const: Tensor  # ()
    linear: Tensor  # (R, R)
    four: Tensor  # (R, R, R, R)

    def __call__(self, M: Tensor) -> float:
        around = torch.einsum("abcd,bd->ac", self.four, M)
        return float(self.const - 2 * (M * self.linear).sum() + (M * around).sum())

    def mixed(self, other: Quadratic, share: float) -> Quadratic:
        """`(1 − share)` of this and `share` of the other."""
        pairs = zip(vars(self).values(), vars(other).values())
        return Quadratic(*((1 - share) * mine + share * theirs for mine, theirs in pairs))


@dataclass
class PairSums:
    """The sums of one site over inputs, `(H, …)`; they can be merged.

    Cost per input and head: `R²` multiply-adds for each key and for each coordinate pair of the
    `ROWS` queries, `ROWS·(R²/2)(S + R²/2)`. Memory per head: `(R(R+1)/2)²` numbers in float32.
    """

    to_x: Tensor  # (H, D, R)
    to_y: Tensor
    sums: dict[str, Tensor] = field(default_factory=dict)
    inputs: int = 0

    @torch.no_grad()
    def add(self, call: AttentionCall) -> None:
        """Add one call: the products `scale · q·k` of its valid pairs, before bias and cap."""
        q, k = call.scaled_q, call.keys
        x, y = q @ self.to_x.to(q), k @ self.to_y.to(k)  # (B, H, T, R), (B, H, S, R)
        (B, H, T, R), every = x.shape, max(1, x.shape[2] // ROWS)
        valid = call.valid().expand(B, H, T, -1)
        found = {
            "const": q.new_zeros(H, dtype=torch.float64),
            "number": q.new_zeros(H, dtype=torch.float64),
            "linear": q.new_zeros(H, R, R),
            "four": q.new_zeros(H, R * (R + 1) // 2, R * (R + 1) // 2),
        }
        for b in range(B):
            rows = slice((self.inputs + b) % every, None, every)
            for h in range(H):
                v = valid[b, h, rows].to(q)  # (t, S)
                n = v.sum(1, keepdim=True)
                s = (q[b, h, rows] @ k[b, h].T) * v
                s = (s - s.sum(1, keepdim=True) / n.clamp_min(1)) * v
                sums = v @ y[b, h]
                around = v @ _products(y[b, h]) - _products(sums) / n.clamp_min(1)  # G_i
                found["const"][h] += s.square().sum()
                found["number"][h] += n.sum()
                found["linear"][h] += x[b, h, rows].T @ (s @ y[b, h])
                found["four"][h] += _products(x[b, h, rows]).T @ around
        self._take(found)
        self.inputs += B

    def _take(self, found: dict[str, Tensor]) -> None:
        for name, value in found.items():
            self.sums[name] = self.sums[name] + value.cpu() if name in self.sums else value.cpu()

    def merged(self, other: PairSums) -> PairSums:
        """The sums over the inputs of both; the coordinates must be the same."""
        together = PairSums(self.to_x, self.to_y, {}, self.inputs + other.inputs)
        for part in (self, other):
            together._take(part.sums)
        return together

    def quadratic(self, head: int) -> Quadratic:
        """The mean squared error over the pairs, as a function of M, in float64."""
        R, n = self.to_x.shape[-1], self.sums["number"][head].clamp_min(1)
        four = self.sums["four"][head].double() / n  # (ab, cd)
        four = _unpacked(_unpacked(four, R).permute(1, 2, 0), R).permute(2, 3, 0, 1)
        const, linear = (self.sums[name][head].double() / n for name in ("const", "linear"))
        return Quadratic(const, linear, four)


def _products(x: Tensor) -> Tensor:
    """The upper triangles of `x xᵀ`, `(n, R)` → `(n, R(R+1)/2)`."""
    i, j = torch.triu_indices(x.shape[1], x.shape[1], device=x.device)
    return x[:, i] * x[:, j]


def _unpacked(triangles: Tensor, R: int) -> Tensor:
    """Symmetric matrices from upper triangles, `(…, R(R+1)/2)` → `(…, R, R)`."""
    i, j = torch.triu_indices(R, R)
    m = triangles.new_empty(*triangles.shape[:-1], R, R)
    m[..., i, j] = triangles
    m[..., j, i] = triangles
    return m

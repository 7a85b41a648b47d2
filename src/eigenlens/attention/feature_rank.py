"""Attention with queries and keys in r of their d dimensions: the joint subspace that serves their products best."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FLOOR = 1e-7
"""Directions with less than this share of the largest variance count as having it: a constant head has none at all."""


def joint_subspace(queries: Tensor, keys: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """`A, B (H, d, r)` for which `qᵀA Bᵀk` has the least mean squared distance to `qᵀk`.

    With second moments `C_q = RRᵀ`, `C_k = TTᵀ` (H, d, d) that distance is `‖Rᵀ (I − ABᵀ) T‖²_F`, so with the SVD
    `RᵀT = UΣVᵀ` it is `A = R^{−ᵀ} U_r Σ_r^½`, `B = T^{−ᵀ} V_r Σ_r^½`: a balanced truncation. At r = d, `ABᵀ = I`.
    """
    (a, a_inverse), (b, b_inverse) = _root(queries.double()), _root(keys.double())
    u, s, vh = torch.linalg.svd(a.mT @ b)
    half = s[:, None, :rank].sqrt()  # (H, 1, r)
    return a_inverse.mT @ (u[..., :rank] * half), b_inverse.mT @ (vh.mT[..., :rank] * half)


def _root(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """A square root `A` and its inverse of `AAᵀ` (H, d, d), with a floor under the eigenvalues."""
    values, vectors = torch.linalg.eigh((matrix + matrix.mT) / 2)
    top = values[:, -1:]
    values = values.clamp_min(0).maximum(FLOOR * torch.where(top > 0, top, torch.ones_like(top)))
    return vectors * values.sqrt()[:, None, :], (vectors / values.sqrt()[:, None, :]).mT


class FeatureRank(nn.Module):
    """`softmax((QA)(KB)ᵀ/√d) V` with `A, B (H, d, r)`, learned further where `learned`."""

    queries: Tensor
    keys: Tensor

    def __init__(self, queries: Tensor, keys: Tensor, learned: bool = True) -> None:
        super().__init__()
        for name, x in (("queries", queries), ("keys", keys)):
            if learned:
                setattr(self, name, nn.Parameter(x.float().clone()))
            else:
                self.register_buffer(name, x.float().clone())

    def forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
        return F.scaled_dot_product_attention(q @ self.queries, k @ self.keys, v, is_causal=causal, scale=q.shape[3] ** -0.5)

    def cost(self, n: int, d: int) -> int:
        """Multiply-adds of one head: two projections of `ndr`, scores `n²r`, values `n²d`."""
        r = self.queries.shape[2]
        return 2 * n * d * r + n * n * r + n * n * d


def dense(q: Tensor, k: Tensor, v: Tensor, mechanism: FeatureRank) -> Tensor:
    """The reference: `Q (A Bᵀ) Kᵀ` with the d × d matrix of each head."""
    between = mechanism.queries @ mechanism.keys.transpose(1, 2)  # (H, d, d)
    return (q @ between @ k.transpose(2, 3) * q.shape[3] ** -0.5).softmax(3) @ v

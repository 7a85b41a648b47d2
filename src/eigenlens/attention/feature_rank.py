"""Attention with queries and keys in r of their d dimensions: the joint subspace that serves their products best."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def joint_subspace(queries: Tensor, keys: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """`A, B (H, d, r)` for which `qᵀA Bᵀk` has the least mean squared distance to `qᵀk`.

    With second moments `C_q, C_k (H, d, d)` that distance is `‖C_q^½ (I − ABᵀ) C_k^½‖²_F`, so with the SVD
    `C_q^½ C_k^½ = UΣVᵀ` it is `A = C_q^{−½} U_r Σ_r^½`, `B = C_k^{−½} V_r Σ_r^½`: a balanced truncation.
    """
    (root_q, back_q), (root_k, back_k) = _roots(queries.double()), _roots(keys.double())
    u, s, vt = torch.linalg.svd(root_q @ root_k)
    half = s[:, None, :rank].sqrt()  # (H, 1, r)
    return back_q @ u[:, :, :rank] * half, back_k @ vt.transpose(1, 2)[:, :, :rank] * half


def _roots(moment: Tensor) -> tuple[Tensor, Tensor]:
    """`C^½` and `C^{−½}`, directions without any energy left out of the latter."""
    values, vectors = torch.linalg.eigh(moment)
    values = values.clamp_min(0)
    floor = values.amax(1, keepdim=True) * 1e-10
    root = values.sqrt()
    back = torch.where(values > floor, 1 / root.clamp_min(1e-150), 0.0)
    return (vectors * root[:, None]) @ vectors.transpose(1, 2), (vectors * back[:, None]) @ vectors.transpose(1, 2)


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

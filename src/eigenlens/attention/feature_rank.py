"""Attention with queries and keys in r of their d dimensions.

They are projected on the joint subspace that keeps their products best.

The rank of the scores is the width of a head; arXiv 2407.16153 shows what narrower heads cannot do.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..errors import EigenlensError
from .call_terms import CallTerms, probabilities
from .contract import Mechanism, Shape
from .registry import mechanism
from .softmax import attend

FLOOR = 1e-7
"""The least variance of a direction, as a share of the largest: a constant head has none."""


def joint_subspace(queries: Tensor, keys: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return `A, B (H, d, r)` such that `qᵀA Bᵀk` has the least mean squared distance to `qᵀk`.

    With second moments `C_q = RRᵀ`, `C_k = TTᵀ` (H, d, d) that distance is `‖Rᵀ (I − ABᵀ) T‖²_F`,
    so with the SVD `RᵀT = UΣVᵀ` the best maps are `A = R^{−ᵀ} U_r Σ_r^½`, `B = T^{−ᵀ} V_r Σ_r^½`: a
    balanced truncation. At r = d, `ABᵀ = I`.
    """
    (a, a_inverse), (b, b_inverse) = _root(queries.double()), _root(keys.double())
    u, s, vh = torch.linalg.svd(a.mT @ b)
    half = s[:, None, :rank].sqrt()  # (H, 1, r)
    return a_inverse.mT @ (u[..., :rank] * half), b_inverse.mT @ (vh.mT[..., :rank] * half)


def _root(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return a square root `A` of `AAᵀ` (H, d, d) and its inverse, with a floor for eigenvalues."""
    values, vectors = torch.linalg.eigh((matrix + matrix.mT) / 2)
    top = values[:, -1:]
    values = values.clamp_min(0).maximum(FLOOR * torch.where(top > 0, top, torch.ones_like(top)))
    return vectors * values.sqrt()[:, None, :], (vectors / values.sqrt()[:, None, :]).mT


@dataclass(frozen=True)
class RankSettings:
    """`rank` r: how many dimensions queries and keys keep, at most those of a head."""

    rank: int = 8

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise EigenlensError(f"rank must be at least 1, not {self.rank}")


@mechanism("feature-rank")
class FeatureRank(Mechanism):
    """`A = softmax((QA)(KB)ᵀ/√d)` with learned `A, B (H, d, r)`.

    Made by name, they start as the first r unit vectors. `FeatureRank.of(*joint_subspace(C_q, C_k,
    r))` starts from the second moments of a model's queries and keys; `learned=False` keeps them
    fixed.
    """

    Settings = RankSettings
    takes_pairs = True
    own_weights = True
    settings: RankSettings
    queries: Tensor  # A
    keys: Tensor  # B

    def __init__(self, settings: RankSettings | None = None, shape: Shape | None = None) -> None:
        super().__init__(settings, shape)
        d = self.shape.need(self.name, "head_width")
        start = torch.eye(d)[:, : self.settings.rank].expand(self.shape.heads, -1, -1)  # (H, d, r)
        self.queries, self.keys = nn.Parameter(start.clone()), nn.Parameter(start.clone())

    @classmethod
    def of(cls, queries: Tensor, keys: Tensor, learned: bool = True) -> FeatureRank:
        """Make it from given `A, B (H, d, r)`, which are learned further or not."""
        H, d, r = queries.shape
        if keys.shape != queries.shape:
            raise EigenlensError(
                f"A {tuple(queries.shape)} and B {tuple(keys.shape)} do not fit together"
            )
        made = cls(RankSettings(r), Shape(H, d))
        for name, x in (("queries", queries), ("keys", keys)):
            setattr(made, name, nn.Parameter(x.float().clone(), requires_grad=learned))
        return made

    def pattern(self, q: Tensor, k: Tensor, given: CallTerms) -> Tensor:
        between = self.queries @ self.keys.transpose(1, 2)  # A Bᵀ: (H, d, d)
        return probabilities(given.scores(q @ between, k))

    def fast(self, q: Tensor, k: Tensor, v: Tensor, given: CallTerms) -> Tensor:
        return attend(q @ self.queries, k @ self.keys, v, given)

    def cost(self, n: int, d: int) -> int:
        """Two projections of `ndr`, scores `n²r`, values `n²d`."""
        r = self.queries.shape[2]
        return 2 * n * d * r + n * n * r + n * n * d

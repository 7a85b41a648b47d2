"""How much eigenspaces agree: between heads, layers, data sets and models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..captures import Head, Labels, Site
from ..errors import EigenlensError


@dataclass(frozen=True, eq=False)
class Eigenspaces:
    """Leading eigenvectors of several samples in one space, with their covariances if known."""

    at: tuple[Head | Site | str, ...]  # heads, layers, or stacks by name
    vectors: Tensor  # (K, n, r), orthonormal columns
    covariances: Tensor | None  # (K, n, n)
    eigenvalues: Tensor | None  # (K, n), falling
    dimensions: int  # of the space they live in: n, or n − 1 where row means were removed


@dataclass(frozen=True, eq=False, repr=False)
class Overlap:
    """Overlap `‖U_AᵀU_B‖²_F / r` of every pair of eigenspaces, and its `chance = r/n`.

    `matrix (A, B)` is 1 for equal spaces and about `chance` for random ones. `captured (A, B)` is
    the variance of B in the space of A, relative to that in B's own r leading directions: `tr(U_Aᵀ
    Σ_B U_A) / Σ_{i≤r} λ_i(B)`. `rows_` and `columns` are the heads, the layers, or the names of the
    stacks that the spaces belong to.
    """

    left: str
    right: str
    rows_: tuple[Head | Site | str, ...]
    columns: tuple[Head | Site | str, ...]
    rank: int
    chance: float
    matrix: np.ndarray
    captured: np.ndarray | None

    @property
    def same(self) -> bool:
        """Whether the spaces are compared with themselves, so that the diagonal is 1."""
        return self.left == self.right and self.rows_ == self.columns

    @property
    def row_labels(self) -> list[str]:
        return _called(self.rows_)

    @property
    def column_labels(self) -> list[str]:
        return _called(self.columns)

    def _mean(self, matrix: np.ndarray, same_layer: bool) -> float:
        rows, columns = (
            [str(at.site if isinstance(at, Head) else at) for at in spaces]
            for spaces in (self.rows_, self.columns)
        )
        equal = np.array(rows)[:, None] == np.array(columns)[None]
        chosen = equal if same_layer else ~equal
        if self.same:
            chosen = chosen & ~np.eye(len(matrix), dtype=bool)
        return float(matrix[chosen].mean()) if chosen.any() else float("nan")

    @property
    def within_layers(self) -> float:
        """The mean over pairs of the same layer, without pairs of a head with itself."""
        return self._mean(self.matrix, same_layer=True)

    @property
    def across_layers(self) -> float:
        """The mean over pairs of different layers."""
        return self._mean(self.matrix, same_layer=False)

    def summary(self) -> dict[str, Any]:
        """One record: rank, chance, and means within and across layers.

        The means are of overlap and of captured variance.
        """
        record = {
            "left": self.left,
            "right": self.right,
            "rank": self.rank,
            "chance": self.chance,
            "within_layers": self.within_layers,
            "across_layers": self.across_layers,
            "best": float(self.matrix.max()),
        }
        if self.captured is not None:
            record |= {
                "captured_within_layers": self._mean(self.captured, True),
                "captured_across_layers": self._mean(self.captured, False),
            }
        return {
            key: None if isinstance(value, float) and np.isnan(value) else value
            for key, value in record.items()
        }

    def rows(self) -> list[dict[str, Any]]:
        """One record per pair: left, right, rank, overlap, chance, captured."""
        return [
            {
                "left": row,
                "right": column,
                "rank": self.rank,
                "overlap": float(self.matrix[i, j]),
                "chance": self.chance,
                "captured": None if self.captured is None else float(self.captured[i, j]),
            }
            for i, row in enumerate(self.row_labels)
            for j, column in enumerate(self.column_labels)
        ]

    def plot(self) -> Any:
        """Draw the matrix as a heat map, with chance marked on the scale (an altair chart)."""
        from .plots import overlap_map

        return overlap_map(self)

    @property
    def sentence(self) -> str:
        """How similar the spaces are, compared with chance, in words."""
        from .sentences import overlap_sentence

        return overlap_sentence(self)

    def __repr__(self) -> str:
        return f"<overlap of {len(self.rows_)} with {len(self.columns)} spaces, rank {self.rank}>"

    def _repr_html_(self) -> str:
        from ..display import html_view

        names = self.left if self.left == self.right else f"{self.left} and {self.right}"
        return html_view(f"Overlap: {names}", self.sentence, self.plot(), [self.summary()])


def overlap_matrix(a: Eigenspaces, b: Eigenspaces, left: str, right: str) -> Overlap:
    """Return the overlap of all pairs of spaces of `a` and `b`.

    Cost: K_A·K_B·n·r² for the overlap, K_A·K_B·n² for captured variance.
    """
    if a.vectors.shape[1] != b.vectors.shape[1]:
        raise EigenlensError(
            f"{left} and {right} have different lengths ({a.vectors.shape[1]} and"
            f" {b.vectors.shape[1]} dimensions); only studies of one length can be compared"
        )
    r = min(a.vectors.shape[2], b.vectors.shape[2])
    ua, ub = a.vectors[:, :, :r], b.vectors[:, :, :r]
    K, M, n = len(ua), len(ub), ua.shape[1]
    flat = ua.transpose(1, 2).reshape(K * r, n) @ ub.permute(1, 0, 2).reshape(n, M * r)
    matrix = flat.view(K, r, M, r).square().sum((1, 3)) / r
    captured = None
    if b.covariances is not None and b.eigenvalues is not None:
        own = b.eigenvalues[:, :r].sum(1).clamp_min(1e-300)  # (M,)
        size = max(1, 2**25 // (n * n))  # spaces whose projections are held at once
        # tr(UᵀΣU) = ⟨UUᵀ, Σ⟩: one product of all projections with all covariances
        projections = ((u @ u.transpose(1, 2)).flatten(1) for u in ua.split(size))
        held = torch.cat([p @ b.covariances.flatten(1).T for p in projections])  # (K, M)
        captured = (held / own).numpy()
    return Overlap(
        left,
        right,
        a.at,
        b.at,
        r,
        r / min(a.dimensions, b.dimensions),
        matrix.numpy(),
        captured,
    )


def _called(spaces: Sequence[Head | Site | str]) -> list[str]:
    labels = Labels(at if isinstance(at, str) else at.stack for at in spaces)
    return [labels(at) for at in spaces]


def principal_angles(a: Tensor, b: Tensor) -> np.ndarray:
    """Return the angles between two subspaces in degrees, ascending.

    `arccos σ_i(U_AᵀU_B)` for orthonormal `a (n, r)`, `b (n, r)`.
    """
    cosines = torch.linalg.svdvals(a.T @ b).clamp(0, 1)
    return np.degrees(np.arccos(cosines.numpy()))

"""Mean and covariance of score rows, from which the row estimators are fitted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..errors import EigenlensError
from ..spectra.centring import row_mean, row_scatter
from ..stats import RowSums
from .estimator import SiteStatistics

Mean = Literal["pooled", "query"]


@dataclass(frozen=True)
class RowModel:
    """Mean (H, n), or (H, T, n) by query, and covariance Σ (G, n, n).

    All query heads of a key-value head share one covariance.
    """

    mean: Tensor
    covariance: Tensor

    @property
    def group(self) -> int:
        return len(self.mean) // len(self.covariance)

    def by_head(self, x: Tensor) -> Tensor:
        """Repeat for query heads, (G, …) → (H, …)."""
        return x.repeat_interleave(self.group, 0)


def row_model(statistics: SiteStatistics, mean: Mean = "pooled") -> RowModel:
    """Return mean and covariance of the rows of a site in float64. Cost: n³ per key-value head.

    Σ_jk is the covariance over the rows in which both j and k are valid, each divided by its own
    count (under a causal mask rows i ≥ max(j, k)). As these are different rows, the matrix may be
    indefinite, so negative eigenvalues are set to zero. Query heads that share keys share Σ, taken
    about the mean of each head. `mean="query"` is the mean of every pair, μ_i for query i, from the
    matrices of the study, with `Σ = E[ssᵀ] − mean_i μ_i μ_iᵀ`; without matrices it is like
    `pooled`.
    """
    sums: RowSums = statistics.need("rows")
    if mean not in ("pooled", "query"):
        raise EigenlensError(f"mean must be 'pooled' or 'query', not {mean!r}")
    by_query = mean == "query" and statistics.matrices is not None
    centre = (
        statistics.matrices.mean.to(sums.second)
        if by_query and statistics.matrices
        else row_mean(sums, "centred")
    )
    return RowModel(centre, positive(covariance_about(sums, centre, statistics)))


def covariance_about(sums: RowSums, mean: Tensor, statistics: SiteStatistics) -> Tensor:
    """Return the covariance of rows about a mean (H, n) or (H, T, n), pair by pair: (G, n, n).

    The mean may come from other rows.
    """
    groups = (statistics.kv_heads, statistics.group)
    if mean.ndim == 3:
        assert statistics.matrices is not None
        seen = statistics.matrices.valid.to(sums.second)  # (T, n)
        between = (mean * seen).transpose(1, 2) @ (mean * seen) / (seen.T @ seen).clamp_min(1)
        return (sums.second / sums.count.clamp_min(1) - between).unflatten(0, groups).mean(1)
    scatter = row_scatter(sums, "centred", mean)
    count = sums.count.expand(len(scatter), *sums.count.shape[1:])
    return scatter.unflatten(0, groups).sum(1) / count.unflatten(0, groups).sum(1).clamp_min(1)


def positive(covariance: Tensor) -> Tensor:
    """Return the nearest positive semidefinite matrix: negative eigenvalues become zero."""
    covariance = (covariance + covariance.transpose(-1, -2)) / 2
    values, vectors = torch.linalg.eigh(covariance)
    if bool((values >= 0).all()):
        return covariance
    return (vectors * values.clamp_min(0)[..., None, :]) @ vectors.transpose(-1, -2)


def chosen_number(n: int, number: int | None, share: float | None, what: str = "keys") -> int:
    """Return m from a number or a share of n."""
    if (number is None) == (share is None):
        raise EigenlensError(
            f"give either the number of {what} or their share, not both or neither"
        )
    if share is not None:
        if not 0 < share <= 1:
            raise EigenlensError(f"a share must be above 0 and at most 1, not {share}")
        return max(1, round(share * n))
    assert number is not None
    if not 1 <= number <= n:
        raise EigenlensError(f"{number} {what} cannot be chosen from {n}; ask for 1 to {n}")
    return number


def expected_error(W: Tensor, S: Tensor, covariance: Tensor) -> Tensor:
    """Return squared error / variance of `ŝ − μ = W (s_S − μ_S)`, (H,).

    For rows with the given covariance about μ.

    `(tr C − 2 tr W C_S: + tr W C_SS Wᵀ) / tr C` with W (H, n, m), S (H, m), C (H, n, n) of any
    rows, also held-out ones. Computed entries are exact, so their rows of W count as unit rows.
    Cost: n·m² per head; no score is needed.
    """
    H, n, m = W.shape
    W = W.to(covariance).scatter(
        1, S[:, :, None].expand(H, m, m), torch.eye(m).to(covariance).expand(H, m, m)
    )
    rows = covariance.gather(1, S[:, :, None].expand(H, m, n))  # C_S:
    inner = rows.gather(2, S[:, None, :].expand(H, m, m))  # C_SS
    variance = covariance.diagonal(dim1=1, dim2=2).sum(1)
    error = variance - 2 * (W * rows.transpose(1, 2)).sum((1, 2)) + ((W @ inner) * W).sum((1, 2))
    return torch.where(variance > 0, error.clamp_min(0) / variance.clamp_min(1e-300), 0)

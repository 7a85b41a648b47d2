"""How well rows are estimated from a part of their entries, in closed form from two covariances."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...attention.interpolated import RIDGE, lmmse
from ...captures import Head, Labels, Site
from ...estimators.row_model import expected_error
from ...estimators.selection import a_optimal
from ...spectra.centring import normaliser, row_mean, row_scatter
from ...stats import RowSums

SHARES = (0.0625, 0.125, 0.25, 0.5)


def chosen_keys(covariance: Tensor, m: int, ridge: float = RIDGE) -> Tensor:
    """The m keys of every head that leave least variance, greedily: (H, n, n) → (H, m)."""
    return a_optimal(covariance, m, noise=ridge * covariance.diagonal(dim1=1, dim2=2).mean(1))


def held_out_error(fit: RowSums, held: RowSums, m: int, ridge: float = RIDGE) -> Tensor:
    """Squared error of the estimated entries over the variance of all, on held-out rows, (H,).

    The weights, the mean μ and the keys are those of the fit, the rows and their second moment
    about μ are others.
    """
    mean = row_mean(fit, "centred")
    covariance = row_scatter(fit, "centred", mean) / normaliser(fit.rows, "centred")
    second = row_scatter(held, "centred", mean) / held.rows  # C: (H, n, n)
    keys = chosen_keys(covariance, m, ridge)
    return expected_error(lmmse(mean, covariance, keys, ridge)[0], keys, second)


def error_table(
    fit: dict[Site, RowSums], held: dict[Site, RowSums], shares: Sequence[float] = SHARES
) -> list[dict[str, Any]]:
    """One row per share of the keys: error of the median head, the least, the most, and of each."""
    rows, labels = [], Labels(site.stack for site in fit)
    for share in shares:
        heads: dict[str, float] = {}
        keys = 0
        for site in fit:
            n = fit[site].second.shape[1]
            keys = max(1, round(share * n))
            for head, error in enumerate(held_out_error(fit[site], held[site], keys).tolist()):
                heads[labels(Head(site.stack, site.layer, head))] = error
        values = torch.tensor(list(heads.values()), dtype=torch.float64)
        quarter, middle, three = values.quantile(
            torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)
        ).tolist()
        rows.append(
            {
                "share": share,
                "keys": keys,
                "median": middle,
                "least": float(values.min()),
                "most": float(values.max()),
                "first quarter": quarter,
                "third quarter": three,
                "heads": heads,
            }
        )
    return rows

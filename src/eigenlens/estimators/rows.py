"""Estimate all scores of a row from a few exact ones: the paper's linear estimator, and a floor."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from ..captures import AttentionCall
from ..stats import RowSums
from .estimator import Cost, Estimate, Estimator, SiteStatistics, static_estimate
from .row_estimator import RowEstimator, distinct_key_sets, fitting_mean
from .row_model import Mean, RowModel, chosen_number, covariance_about, expected_error, row_model
from .selection import Rule
from .selection import select_keys as choose

RIDGE = 1e-4
CUT = 0.5
"""Singular values of `U_{A,r}` below this share of √(a/n) only amplify noise.

√(a/n) is the average for a of n rows.
"""


class RowConditional(RowEstimator):
    """The conditional mean `μ + Σ_:S (Σ_SS + λI)⁻¹ (s_S − μ_S)` (LMMSE), `λ = ridge · tr(Σ_SS)/m`.

    With `Σ_SS + λI = LLᵀ` it is `μ + G y`, `G = Σ_:S L⁻ᵀ` (the basis), `y = L⁻¹(s_S − μ_S)`. Both
    are triangular: the first a entries of y, with the first a columns of G, give the conditional
    mean given only the first a keys. So one product, with entries of y set to zero, serves all the
    prefixes that causal rows and right-padded inputs see. Any other set of visible keys needs its
    own solve, m³ per distinct set. Fit: n²·m for the choice, n³ for Σ.
    """

    name = "rows-lmmse"

    @classmethod
    def fit(  # type: ignore[override]
        cls,
        statistics: SiteStatistics,
        keys: int | None = None,
        share: float | None = None,
        rule: Rule = "a-optimal",
        seed: int = 0,
        mean: Mean = "pooled",
        exact: int | None = None,
        ridge: float = RIDGE,
    ) -> Self:
        model = row_model(statistics, mean)
        chosen, settings = _choice(model, keys, share, rule, seed, mean, exact, ridge)
        columns, inner, noise = _parts(model.covariance, chosen, ridge)
        factor = torch.linalg.cholesky(
            inner + noise[:, None, None] * torch.eye(inner.shape[1], dtype=inner.dtype)
        )
        # Σ_:S L⁻ᵀ
        basis = torch.linalg.solve_triangular(
            factor, columns.transpose(1, 2), upper=False
        ).transpose(1, 2)
        tensors = {"keys": chosen, "basis": basis, "factor": factor}
        return cls(
            settings,
            {"mean": model.mean, **{name: model.by_head(x) for name, x in tensors.items()}},
        )

    @cached_property
    def _inverse(self) -> Tensor:
        L = self.tensors["factor"]
        return torch.linalg.solve_triangular(
            L, torch.eye(L.shape[1], dtype=L.dtype, device=L.device).expand_as(L), upper=False
        )

    def _coefficients(self, residual: Tensor, available: Tensor) -> Tensor:
        if not bool((available[..., 1:] & ~available[..., :-1]).any()):  # prefixes
            inverse = self._inverse.to(residual.device, residual.dtype)
            return (residual @ inverse.transpose(1, 2)).masked_fill(~available, 0)
        L = self.tensors["factor"].to(residual.device)
        found = torch.zeros_like(residual, dtype=L.dtype)
        for head, seen, rows in distinct_key_sets(available):
            some = seen.nonzero()[:, 0]
            inner = (L[head] @ L[head].T)[some][:, some]
            z = torch.cholesky_solve(
                residual[:, head][rows][:, some].T.to(L.dtype), torch.linalg.cholesky(inner)
            )
            # (Σ_SS + λI) z = r on the seen keys, y = Lᵀ z
            found[:, head][rows] = z.T @ L[head][some]
        return found.to(residual.dtype)


class RowLeastSquares(RowEstimator):
    """Least squares in the eigenbasis, `μ + U_r U_{S,r}⁺ (s_S − μ_S)`.

    The rank r of every head is the one with the least error on `validation` rows (sums of inputs
    other than the fit). Without them it is the one with the least expected error under the fitted Σ
    with noise λ on the computed entries, `E‖s − ŝ‖² + λ‖W‖²`, over at most 32 ranks up to m. A row
    that sees a of the m keys uses `⌈r·a/m⌉` eigenvectors: one pseudo-inverse, a²·r, for each
    distinct set of visible keys; none uses singular values below `CUT·√(a/n)`. Fit: 32·(m³ + n·m²),
    n³ for the eigenvectors.
    """

    name = "rows-ls"

    @classmethod
    def fit(  # type: ignore[override]
        cls,
        statistics: SiteStatistics,
        keys: int | None = None,
        share: float | None = None,
        rule: Rule = "a-optimal",
        seed: int = 0,
        mean: Mean = "pooled",
        exact: int | None = None,
        ridge: float = RIDGE,
        validation: RowSums | None = None,
    ) -> Self:
        model = row_model(statistics, mean)
        chosen, settings = _choice(model, keys, share, rule, seed, mean, exact, ridge)
        m = chosen.shape[1]
        U = torch.linalg.eigh(model.covariance)[1].flip(2)[:, :, :m]
        noise = _parts(model.covariance, chosen, ridge)[2]
        judge = model.covariance
        if validation is not None:
            judge, noise = (
                covariance_about(validation, model.mean, statistics),
                torch.zeros_like(noise),
            )
        variance = judge.diagonal(dim1=1, dim2=2).sum(1).clamp_min(1e-300)
        ranks = torch.linspace(1, m, min(m, 32), dtype=torch.float64).round().long()
        errors = []
        for r in ranks.tolist():
            W = U[:, :, :r] @ _steady_inverse(_rows_of(U, chosen)[:, :, :r], U.shape[1])
            errors.append(
                expected_error(W, chosen, judge) + noise * W.square().sum((1, 2)) / variance
            )
        rank = ranks[torch.stack(errors).argmin(0)]  # (G,)
        basis = U * (torch.arange(m) < rank[:, None])[:, None]
        tensors = {"keys": chosen, "basis": basis, "rank": rank}
        return cls(
            settings,
            {"mean": model.mean, **{name: model.by_head(x) for name, x in tensors.items()}},
        )

    def _coefficients(self, residual: Tensor, available: Tensor) -> Tensor:
        basis, rank = (self.tensors[name].to(residual.device) for name in ("basis", "rank"))
        n, m = basis.shape[1:]
        basis = _rows_of(basis, self.tensors["keys"].to(residual.device))  # U_{S,r}: (H, m, m)
        if bool(available.all()):
            return residual @ _steady_inverse(basis, n).transpose(1, 2).to(residual.dtype)
        found = torch.zeros_like(residual)
        for head, seen, rows in distinct_key_sets(available):
            r = -(-int(rank[head]) * int(seen.sum()) // m)
            inverse = _steady_inverse(basis[head, seen, :r], n).to(residual.dtype)  # (r, a)
            c = residual[:, head][rows][:, seen] @ inverse.T
            found[:, head][rows] = torch.nn.functional.pad(c, (0, m - r))
        return found


class RowMean(Estimator):
    """The mean of the study, whatever the input: the floor of every estimator. It costs nothing."""

    name = "mean"
    needs = ("rows",)
    breaks_even = "always: no score is computed"

    @classmethod
    def fit(cls, statistics: SiteStatistics, mean: Mean = ("pooled")) -> Self:  # type: ignore[override]
        return cls(
            {} if mean == "pooled" else {"mean": mean}, {"mean": row_model(statistics, mean).mean}
        )

    def estimate(self, call: AttentionCall) -> Estimate:
        mean = fitting_mean(self, call).to(call.q.dtype)  # (H, 1 or T, S)
        scores = mean.expand(len(call.q), call.heads, call.q.shape[2], call.k.shape[2]).clone()
        return static_estimate(scores, call, self.cost(call.k.shape[2], call.q.shape[3]))

    def cost(self, n: int, d: int) -> Cost:
        return Cost(0.0, 0.0)


def _choice(
    model: RowModel,
    keys: int | None,
    share: float | None,
    rule: Rule,
    seed: int,
    mean: Mean,
    exact: int | None,
    ridge: float,
) -> tuple[Tensor, dict[str, Any]]:
    """Return the keys of every key-value head, (G, m), and the settings that are not the default.

    A label shows these settings.
    """
    C = model.covariance
    m = chosen_number(C.shape[1], keys, share)
    chosen = choose(rule, C, m, seed, noise=ridge * C.diagonal(dim1=1, dim2=2).mean(1))
    settings: dict[str, Any] = {"keys": m, "rule": rule}
    given = {
        "seed": (seed, 0),
        "mean": (mean, "pooled"),
        "exact": (exact, None),
        "ridge": (ridge, RIDGE),
    }
    return chosen, settings | {
        name: value for name, (value, default) in given.items() if value != default
    }


def _rows_of(x: Tensor, keys: Tensor) -> Tensor:
    """Return `x (H, n, c)` at the keys (H, m): (H, m, c)."""
    return x.gather(1, keys[:, :, None].expand(-1, -1, x.shape[2]))


def _steady_inverse(rows: Tensor, n: int) -> Tensor:
    """Return the pseudo-inverse of `U_{A,r} (…, a, r)` without tiny singular values: (…, r, a)."""
    return torch.linalg.pinv(rows, atol=CUT * math.sqrt(rows.shape[-2] / n), rtol=0.0)


def _parts(covariance: Tensor, keys: Tensor, ridge: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return Σ_:S (G, n, m), Σ_SS (G, m, m) and λ (G,), which is 1 if the keys do not vary."""
    columns = _rows_of(covariance, keys).transpose(1, 2)
    inner = _rows_of(columns, keys)
    noise = ridge * inner.diagonal(dim1=1, dim2=2).mean(1)
    return columns, inner, torch.where(noise > 0, noise, 1)

"""What row estimators share: exact columns, exact early rows, and an estimate of the rest."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor

from ..captures import AttentionCall
from ..errors import EigenlensError
from .columns import column_scores, gather_along, row_scores
from .estimator import Cost, Estimate, Estimator


class RowEstimator(Estimator):
    """`ŝ = μ + basis · c(s_A − μ_A)`, where A are the selected keys that the row may see.

    Rows with at most `exact` valid keys (default m: the early rows of a causal mask) are computed
    exactly, because that costs no more than the selected columns. The selected columns of all rows
    are also exact. Tensors: `keys (H, m)` sorted, `mean (H, n)` or `(H, T, n)`, `basis (H, n, c)`.
    Cost per head: `n·m·d` for the columns and `n²·m` for the rest. The same scores are `Q (W K_S)ᵀ
    + 1bᵀ`, with keys interpolated from m keys, at a cost of `n²·d` for the rest; the cheaper way
    counts.
    """

    needs = ("rows",)
    breaks_even = "m < nd/(n+d), for n·m·d + n²·m multiply-adds against n²·d"

    @abstractmethod
    def _coefficients(self, residual: Tensor, available: Tensor) -> Tensor:
        """Return the coefficients c (B, H, T, c) for `s_S − μ_S (B, H, T, m)`.

        Entries that are not `available` (same shape, bool) are zero.
        """

    def weights(self) -> Tensor:
        """Return W (H, n, m) for rows that see every selected key."""
        H, m = self.tensors["keys"].shape
        unit = torch.eye(m, dtype=self.tensors["basis"].dtype).expand(1, H, m, m)
        # (H, m, c), one row a selected key
        c = self._coefficients(unit, torch.ones(1, H, m, m, dtype=torch.bool))[0]
        return self.tensors["basis"] @ c.transpose(1, 2)

    def estimate(self, call: AttentionCall) -> Estimate:
        keys, basis = (self.tensors[name].to(call.q.device) for name in ("keys", "basis"))
        (B, H, T, d), S, m = call.q.shape, call.k.shape[2], keys.shape[1]
        mean = fitting_mean(self, call).to(call.q.dtype)  # (H, 1 or T, S)
        valid = call.valid()
        self._check_valid(call, valid, m)
        here = keys.clamp_max(S - 1)  # a shorter input lacks the keys beyond its end
        available = (gather_along(valid, here, 3, H) & (keys < S)[:, None]).expand(B, H, T, m)
        columns = column_scores(call, here)  # (B, H, T, m)
        residual = (columns - gather_along(mean, here, 3, H)).masked_fill(~available, 0)
        c = self._coefficients(residual, available)
        scores = mean + c @ basis[:, :S].to(c.dtype).transpose(1, 2)  # (B, H, T, S)

        scores = fill_columns(scores, columns, keys, available)
        computed = fill_columns(
            torch.zeros(B, H, T, S, dtype=torch.bool, device=keys.device),
            available,
            keys,
            available,
        )

        number = valid.sum(3).expand(B, H, T)  # valid keys of each row
        exact = number <= self.settings.get("exact", m)
        whole = exact.any(1).any(0).nonzero()[:, 0]  # positions of queries
        if len(whole):
            rows = torch.where(
                exact[:, :, whole, None], row_scores(call, whole.expand(H, -1)), scores[:, :, whole]
            )
            scores[:, :, whole] = rows
            computed |= exact[..., None]
        pairs = (computed & valid).sum((0, 2, 3)).double()
        total = number.sum((0, 2)).clamp_min(1)
        used = available.sum(3) * ~exact  # (B, H, T)
        work = (pairs * d + self._filling(used, number * ~exact, d)) / (total * d)
        return Estimate(scores, (pairs / total).float(), work.float())

    def _filling(self, used: Tensor, number: Tensor, d: int) -> Tensor:
        """Return the multiply-adds of the pairs that are not computed, (H,).

        For rows with `number` valid keys, of which `used` are selected.

        If all rows of an input see the same keys, they share one W and may interpolate keys;
        otherwise each row needs a solve, a².
        """
        products = (used * number).sum((0, 2))
        if bool((used == used.amax(2, keepdim=True)).logical_or(number == 0).all()):
            return torch.minimum(products, number.sum((0, 2)) * d)
        return products + used.square().sum((0, 2))

    def _check_valid(self, call: AttentionCall, valid: Tensor, m: int) -> None:
        fewest = int(valid.any(2).sum(2).min())
        if fewest < m:
            raise EigenlensError(
                f"an input of {call.site.full_label} has {fewest} valid keys, fewer than the {m}"
                f" that {self.name} computes; leave out such short inputs or choose fewer keys"
            )

    def cost(self, n: int, d: int) -> Cost:
        m = min(self.settings["keys"], n)
        return Cost(m / n, float(n * m * d + n * n * min(m, d)))


def fitting_mean(estimator: Estimator, call: AttentionCall) -> Tensor:
    """Return the mean of an estimator for the length of a call: (H, 1 or T, S)."""
    mean = estimator.tensors["mean"].to(call.q.device)
    T, S = call.q.shape[2], call.k.shape[2]
    estimator.check_length(call, mean.shape[-1])
    if mean.ndim == 2:
        return mean[:, None, :S]
    if mean.shape[1] < T:
        raise EigenlensError(
            f"{estimator.name} of {call.site.full_label} has a mean for {mean.shape[1]} queries,"
            f" but this input has {T}; make a study and a plan of that length"
        )
    return mean[:, :T, :S]


def fill_columns(matrix: Tensor, values: Tensor, keys: Tensor, available: Tensor) -> Tensor:
    """Return `matrix (B, H, T, S)` with `values (B, H, T, m)` in the columns `keys (H, m)`.

    Only where the values are available.
    """
    S = matrix.shape[3]
    # what is not available goes to a column that is cut off
    wide = torch.cat([matrix, matrix[..., :1]], 3)
    return wide.scatter_(3, torch.where(available, keys[:, None], S), values)[..., :S]


def distinct_key_sets(available: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield the distinct sets of keys that rows see: head, the set (m,) and its rows (B, T).

    For `available (B, H, T, m)`.
    """
    for head in range(available.shape[1]):
        rows = available[:, head]
        sets, which = rows.flatten(0, 1).unique(dim=0, return_inverse=True)
        for number, seen in enumerate(sets):
            if bool(seen.any()):
                yield head, seen, (which == number).view(rows.shape[:2])

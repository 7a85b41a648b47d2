"""Attention from the scores of a few keys, from which the others of each row are estimated.

Rows of scores `s ∈ Rⁿ` with mean μ and covariance Σ, of which only the entries at the m keys S are
computed, have the linear estimate of least mean squared error

    ŝ = μ + W (s_S − μ_S)        W = Σ_{:S} (Σ_SS + λI)⁻¹        λ = ridge · tr(Σ_SS)/m

and computed entries keep their exact value. Over all queries that is `Ŝ = Q (W K_S)ᵀ/√d + 1 bᵀ`
with `b = μ − W μ_S`: every key is interpolated from m keys, and key positions get a bias. With a
separate mean for each query position i, the bias is `b_i = μ_i − W μ_{i,S}`.

Scores cost `nmd + n(n−m)m` multiply-adds, those of full attention `n²d`, so this saves work only if
m < nd/(n+d).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import EigenlensError
from .call_terms import CallTerms
from .contract import Mechanism, Shape

RIDGE = 1e-4


def lmmse(
    mean: Tensor, covariance: Tensor, keys: Tensor, ridge: float = RIDGE
) -> tuple[Tensor, Tensor]:
    """Return `W (H, n, m)` and `b (H, 1 or T, n)` for the keys `(H, m)`, in float64.

    `mean` is (H, n), or (H, T, n) for a mean of each query position; `covariance` is (H, n, n).
    Entries of `keys` themselves get unit rows and zero bias, which leave a computed score as it is.
    """
    mean, covariance = mean.double(), covariance.double()
    mean = mean[:, None] if mean.ndim == 2 else mean  # (H, 1 or T, n)
    H, n, _ = covariance.shape
    m = keys.shape[1]
    columns = covariance.gather(2, keys[:, None].expand(H, n, m))  # Σ_{:S}
    inner = columns.gather(1, keys[:, :, None].expand(H, m, m))  # Σ_SS
    level = inner.diagonal(dim1=1, dim2=2).mean(1).clamp_min(1e-300)
    unit = torch.eye(m, dtype=inner.dtype, device=inner.device)
    inner = inner + ridge * level[:, None, None] * unit
    weights = torch.linalg.solve(inner, columns.transpose(1, 2)).transpose(1, 2)  # (H, n, m)
    weights = weights.scatter(1, keys[:, :, None].expand(H, m, m), unit.expand(H, m, m))
    at_keys = mean.gather(2, keys[:, None].expand(H, mean.shape[1], m))  # μ_S
    return weights, mean - at_keys @ weights.transpose(1, 2)


class InterpolatedKeys(Mechanism):
    """`A = softmax(Ŝ)`; `W` and `b` are buffers, or parameters if `learned`.

    It is made from the moments of a study, for whole inputs of their length, so it cannot be made
    by name.

    >>> # mean (H, n), covariance (H, n, n), keys (H, m)
    >>> mechanism = InterpolatedKeys.from_moments(mean, covariance, keys)
    >>> mechanism(q, k, v).shape  # (B, H, n, d)
    """

    name = "interpolated-keys"
    directions = ("both ways",)
    keys: Tensor  # (H, m) computed
    rest: Tensor  # (H, n − m) estimated
    mixture: Tensor  # W of the rest: (H, n − m, m)
    bias: Tensor  # (H, 1 or T, n − m)

    def __init__(self, keys: Tensor, weights: Tensor, bias: Tensor, learned: bool = False) -> None:
        H, m = keys.shape
        n = weights.shape[1]
        super().__init__(shape=Shape(H, length=n))
        if weights.shape != (H, n, m) or bias.shape[::2] != (H, n):
            raise EigenlensError(
                f"W {tuple(weights.shape)} and b {tuple(bias.shape)} do not fit {m} keys of {H}"
                " heads"
            )
        self.register_buffer("keys", keys.clone())
        self.register_buffer("rest", _others(keys, n))
        for name, x in self._of_rest(weights, bias).items():
            if learned:
                setattr(self, name, nn.Parameter(x))
            else:
                self.register_buffer(name, x)

    @classmethod
    def from_moments(
        cls,
        mean: Tensor,
        covariance: Tensor,
        keys: Tensor,
        ridge: float = RIDGE,
        learned: bool = False,
    ) -> InterpolatedKeys:
        return cls(keys, *lmmse(mean, covariance, keys, ridge), learned=learned)

    @torch.no_grad()
    def refit(self, mean: Tensor, covariance: Tensor, ridge: float = RIDGE) -> None:
        """Compute W and b again from other moments, for the same keys."""
        for name, x in self._of_rest(*lmmse(mean, covariance, self.keys, ridge)).items():
            getattr(self, name).copy_(x)

    def _of_rest(self, weights: Tensor, bias: Tensor) -> dict[str, Tensor]:
        """Return the rows of W and the entries of b of keys that are not computed."""
        H, r = self.rest.shape
        rows = weights.gather(1, self.rest[:, :, None].expand(H, r, weights.shape[2]))
        entries = bias.gather(2, self.rest[:, None].expand(H, bias.shape[1], r))
        return {"mixture": rows.float(), "bias": entries.float()}

    @property
    def length(self) -> int:
        return self.keys.shape[1] + self.rest.shape[1]

    def pattern(self, q: Tensor, k: Tensor, given: CallTerms) -> Tensor:
        """Compute all scores, and overwrite those of keys that count as not computed."""
        self._fits(k, given)
        scores = q @ k.transpose(2, 3) * given.scale  # (B, H, T, n)
        filled = []
        for h, (keys, rest) in enumerate(zip(self.keys, self.rest)):
            row = scores[:, h]
            estimate = row[:, :, keys] @ self.mixture[h].T + self.bias[h]
            filled.append(row.index_copy(2, rest, estimate))
        return torch.stack(filled, 1).softmax(3)

    def fast(self, q: Tensor, k: Tensor, v: Tensor, given: CallTerms) -> Tensor:
        """Multiply the three factors in the cheapest order.

        Scores `(Q K_Sᵀ) Wᵀ`, or first keys `W K_S` and then Q.

        Keys and values are in the order computed, estimated; softmax does not depend on the order.
        """
        self._fits(k, given)
        B, H, n, d = k.shape
        chosen = k.gather(2, self.keys[None, :, :, None].expand(B, -1, -1, d))  # K_S: (B, H, m, d)
        order = torch.cat([self.keys, self.rest], 1)[None, :, :, None]
        v = v.gather(2, order.expand(B, -1, -1, v.shape[3]))
        # (H, 1 or T, n), zero where the score is exact
        bias = F.pad(self.bias, (self.keys.shape[1], 0))
        if self._by_scores(n, d):
            known = q @ chosen.transpose(2, 3) * given.scale  # (B, H, T, m)
            scores = torch.cat([known, known @ self.mixture.transpose(1, 2)], 3) + bias
            return scores.softmax(3) @ v
        mixed = torch.cat([chosen, self.mixture @ chosen], 2)  # (B, H, n, d)
        return F.scaled_dot_product_attention(q, mixed, v, attn_mask=bias[None], scale=given.scale)

    def _fits(self, k: Tensor, given: CallTerms) -> None:
        if k.shape[2] != self.length:
            raise EigenlensError(
                f"W and b were fitted for {self.length} keys, but there are {k.shape[2]}"
            )
        if given.keys is not None:
            raise EigenlensError(
                "W and b were fitted for whole inputs; interpolated keys cannot have padding"
            )

    def _by_scores(self, n: int, d: int) -> bool:
        by_scores, by_keys = self._score_costs(n, d)
        return by_scores <= by_keys

    def _score_costs(self, n: int, d: int) -> tuple[int, int]:
        m = self.keys.shape[1]
        return n * m * d + n * (n - m) * m, (n - m) * m * d + n * n * d

    def cost(self, n: int, d: int) -> int:
        """Multiply-adds per head: the cheaper order, and `n²d` for the values."""
        return min(self._score_costs(n, d)) + n * n * d


def _others(keys: Tensor, n: int) -> Tensor:
    """Return those of 0 … n−1 that a row of `keys` (H, m) lacks, ascending: (H, n − m)."""
    taken = torch.zeros(len(keys), n, dtype=torch.bool, device=keys.device).scatter(1, keys, True)
    if int(taken.sum()) != keys.numel():
        raise EigenlensError("a key was chosen twice for one head")
    return taken.logical_not().nonzero()[:, 1].view(len(keys), n - keys.shape[1])

"""Nyströmformer (arXiv 2102.03902): the pattern from landmarks.

Landmarks are the means of segments of queries and keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import EigenlensError
from .call_terms import CallTerms, probabilities
from .contract import Mechanism
from .registry import mechanism

ITERATIONS = 6


def inverse(a: Tensor, iterations: int = ITERATIONS) -> Tensor:
    """Return the pseudo-inverse of patterns `a (…, m, m)` by an iteration.

    `Z ← ¼ Z (13 I − AZ (15 I − AZ (7 I − AZ)))`. The start `Aᵀ/(‖A‖₁ ‖A‖_∞)` makes it converge,
    cubically; the paper uses six rounds. Rows and columns of zeros stay zeros.
    """
    eye = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    norms = a.abs().sum(-2).amax(-1) * a.abs().sum(-1).amax(-1)
    z = a.transpose(-1, -2) / norms.clamp_min(1e-6)[..., None, None]
    for _ in range(iterations):
        az = a @ z
        z = 0.25 * z @ (13 * eye - az @ (15 * eye - az @ (7 * eye - az)))
    return z


@dataclass(frozen=True)
class NystromSettings:
    """`landmarks` m, at most the number of tokens; `iterations` of the inverse."""

    landmarks: int = 32
    iterations: int = ITERATIONS

    def __post_init__(self) -> None:
        if self.landmarks < 1 or self.iterations < 1:
            raise EigenlensError(
                f"Nyström attention needs at least 1 landmark and 1 iteration, not {self}"
            )


@mechanism("nystrom", letter="Y")
class Nystrom(Mechanism):
    """`A = softmax(Q K̃ᵀ) softmax(Q̃ K̃ᵀ)⁺ softmax(Q̃ Kᵀ)`, all scores divided by √d.

    Q̃ and K̃ are m segment means.

    The segments cut the tokens (without padding) into m parts whose lengths differ by at most one.
    The paper adds a convolution of the values; it is left out here, since only the attention is
    compared.

    >>> make("nystrom", landmarks=16)(q, k, v).shape  # (B, H, T, E)
    """

    Settings = NystromSettings
    directions = ("both ways",)
    linear = True
    settings: NystromSettings

    @classmethod
    def of(cls, landmarks: int, iterations: int = ITERATIONS) -> Nystrom:
        return cls(NystromSettings(landmarks, iterations))

    def pattern(self, q: Tensor, k: Tensor, given: CallTerms) -> Tensor:
        which_q, which_k, m = self._segments(q, k, given)
        places = torch.arange(m, device=q.device)[:, None]
        # (B, m, T), (B, m, S)
        members = [(which[:, None] == places).to(q.dtype) for which in (which_q, which_k)]
        means = [x / x.sum(2, keepdim=True).clamp_min(1) for x in members]
        few_q, few_k = (x[:, None] @ t for x, t in zip(means, (q, k)))  # (B, H, m, d)
        some_q, some_k = (x.sum(2) > 0 for x in members)
        left, middle, right = self._parts(q, k, few_q, few_k, some_q, some_k, given)
        return left @ inverse(middle, self.settings.iterations) @ right  # (B, H, T, S)

    def fast(self, q: Tensor, k: Tensor, v: Tensor, given: CallTerms) -> Tensor:
        which_q, which_k, m = self._segments(q, k, given)
        (few_q, some_q), (few_k, some_k) = _means(q, which_q, m), _means(k, which_k, m)
        left, middle, right = self._parts(q, k, few_q, few_k, some_q, some_k, given)
        # (B, H, T, m) × (B, H, m, d)
        return left @ (inverse(middle, self.settings.iterations) @ (right @ v))

    def _segments(self, q: Tensor, k: Tensor, given: CallTerms) -> tuple[Tensor, Tensor, int]:
        """Return the segment of every query (B, T) and key (B, S), m at padding; and m.

        An input with fewer tokens than landmarks has one segment per token, whatever its padding.
        """
        stands = [
            x.new_ones(x.shape[0], x.shape[2], dtype=torch.bool) if mask is None else mask
            for x, mask in ((q, given.queries), (k, given.keys))
        ]
        n_q, n_k = (x.sum(1, keepdim=True) for x in stands)  # (B, 1)
        m = min(self.settings.landmarks, q.shape[2], k.shape[2])
        count = torch.minimum(n_q, n_k).clamp_max(m)
        which = [
            torch.where(x, (x.cumsum(1) - 1) * count // n.clamp_min(1), m).clamp_max(m)
            for x, n in zip(stands, (n_q, n_k))
        ]
        return which[0], which[1], m

    def _parts(
        self,
        q: Tensor,
        k: Tensor,
        few_q: Tensor,
        few_k: Tensor,
        some_q: Tensor,
        some_k: Tensor,
        given: CallTerms,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the three patterns, (B, H, T, m), (B, H, m, m), (B, H, m, S).

        Landmarks without a token get nothing.
        """

        def pattern(a: Tensor, b: Tensor, rows: Tensor | None, columns: Tensor | None) -> Tensor:
            found = a @ b.transpose(2, 3) * given.scale
            if columns is not None:
                found = found.masked_fill(~columns[:, None, None, :], -torch.inf)
            found = probabilities(found)
            return found if rows is None else found.masked_fill(~rows[:, None, :, None], 0.0)

        return (
            pattern(q, few_k, None, some_k),
            pattern(few_q, few_k, some_q, some_k),
            pattern(few_q, k, some_q, given.keys),
        )

    def cost(self, n: int, d: int) -> int:
        """Multiply-adds of one head.

        Landmarks `2nd`, scores `2nmd + m²d`, four products per round of the inverse, values `2nmd +
        m²d`.
        """
        m = min(self.settings.landmarks, n)
        return 2 * n * d + 4 * n * m * d + 2 * m * m * d + 4 * self.settings.iterations * m**3


def _means(x: Tensor, which: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """Return the mean of each segment (B, H, m, d), and which have any token (B, m).

    The mean of no token is zero.
    """
    B, H, _, d = x.shape
    index = which[:, None, :, None].expand_as(x)
    # padding falls into the one left out
    sums = x.new_zeros(B, H, m + 1, d).scatter_add(2, index, x)[:, :, :m]
    number = x.new_zeros(B, m + 1).scatter_add(1, which, x.new_ones(which.shape))[:, :m]
    return sums / number.clamp_min(1)[:, None, :, None], number > 0

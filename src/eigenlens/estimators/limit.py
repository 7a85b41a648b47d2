"""How far one projection for all inputs is from the best one for each input, at equal rank.

For the scores `S = QKᵀ` of one input and head (before mask, position bias and cap), no estimate of
rank r with a constant per row, `Ŝ = XYᵀ + b1ᵀ`, has less squared error than the singular value
decomposition of that very input:

    ‖S − Ŝ‖²_F ≥ ‖(S − Ŝ)C‖²_F ≥ Σ_{c>r} σ_c²(SC),     C = I − 11ᵀ/n

`C` takes the mean of each row, to which the softmax is blind. Every error here is a sum over inputs
as a share of the row-centred energy `Σ‖SC‖²_F` of the same pairs, whatever is centred above it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from ..attention.feature_rank import joint_subspace
from ..captures import AttentionCall
from ..captures.masks import MaskShapes
from ..errors import EigenlensError
from .estimator import Estimator, SiteStatistics
from .measures import Sums
from .rotation import Moments
from .subspace import GroupedSubspace, JointSubspace, KeySubspace, Truncated

Over = Literal["square", "valid"]
"""All pairs of a valid query and a valid key, without the mask; or the pairs that the mask allows.

Where nothing is masked the two are the same.
"""
BEST = "best of each input"
SHARED = "best of each input, shared"
"""The same with one basis of the keys for the query heads that share a key-value head."""


class KeyQuerySVD(Truncated):
    """KQ-SVD as published (arXiv 2512.05916): the rank-r product closest to `q·k`.

    `ŝ_ij = (P_Qᵀq_i)·(P_Kᵀk_j)` from `E[qqᵀ]` and `E[kkᵀ]`, one pair of projections per query head.
    The mean key stays in the keys, so rank goes to the constants of the rows, which `joint` has
    besides its rank.
    """

    name = "kq-svd"
    breaks_even = JointSubspace.breaks_even

    @classmethod
    def fit(cls, statistics: SiteStatistics, rank: int = 8, **_: Any) -> Self:
        def maps(found: Moments) -> tuple[Tensor, Tensor]:
            mean = found.key_mean
            second = found.keys + mean[:, :, None] * mean[:, None, :]
            return joint_subspace(found.queries, second, second.shape[-1])

        tensors = cls._tensors(statistics, maps, rank, tail=False)
        tensors["centre"] = torch.zeros_like(tensors["centre"])
        return cls({"rank": rank}, tensors)


class RankLimit(Sums):
    """Errors of the best rank r of each input, and of estimators that are fitted once for all.

    `fitted` holds the estimators by name, one per rank. The best of each input comes from `QᵀQ` and
    `KᵀK` and is exact for the `square` of all pairs; over `valid` pairs alone the best rank r has
    no closed form, and only the estimators are measured. Cost per head and input: `2nD² + D³` for
    the best, and n² scores for every estimator and rank.
    """

    KINDS: ClassVar = {"joint": JointSubspace, "key-pca": KeySubspace, "kq-svd": KeyQuerySVD}

    def __init__(self, ranks: Sequence[int], fitted: Mapping[str, Sequence[Estimator]]) -> None:
        super().__init__()
        self.ranks, self.fitted = tuple(ranks), dict(fitted)

    @classmethod
    def of(cls, statistics: SiteStatistics, ranks: Sequence[int] = (4, 8, 16)) -> Self:
        """Fit `joint`, `key-pca` and KQ-SVD, and the form by group where query heads share keys.

        Without the positions' mean of what they leave out; `joint with tail` has it.
        """
        ranks = [r for r in ranks if r <= statistics.dimension]
        fitted: dict[str, list[Estimator]] = {
            name: [kind.fit(statistics, rank=r, tail=False) for r in ranks]
            for name, kind in cls.KINDS.items()
        }
        if statistics.group > 1:
            fitted["joint-grouped"] = [
                GroupedSubspace.fit(statistics, rank=r, tail=False) for r in ranks
            ]
        fitted["joint with tail"] = [JointSubspace.fit(statistics, rank=r) for r in ranks]
        return cls(ranks, fitted)

    @torch.no_grad()
    def add(self, call: AttentionCall) -> None:
        """Add one call."""
        plain = replace(call, bias=None, softcap=None, shapes=MaskShapes())
        if call.mask is not None:  # without the numbers that a mask may add to the scores
            plain = replace(plain, mask=call.allowed(), causal=False)
        valid = plain.valid().expand(*plain.q.shape[:3], plain.k.shape[2])  # (B, H, T, S)
        full = plain.mask_shape.form == "full"
        queries, keys = valid.any(3), valid.any(2)  # (B, H, T), (B, H, S)
        areas: dict[Over, Tensor] = {"square": queries[..., None] & keys[..., None, :]}
        areas["valid"] = areas["square"] if full else valid
        truth = plain.scaled_q.double() @ plain.keys.double().mT
        found: dict[str, Tensor] = {}
        for over, area in areas.items():
            found[f"{over} energy"] = _energy(_centred(truth, area))
        for name, column in _best(plain, queries, keys, self.ranks).items():
            found[f"square {name}"] = column
        for name, by_rank in self.fitted.items():
            errors: dict[str, list[Tensor]] = {}
            for estimator in by_rank:
                wrong = estimator.estimate(plain).scores.double() - truth
                for over, area in areas.items():
                    apart = wrong.masked_fill(~area, 0.0)
                    errors.setdefault(f"{over} {name}|scores", []).append(_energy(apart))
                    errors.setdefault(f"{over} {name}|centred", []).append(
                        _energy(_centred(apart, area))
                    )
            found |= {key: torch.stack(columns, 1) for key, columns in errors.items()}
        self.take(found)

    def error(
        self, name: str, of: Literal["scores", "centred"] = "centred", over: Over = "square"
    ) -> Tensor:
        """The squared error of an estimator, or of the best of each input, `(H, ranks)`.

        Of `scores`, or `centred`: without what is constant in a row. Both are shares of the same
        row-centred energy, so that of scores may be above 1.
        """
        try:
            sums = self.sums[f"{over} {name}|{of}"]
        except KeyError:
            names = sorted(
                {key.split(" ", 1)[1].partition("|")[0] for key in self.sums} - {"energy"}
            )
            raise EigenlensError(
                f"no error of {name!r} is known over {over} pairs; known are {', '.join(names)}"
            ) from None
        return sums / self.sums[f"{over} energy"].clamp_min(1e-300)[:, None]


def rank_limit(
    statistics: SiteStatistics, calls: Iterable[AttentionCall], ranks: Sequence[int] = (4, 8, 16)
) -> RankLimit:
    """Measure a site's estimators and the best of each input on calls that were not fitted on.

    >>> found = rank_limit(site_statistics(study)[site], calls)
    >>> found.error("joint") / found.error(BEST)  # (H, 3): how much one projection for all loses
    """
    limit = RankLimit.of(statistics, ranks)
    for call in calls:
        limit.add(call)
    return limit


def component_energies(queries: Tensor, keys: Tensor) -> Tensor:
    """`‖S_h v_c‖²` by right singular vector v_c, largest first: `(B, H, D, D)` → `(B, H, D)`.

    From `Q_hᵀQ_h` of every query head and `KᵀK = LLᵀ (B, G, D, D)` of the keys. The scores of heads
    with the same keys are rows of one matrix with the right singular vectors v_c: the eigenvectors
    W of `Lᵀ(Σ_h Q_hᵀQ_h)L` give `‖S_h v_c‖² = w_cᵀ Lᵀ Q_hᵀQ_h L w_c`. Of a head with keys of its
    own they are the squared singular values.

    >>> Q, K = torch.randn(2, 1, 1, 40, 4, dtype=torch.float64)
    >>> squares = component_energies(Q.mT @ Q, K.mT @ K)
    >>> torch.allclose(squares.sqrt(), torch.linalg.svdvals(Q @ K.mT)[..., :4])
    True
    """
    group = queries.shape[1] // keys.shape[1]
    values, vectors = torch.linalg.eigh(keys)
    root = (vectors * values.clamp_min(0).sqrt()[..., None, :]).repeat_interleave(group, 1)  # L
    inner = root.mT @ queries @ root  # (B, H, D, D)
    together = inner.unflatten(1, (-1, group)).sum(2)
    basis = torch.linalg.eigh(together).eigenvectors.flip(-1).repeat_interleave(group, 1)
    return (basis * (inner @ basis)).sum(2).clamp_min(0)


def _best(
    call: AttentionCall, queries: Tensor, keys: Tensor, ranks: Sequence[int]
) -> dict[str, Tensor]:
    """What the first r singular components of each input leave, summed over inputs, (H, ranks)."""
    seen = keys[..., None]
    q, k = call.scaled_q.double() * queries[..., None], call.keys.double() * seen
    less = (k - k.sum(2, keepdim=True) / seen.sum(2, keepdim=True).clamp_min(1)) * seen
    found = {}
    for of, x in (("scores", k), ("centred", less)):
        gram = x.mT @ x  # (B, H, D, D)
        for name, step in ((BEST, 1), (SHARED, call.group)):
            energies = component_energies(q.mT @ q, gram[:, ::step])
            left = [energies[..., r:].sum((0, 2)) for r in ranks]
            found[f"{name}|{of}"] = torch.stack(left, 1)
    return found


def _centred(scores: Tensor, area: Tensor) -> Tensor:
    """Scores without the mean of each row over an area, and zero outside."""
    scores = scores.masked_fill(~area, 0.0)
    mean = scores.sum(-1, keepdim=True) / area.sum(-1, keepdim=True).clamp_min(1)
    return (scores - mean).masked_fill_(~area, 0.0)


def _energy(scores: Tensor) -> Tensor:
    return scores.square().sum((0, 2, 3))

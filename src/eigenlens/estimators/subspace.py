"""Estimate scores from a few coordinates of queries and keys."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from torch import Tensor

from ..captures import AttentionCall
from ..errors import EigenlensError
from .estimator import Cost, Estimate, Estimator, SiteStatistics, static_estimate
from .rotation import Moments, joint, joint_grouped, moments, principal


class Rotated(Estimator):
    """Estimators in rotated coordinates `x_i = P_Qᵀ q_i`, `y_j = P_Kᵀ (k_j − k̄)`.

    In these `q_i·k_j = x_i·y_j + q_i·k̄`.

    With the first r coordinates and the mean of the rest at each position,

        ŝ_ij = q_i·k̄ + Σ_{c≤r} x_ic y_jc + Σ_{c>r} x̄_ic ȳ_jc

    where `x̄_i`, `ȳ_j` are the means of position i and j over the inputs. The last sum is one fixed
    map per head: it costs one addition per pair. Softmax ignores the constant `q_i·k̄` of a row; it
    is kept so that the estimates are true scores.

    Tensors: `to_x`, `to_y (H, D, R)`, `centre (H, D)`, `x_mean (H, T, D)`, `y_mean (H, S, D)`.
    """

    needs: ClassVar[tuple[str, ...]] = ("moments",)

    def __init__(
        self,
        settings: dict[str, Any],
        tensors: dict[str, Tensor],
        tails: dict[int, Tensor] | None = None,
    ) -> None:
        super().__init__(settings, tensors)
        self._tails = {} if tails is None else tails  # by rank, made when asked for

    @classmethod
    def _tensors(
        cls, statistics: SiteStatistics, maps: Any, rank: int, tail: bool
    ) -> dict[str, Tensor]:
        D = statistics.dimension
        if not 1 <= rank <= D:
            raise EigenlensError(f"rank must be from 1 to the head dimension {D}, not {rank}")
        found = moments(statistics)
        to_x, to_y = maps(found)  # (H, D, D) each
        tensors = {"to_x": to_x[..., :rank], "to_y": to_y[..., :rank], "centre": found.key_mean}
        if tail:
            tensors["x_mean"] = found.query_positions @ to_x
            tensors["y_mean"] = (found.key_positions - found.key_mean[:, None]) @ to_y
        return {name: x.float().contiguous() for name, x in tensors.items()}

    def coordinates(self, call: AttentionCall) -> tuple[Tensor, Tensor, Tensor]:
        """Return `x (B, H, T, R)`, `y (B, H, S, R)` and the constant of each row `(B, H, T, 1)`."""
        to_x, to_y, centre = (self.tensors[name].to(call.q) for name in ("to_x", "to_y", "centre"))
        keys = call.keys - centre[None, :, None]
        return call.scaled_q @ to_x, keys @ to_y, call.scaled_q @ centre[None, :, :, None]

    def tail(self, rank: int, call: AttentionCall) -> Tensor | None:
        """Return the map `Σ_{c>rank} x̄_ic ȳ_jc` (H, T, S) of a call's positions.

        None if the means are not known.
        """
        if "x_mean" not in self.tensors:
            return None
        x, y = self.tensors["x_mean"], self.tensors["y_mean"]
        self.check_length(call, y.shape[1])
        if rank not in self._tails:
            self._tails[rank] = x[..., rank:] @ y[..., rank:].mT
        T, S = call.q.shape[2], call.k.shape[2]
        # a decoder's last queries belong to the last keys
        first = S - T if call.kind == "self" and T < S else 0
        return self._tails[rank][:, first : first + T, :S].to(call.q)


class Truncated(Rotated):
    """The first `rank` coordinates and nothing more; `fit` says which coordinates these are."""

    @property
    def rank(self) -> int:
        return self.settings["rank"]

    def estimate(self, call: AttentionCall) -> Estimate:
        x, y, constant = self.coordinates(call)
        scores = (x @ y.mT).add_(constant)
        tail = self.tail(self.rank, call)
        if tail is not None:
            scores += tail
        return static_estimate(
            call.shaped(scores), call, self.cost(call.k.shape[2], call.q.shape[3])
        )

    def cost(self, n: int, d: int) -> Cost:
        """`n²r` for the pairs, `ndr(1 + 1/g)` for the projections, `nd` for the rows' constant.

        g query heads share the projections of a key, and the r numbers that a cache holds of it.
        """
        r, g = self.rank, self.settings.get("group", 1)
        return Cost(
            pairs=0.0,
            per_pair=n * n * r,
            per_token=n * d * r + n * d * r / g + n * d,
            cached=r / g,
        )


class JointSubspace(Truncated):
    """The rank-r product closest to `q·(k − k̄)`, one pair of projections per query head.

    It truncates the balanced coordinates of `rotation.joint`. Of all pairs of projections that
    serve every input it has the least mean squared error **if queries and keys do not depend on
    each other and no pair is masked**: over all pairs of a query and a key of the fitted inputs,
    those of different inputs included. It is the closed form of KQ-SVD (arXiv 2512.05916) for keys
    without their mean. The constant `q_i·k̄` of a row comes on top of the rank, and softmax
    ignores it. Over the pairs that are attended, projections with less error may exist.

    `tail` adds the positions' mean of what is left out. Break-even: `r < d(n − 1)/(n + 2d)`, close
    to d for long inputs.
    """

    name = "joint"
    breaks_even = "r < d(n − 1)/(n + 2d)"

    @classmethod
    def fit(cls, statistics: SiteStatistics, rank: int = 8, tail: bool = True, **_: Any) -> Self:
        return cls({"rank": rank, "tail": tail}, cls._tensors(statistics, joint, rank, tail))


class GroupedSubspace(Truncated):
    """As `joint`, with one pair of projections for the query heads that share a key-value head.

    They share the projected keys, so a cache of keys shrinks from d to r numbers per token and
    key-value head; `joint` has projected keys of its own for every query head. Projections of
    smaller ranks are the first columns of larger ones: heads of a group with different ranks share
    a cache, too. The best pair is that of the queries of the group taken together (KQ-SVD, arXiv
    2512.05916). For given `P_K` the best `P_Q` is the same for every query head, so projections of
    the queries by head would gain nothing. Without grouped queries it is `joint`.

    Break-even for a group of g heads: `r < d(n − 1)/(n + d + d/g)`.
    """

    name = "joint-grouped"
    breaks_even = "r < d(n − 1)/(n + d + d/g) for g query heads per key-value head"

    @classmethod
    def fit(cls, statistics: SiteStatistics, rank: int = 8, tail: bool = True, **_: Any) -> Self:
        def maps(found: Moments) -> tuple[Tensor, Tensor]:
            return joint_grouped(found, statistics.group)

        settings = {"rank": rank, "tail": tail} | _group(statistics)
        return cls(settings, cls._tensors(statistics, maps, rank, tail))


class KeySubspace(Truncated):
    """The first `rank` principal axes of the keys; queries are projected on them.

    Query heads that share a key-value head share the projected keys. Break-even as for
    `joint-grouped`.
    """

    name = "key-pca"
    breaks_even = GroupedSubspace.breaks_even

    @classmethod
    def fit(cls, statistics: SiteStatistics, rank: int = 8, tail: bool = False, **_: Any) -> Self:
        settings = {"rank": rank, "tail": tail} | _group(statistics)
        return cls(settings, cls._tensors(statistics, principal, rank, tail))


def _group(statistics: SiteStatistics) -> dict[str, int]:
    """How many query heads share a key, as a setting; nothing if each has its own."""
    return {"group": statistics.group} if statistics.group > 1 else {}

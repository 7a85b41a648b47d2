"""The contract of every way to get all scores from less than all of the work."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ..captures import AttentionCall, Site
from ..errors import EigenlensError
from ..shell import option
from ..stats import RowSums, VectorSums
from .pair_sums import PairSums


@dataclass(frozen=True)
class MatrixModel:
    """Whole score matrices of a site: mean and variance of every pair, leading eigenvectors.

    Zero where there is no pair.
    """

    valid: Tensor  # (T, S) bool
    mean: Tensor  # (H, T, S)
    variance: Tensor  # (H, T, S)
    vectors: Tensor  # (H, R, T, S)
    eigenvalues: Tensor  # (H, R)


@dataclass(frozen=True)
class SiteStatistics:
    """What a study knows about one site; estimators are fitted from it."""

    site: Site
    heads: int
    kv_heads: int
    queries: int
    keys: int
    dimension: int
    causal: bool
    rows: RowSums | None = None
    moments: VectorSums | None = None
    matrices: MatrixModel | None = None
    pairs: tuple[PairSums, PairSums] | None = None  # to fit on, and to check the fit on

    @property
    def group(self) -> int:
        """The number of query heads that share a key-value head."""
        return self.heads // self.kv_heads

    def need(self, name: str) -> Any:
        """Return the statistic `rows`, `moments` or `matrices`, if the study has it.

        Otherwise it raises an error: the study cannot fit what was asked for.
        """
        found = getattr(self, name)
        if found is None:
            raise EigenlensError(
                f"the study has no {name} of {self.site.full_label}; make the study again with"
                f" {name} among {option('only', None)}"
            )
        return found


@dataclass(frozen=True)
class Cost:
    """Multiply-adds of the scores of one head and input; exact attention needs `n²d`.

    `pairs` is the share of pairs whose exact score is computed, `per_pair` what grows with n² (what
    a budget counts), `per_token` what grows with n (projections of queries and keys).

    `cached` is how many numbers a cache must hold of each key, per query head (heads that share a
    key share them); None where it holds the keys themselves.
    """

    pairs: float
    per_pair: float
    per_token: float = 0.0
    cached: float | None = None

    def share(self, n: int, d: int) -> float:
        """`per_pair` as a share of what exact scores cost."""
        return self.per_pair / (n * n * d)


@dataclass(frozen=True)
class Estimate:
    """Estimated scores `(B, H, T, S)`, arbitrary at invalid pairs, and what they cost.

    `pairs (H,)` is the share of the valid pairs that were computed exactly, `work (H,)` the
    multiply-adds that grow with the number of pairs, as a share of those of the exact scores of the
    same valid pairs.
    """

    scores: Tensor
    pairs: Tensor
    work: Tensor


class Estimator(ABC):
    """Parameters of one estimator for a set of heads of one site.

    Every tensor has the heads first, `(H, …)`.

    >>> joint = JointSubspace.fit(statistics, rank=8)
    >>> joint.estimate(call).scores.shape                  # (B, H, T, S), as call.scores()
    >>> joint.cost(n=128, d=32).share(128, 32)             # 0.25
    """

    name: ClassVar[str]
    needs: ClassVar[tuple[str, ...]]
    """The statistics of the study that `fit` reads."""
    causal: ClassVar[bool] = True
    """Whether estimates of a row use no later queries; if not, causal models cannot use it."""
    breaks_even: ClassVar[str]
    """When this is cheaper than exact scores, in words and symbols."""

    def __init__(self, settings: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self.settings, self.tensors = settings, tensors

    @classmethod
    @abstractmethod
    def fit(cls, statistics: SiteStatistics, **settings: Any) -> Self:
        """Fit the estimator of all heads of a site from the statistics of a study."""

    @abstractmethod
    def estimate(self, call: AttentionCall) -> Estimate:
        """Estimate the scores of all pairs of a call with these heads."""

    @abstractmethod
    def cost(self, n: int, d: int) -> Cost:
        """Return multiply-adds for one head and one full input of n tokens, head dimension d."""

    def of_heads(self, heads: Sequence[int]) -> Self:
        """Return the same estimator for some of the heads."""
        index = torch.as_tensor(heads)
        return type(self)(
            self.settings, {name: x[index.to(x.device)] for name, x in self.tensors.items()}
        )

    @property
    def label(self) -> str:
        """Name and settings in one short string, such as `joint rank=8`."""
        return f"{self.name} {settings_label(self.settings)}".strip()

    def check_length(self, call: AttentionCall, length: int) -> None:
        """Refuse inputs longer than those of the study if parameters belong to positions."""
        if call.k.shape[2] > length:
            raise EigenlensError(
                f"{self.name} of {call.site.full_label} was fitted on {length} keys, but this input"
                f" has {call.k.shape[2]}; make a study and a plan of that length"
            )


def settings_label(settings: dict[str, Any]) -> str:
    """Write settings such as `rank=8 tail=True`."""
    shown = {
        key: f"{value:.3g}" if isinstance(value, float) else str(value)
        for key, value in settings.items()
    }
    return " ".join(f"{key}={value}" for key, value in shown.items())


def static_estimate(scores: Tensor, call: AttentionCall, cost: Cost) -> Estimate:
    """Return an estimate whose cost does not depend on the input."""
    n, d = call.k.shape[2], call.q.shape[3]
    ones = torch.ones(call.heads, device=scores.device)
    return Estimate(scores, ones * cost.pairs, ones * cost.share(n, d))

"""What a study is asked to do."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from ..errors import EigenlensError
from ..sources.inputs import Request

STATISTICS = ("rows", "moments", "matrices", "depth")


@dataclass(frozen=True)
class Options:
    """The inputs, what is measured on them, and how."""

    request: Request
    only: tuple[str, ...] = STATISTICS
    of: Literal["scores", "pattern"] = "scores"
    before_rope: bool = False
    rank: int = 64
    oversample: int = 16
    matrix_gigabytes: float = 4.0
    batch: int | None = None
    depth_every: int | None = None
    float64: bool = False

    def __post_init__(self) -> None:
        for name in self.only:
            if name not in STATISTICS:
                raise EigenlensError(f"no statistic {name!r}; there are {', '.join(STATISTICS)}")
        if not self.only:
            raise EigenlensError(f"no statistic is left; there are {', '.join(STATISTICS)}")
        if self.of not in ("scores", "pattern"):
            raise EigenlensError(f"a study is of scores or of the pattern, not of {self.of!r}")
        if self.rank < 1 or self.oversample < 0 or self.matrix_gigabytes < 0 or (self.batch or 1) < 1:
            raise EigenlensError("the rank and the batch must be at least 1, oversampling and memory not negative")
        if self.depth_every is not None and self.depth_every < 1:
            raise EigenlensError(f"metrics along depth are of every n-th input, with n at least 1, not {self.depth_every}")

    @property
    def columns(self) -> int:
        """ℓ, the columns of the matrix sketch."""
        return self.rank + self.oversample

    def batch_size(self, length: int) -> int:
        """Inputs in a batch: about 4,096 tokens."""
        return self.batch or max(1, 4096 // length)

    def every(self, length: int) -> int:
        """Metrics along depth are measured on every n-th input: on all of them they would cost more than the model.

        By default on one in 32, and in inputs of more than 256 tokens on one in `length / 8`, so that they take about a
        fifth of its time; where that would leave too few to say anything, on 16 inputs of up to 128 tokens, on 2 of a
        thousand or more.
        """
        least = min(16, max(2, 2048 // length))
        return self.depth_every or max(1, min(max(32, length // 8), self.request.inputs // least))

    def record(self) -> dict[str, Any]:
        return asdict(self)

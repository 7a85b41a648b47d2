"""What a study is asked to do."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from ..errors import EigenlensError
from ..sources.inputs import Request

STATISTICS = ("rows", "moments", "matrices")


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

    @property
    def columns(self) -> int:
        """ℓ, the columns of the matrix sketch."""
        return self.rank + self.oversample

    def batch_size(self, length: int) -> int:
        """Inputs in a batch: about 4,096 tokens."""
        return self.batch or max(1, 4096 // length)

    def record(self) -> dict[str, Any]:
        return asdict(self)

"""The options of a study."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ..data.inputs import Request
from ..diagnostics import DIAGNOSTICS, find_diagnostic
from ..errors import EigenlensError
from ..names import did_you_mean
from ..shell import STORED_AS, option

STATISTICS = ("rows", "moments", "matrices", "within", "depth", "diagnostics")
"""The statistics of a study by default; a diagnostic can also be named alone."""
LEAST = {"rank": 1, "matrix_memory": 0, "batch_size": 1, "shard_size": 1}
"""The smallest value that an option may have."""
KEPT_VECTORS = 16
"""How many leading eigenvectors of whole matrices a study keeps per head."""


@dataclass(frozen=True)
class Options:
    """The options of a study: its inputs, what is measured on them, and how."""

    request: Request
    only: tuple[str, ...] = STATISTICS
    of: Literal["scores", "pattern"] = "scores"
    before_rope: bool = False
    rank: int = 64
    oversample: int = 16
    matrix_memory: float = 4.0
    batch_size: int | None = None
    shard_size: int | None = None
    depth_every: int | None = None
    diagnostics_every: int | None = None
    thresholds: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    float64: bool = False

    def __post_init__(self) -> None:
        for name in self.only:
            if name not in STATISTICS and name not in DIAGNOSTICS:
                message = f"no statistic {name!r}{did_you_mean(name, (*STATISTICS, *DIAGNOSTICS))}"
                raise EigenlensError(
                    f"{message}; the statistics are {', '.join(STATISTICS)}, and the diagnostics"
                    f" are {', '.join(DIAGNOSTICS)}"
                )
        if not self.only:
            raise EigenlensError(f"no statistic was named; choose among {', '.join(STATISTICS)}")
        if self.of not in ("scores", "pattern"):
            raise EigenlensError(f"a study is of 'scores' or of the 'pattern', not of {self.of!r}")
        for name, least in LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise EigenlensError(f"{option(name, None)} must be at least {least}, not {value}")
        if self.depth_every is not None and self.depth_every < 1:
            raise EigenlensError(
                "metrics along depth are measured on every n-th input: n must be at least 1, not"
                f" {self.depth_every}"
            )
        if self.diagnostics_every is not None and self.diagnostics_every < 1:
            raise EigenlensError(
                "diagnostics are measured on every n-th input: n must be at least 1, not"
                f" {self.diagnostics_every}"
            )
        for name, settings in self.thresholds.items():
            if not isinstance(settings, Mapping):
                raise EigenlensError(
                    f'the thresholds of {name} must be a mapping, such as {{"epsilon": 0.2}},'
                    f" not {settings!r}"
                )
            find_diagnostic(name)(**settings)  # refuses what it does not know
            if name not in self.diagnosed:
                raise EigenlensError(
                    f"thresholds were given for {name}, which is not among the statistics of this"
                    " study; add it to them, or leave its thresholds out"
                )

    @property
    def columns(self) -> int:
        """The number ℓ of columns of the matrix sketch."""
        return self.rank + self.oversample

    def inputs_per_batch(self, length: int) -> int:
        """Inputs per batch; by default as many as make about 4,096 tokens."""
        return self.batch_size or max(1, 4096 // length)

    def inputs_per_shard(self, length: int) -> int:
        """Inputs per shard, by default about 16,384 tokens; a shard ends with a whole document."""
        return self.shard_size or max(1, 16384 // length)

    def depth_step(self, length: int) -> int:
        """The n of every n-th input on which metrics along depth are measured.

        On all inputs they would cost more than the model. By default it is one input in 32, and one
        in `length / 8` for inputs of more than 256 tokens, so that the metrics take about a fifth
        of the model's time. Small studies measure more often: on 16 inputs of up to 128 tokens, on
        2 of a thousand tokens or more.
        """
        return self.depth_every or self._step(length)

    def _step(self, length: int) -> int:
        least = min(16, max(2, 2048 // length))  # inputs without which a mean says little
        return max(1, min(max(32, length // 8), self.request.max_inputs // least))

    @property
    def diagnosed(self) -> dict[str, dict[str, Any]]:
        """The chosen diagnostics, with their thresholds."""
        chosen = (
            DIAGNOSTICS
            if "diagnostics" in self.only
            else [name for name in DIAGNOSTICS if name in self.only]
        )
        return {name: dict(self.thresholds.get(name, {})) for name in chosen}

    def diagnostics_step(self, length: int) -> int:
        """The n of every n-th input on which diagnostics are measured.

        By default 32, and `length / 8` for inputs of more than 256 tokens. Small studies measure
        more often: on 16 inputs of up to 128 tokens, on 2 of a thousand tokens or more.
        """
        return self.diagnostics_every or self._step(length)

    def record(self) -> dict[str, Any]:
        """The options as `study.json` keeps them."""
        named = {STORED_AS.get(name, name): value for name, value in asdict(self).items()}
        return {**named, "request": self.request.record(), "diagnosed": self.diagnosed}

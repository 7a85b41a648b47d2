"""A model for the time of a run: loaded, borrowed from its owner, and readable by workers."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from ..captures.borrowed import evaluation_mode
from ..data.needs import check_asked
from ..models.load import Model, load
from ..run.engine import Engine
from ..run.files import disk_errors
from .data_names import Data, data_names
from .model_ref import ModelRef


@dataclass(frozen=True)
class UsedModel:
    """A model as `use_model` gives it, with the data it shall read."""

    ref: ModelRef
    data: Data | None
    scratch: Path
    """A folder that is deleted when the run ends."""

    @property
    def model(self) -> Model:
        return self.ref.model

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Return the data as names that `prepare` understands; by default the model's own data."""
        with disk_errors(self.scratch):
            return data_names(self.data, self.model, self.scratch)


@contextlib.contextmanager
def use_model(
    model: str | Path | nn.Module | Model,
    data: Data | None = None,
    *,
    device: str | None = "auto",
    tokenizer: Any = None,
    engine: Engine | None = None,
    float64: bool = False,
) -> Iterator[UsedModel]:
    """Give a run its model while the block runs, and put the model back as it was.

    Refused are a model or data whose libraries are not installed, and, on a cluster, a model that
    the workers cannot load. With `float64` the run gets a copy in double precision.
    """
    with tempfile.TemporaryDirectory(prefix="eigenlens-data-") as scratch:
        check_asked(model, data)
        loaded = load(model, device=device, tokenizer=tokenizer)
        with evaluation_mode(loaded.module, device):
            ref = ModelRef.of(loaded, device)
            if engine is not None and engine.remote:
                ref.check_reachable()
            yield UsedModel(ref.in_double() if float64 else ref, data, Path(scratch))

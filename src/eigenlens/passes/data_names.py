"""Data in any form that a user gives, as names that `prepare` understands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from ..data.arrays import ArrayName, array_of
from ..data.datasets import DEFAULT_DATASET
from ..errors import EigenlensError
from ..models.load import Model

Data = str | Path | Sequence[str | Path] | np.ndarray | Tensor


def data_names(data: Data | None, model: Model, scratch: Path) -> tuple[str, ...]:
    """Return the data as names that `prepare` understands; arrays in memory become a file."""
    if data is None:
        defaults = {"vision": "photos", "audio": None, "module": None}
        name = defaults.get(model.kind, DEFAULT_DATASET)
        if name is None:
            raise EigenlensError(f"{model.name} has no default data; give some as `data`")
        return (name,)
    if isinstance(data, Tensor):
        data = data.detach().cpu().numpy()
    if isinstance(data, list | tuple) and data and not isinstance(data[0], str | Path):
        data = array_of(data)
    if isinstance(data, np.ndarray):
        return (ArrayName.of(data, scratch),)
    return (str(data),) if isinstance(data, str | Path) else tuple(map(str, data))

"""A reference to a model with which other processes can load it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..captures.precision import in_double, stays_double
from ..errors import EigenlensError
from ..models.load import Model, fingerprint_of, load

_HERE: dict[tuple[str, str | None, bool], Model] = {}
"""The model that this process loaded from a reference; only one, since it may fill the memory."""


@dataclass
class ModelRef:
    """A loaded model that is sent to other processes as the place it was loaded from.

    Each process loads it once, and checks that the weights are the same.
    """

    name: str
    place: str | None  # None where the model was given as a module
    fingerprint: str | None
    device: str | None
    double: bool
    _model: Model | None = field(default=None, repr=False)
    _checked: bool = field(default=False, repr=False)

    @classmethod
    def of(cls, model: Model, device: str | None = "auto", double: bool = False) -> ModelRef:
        """Refer to a model that is loaded here, already in double precision if `double`."""
        found: str | Path | None = model.facts.load_from
        if isinstance(found, Path):
            found = str(found.resolve())
        if model.facts.source == "module":
            found = None
        return cls(model.name, found, model.facts.fingerprint, device, double, model)

    def in_double(self) -> ModelRef:
        """Refer to a copy of the model in double precision."""
        copied = replace(self.model, module=in_double(self.model.module))
        return replace(self, double=True, _model=copied)

    def __getstate__(self) -> dict[str, Any]:
        if not self._checked:  # it travels once per stage, and a look at all weights takes time
            self.check_reachable()
        return {**vars(self), "_model": None}

    def check_reachable(self) -> None:
        """Refuse a model that other processes cannot load.

        Such as a module that was never saved, or whose weights changed after it was loaded.
        """
        changed = (
            self._model is not None
            and not self.double
            and fingerprint_of(self._model.module) != self.fingerprint
        )
        if self.place is None or changed:
            what = "was never saved" if self.place is None else "was changed after it was loaded"
            raise EigenlensError(
                f"{self.name} {what}, but a cluster loads models from disk: save it to a folder"
                " that all workers can read, or use the local engine"
            )
        self._checked = True

    @property
    def model(self) -> Model:
        if self._model is None:
            assert self.place is not None
            key = (self.place, self.device, self.double)
            known = _HERE.get(key)
            if known is None or known.facts.fingerprint != self.fingerprint:
                _HERE.clear()
                loaded = load(self.place, device=self.device)
                if loaded.facts.fingerprint != self.fingerprint:
                    raise EigenlensError(
                        f"{self.place} has other weights on this worker than where the run began;"
                        " copy the same model to both"
                    )
                known = _HERE[key] = (
                    replace(loaded, module=in_double(loaded.module)) if self.double else loaded
                )
            self._model = known
        return self._model

    @contextlib.contextmanager
    def running(self) -> Iterator[Model]:
        """A context around passes of the model."""
        with stays_double() if self.double else contextlib.nullcontext():
            yield self.model

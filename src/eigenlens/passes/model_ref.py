"""A model as other processes can find it."""

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
"""The model that this process loaded from its place; one, since it may fill the memory."""


@dataclass
class ModelRef:
    """A loaded model, which travels as its place.

    Where it arrives it is loaded once, and must have the same weights.
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
        """Of a model that is loaded here, already in double if it is to be `double`."""
        found: str | Path | None = model.facts.load_from
        if isinstance(found, Path):
            found = str(found.resolve())
        if model.facts.source == "module":
            found = None
        return cls(model.name, found, model.facts.fingerprint, device, double, model)

    def in_double(self) -> ModelRef:
        """The same of a copy of the model in double precision."""
        copied = replace(self.model, module=in_double(self.model.module))
        return replace(self, double=True, _model=copied)

    def __getstate__(self) -> dict[str, Any]:
        if not self._checked:  # it travels once per stage, and a look at all weights takes time
            self.check_reachable()
        return {**vars(self), "_model": None}

    def check_reachable(self) -> None:
        """Refuse a model that other processes cannot load.

        A module that was never saved, or one whose weights were changed since it was loaded.
        """
        changed = (
            self._model is not None
            and not self.double
            and fingerprint_of(self._model.module) != self.fingerprint
        )
        if self.place is None or changed:
            what = "was never saved" if self.place is None else "was changed since it was loaded"
            raise EigenlensError(
                f"{self.name} {what}, and a cluster loads a model from its place: save it to a"
                " folder that the workers see, or use the local engine"
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
                        f"{self.place} has other weights here than where the run was begun"
                    )
                known = _HERE[key] = (
                    replace(loaded, module=in_double(loaded.module)) if self.double else loaded
                )
            self._model = known
        return self._model

    @contextlib.contextmanager
    def running(self) -> Iterator[Model]:
        """Around passes of the model."""
        with stays_double() if self.double else contextlib.nullcontext():
            yield self.model

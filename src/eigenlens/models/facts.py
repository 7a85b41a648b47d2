"""What a model is: its name, its kind, its weights, and where it can be loaded from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

Kind = Literal["encoder", "decoder", "encoder-decoder", "vision", "audio", "module"]
Source = Literal["catalogue", "folder", "hub", "module"]


@dataclass(frozen=True)
class ModelFacts:
    """A model by its name, its weights by their fingerprint, and where it can be loaded from.

    All facts of a loaded model are known, as far as they apply; a record may know fewer.
    """

    name: str
    kind: Kind | None = None
    source: Source | None = None
    architecture: str | None = None
    parameters: int | None = None
    fingerprint: str | None = None
    place: str | None = None
    """The folder or hub id; None for a model of the catalogue or a module in memory."""
    note: str | None = None

    @classmethod
    def from_record(cls, record: str | Mapping[str, Any]) -> ModelFacts:
        """Read facts from JSON, where a model may be given by its name alone."""
        if isinstance(record, str):
            return cls(record)
        return cls(**{each.name: record[each.name] for each in fields(cls) if each.name in record})

    def record(self, keys: Sequence[str] | None = None) -> dict[str, Any]:
        """The facts as JSON stores them: all known ones, or those of `keys`, None if unknown."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        if keys is not None:
            return {key: found[key] for key in keys}
        return {name: value for name, value in found.items() if value is not None}

    @property
    def load_from(self) -> str | Path:
        """What `load` takes to load the model again: a folder, a hub id or a catalogue name."""
        place = self.place or self.name
        return Path(place) if self.source == "folder" else place

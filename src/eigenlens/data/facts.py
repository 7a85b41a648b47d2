"""Facts about data: its name, its size, and how its documents were split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from ..display import few_names, numbered


@dataclass(frozen=True)
class DataFacts:
    """Data by its name, and how its documents were split; a record may know only the name."""

    name: str
    documents: int | None = None
    documents_held_out: int | None = None
    inputs_fit: int | None = None
    inputs_held_out: int | None = None
    padded: bool | None = None
    tokens: int | None = None
    """For text: the number of tokens without padding."""
    image_size: int | None = None
    """For pictures: pixels per side."""
    sampling_rate: int | None = None
    """For sound: samples per second."""
    fingerprint: str | None = None
    is_input: bool = False
    """Whether the name is the one input itself, such as the text of an explanation."""

    @classmethod
    def from_record(cls, record: str | Mapping[str, Any], is_input: bool = False) -> DataFacts:
        """Read facts from JSON, where data may be given by its name alone."""
        if isinstance(record, str):
            return cls(record, is_input=is_input)
        return cls(**{each.name: record[each.name] for each in fields(cls) if each.name in record})

    def record(self) -> str | dict[str, Any]:
        """The facts as JSON stores them: what is known, or the one input itself."""
        if self.is_input:
            return self.name
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        del found["is_input"]
        return {name: value for name, value in found.items() if value is not None}

    def count(self, number: int) -> str:
        """So many inputs in words: `300 texts`, `1 picture`, `12 recordings`."""
        noun = "picture" if self.image_size else "recording" if self.sampling_rate else "text"
        return numbered(number, noun)

    @property
    def few_names(self) -> str:
        """The name for a title: names of files, or how many there are."""
        return self.name if self.is_input else few_names(self.name)

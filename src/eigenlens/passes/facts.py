"""What every result says of its model, its data, and of what it was made with."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol

from ..display import few_names
from ..models.load import Model, place_of
from ..run.result import Result
from .versions import versions


@dataclass(frozen=True)
class ModelFacts:
    """A model by its name, its weights by their fingerprint, and where it can be loaded from."""

    name: str
    kind: str | None = None
    source: str | None = None
    architecture: str | None = None
    parameters: int | None = None
    fingerprint: str | None = None
    place: str | None = None
    note: str | None = None

    @classmethod
    def of(cls, model: Model) -> ModelFacts:
        return cls.from_record({"name": model.name, "kind": model.kind, **model.facts})

    @classmethod
    def from_record(cls, record: str | Mapping[str, Any]) -> ModelFacts:
        """From JSON, where a model may be its name alone."""
        return cls(record) if isinstance(record, str) else cls(**_known(cls, record))

    @property
    def load_from(self) -> str | Path:
        """What `load` takes to load it again: a folder, a hub id or a catalogue name."""
        return place_of(self.record())

    def record(self) -> dict[str, Any]:
        return _given(self)


@dataclass(frozen=True)
class DataFacts:
    """Data by its name, and how its documents were split."""

    name: str
    documents: int | None = None
    documents_held_out: int | None = None
    inputs_fit: int | None = None
    inputs_held_out: int | None = None
    padded: bool | None = None
    fingerprint: str | None = None
    is_input: bool = False
    """The name is the one input itself, such as the text of an explanation."""

    @classmethod
    def from_record(cls, record: str | Mapping[str, Any], is_input: bool = False) -> DataFacts:
        """From JSON, where data may be its name alone."""
        if isinstance(record, str):
            return cls(record, is_input=is_input)
        return cls(**_known(cls, record))

    @property
    def few_names(self) -> str:
        """The name as a title has it: names of files, or how many there are."""
        return self.name if self.is_input else few_names(self.name)


@dataclass(frozen=True)
class Facts:
    """What a result is of, and how and when it was made.

    It is read from the JSON of a result; a new one writes the same keys, those of its making by
    `made_now`.

    >>> study.facts.model.name, study.facts.data.name, study.facts.inputs, study.facts.seconds
    """

    model: ModelFacts
    data: DataFacts
    length: int | None = None
    inputs: int | None = None
    notes: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    seconds: float | None = None
    created: str | None = None

    @classmethod
    def from_record(
        cls, record: Mapping[str, Any], *, model: Any = None, data: Any = None, text: bool = False
    ) -> Facts:
        """From JSON; `model` and `data` are those of a record that keeps them elsewhere.

        With `text`, the data of the record is the one input itself.
        """
        return cls(
            ModelFacts.from_record(record["model"] if model is None else model),
            DataFacts.from_record(record["data"] if data is None else data, text),
            record.get("length"),
            record.get("inputs"),
            tuple(record.get("notes", ())),
            record.get("versions", {}),
            record.get("seconds"),
            record.get("created"),
        )

    @property
    def name(self) -> str:
        """Model and data: `minilm on python-docs`."""
        return f"{self.model.name} on {self.data.few_names}"


class ModelResult(Result, Protocol):
    """A result of one model on some data."""

    @property
    def facts(self) -> Facts:
        """What it is of, and how and when it was made."""


def made_now(model: Model, seconds: float | None = None) -> dict[str, Any]:
    """What a new result records of its model and its making: model, versions, seconds, created."""
    taken = {} if seconds is None else {"seconds": seconds}
    return {
        "model": ModelFacts.of(model).record(),
        "versions": versions(),
        **taken,
        "created": now(),
    }


def now() -> str:
    """The time to write into a result, in UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _known(kind: type, record: Mapping[str, Any]) -> dict[str, Any]:
    """What a record has of the fields of a dataclass."""
    return {each.name: record[each.name] for each in fields(kind) if each.name in record}


def _given(facts: Any) -> dict[str, Any]:
    found = {each.name: getattr(facts, each.name) for each in fields(facts)}
    return {name: value for name, value in found.items() if value is not None}

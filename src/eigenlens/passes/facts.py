"""What every result says about its model, its data and how it was made."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..data.facts import DataFacts
from ..models.facts import ModelFacts
from ..run.result import Result, ResultViews
from .versions import versions


@dataclass(frozen=True)
class Facts:
    """What a result is about, and how and when it was made.

    A new result gets them from `now` and writes them with `record`; a stored one reads them back.

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
    def now(
        cls,
        model: ModelFacts,
        data: DataFacts,
        *,
        length: int,
        inputs: int,
        notes: Sequence[str] = (),
        seconds: float | None = None,
    ) -> Facts:
        """Facts of a result that is made now, with the versions installed here; the time is UTC."""
        created = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        return cls(model, data, length, inputs, tuple(notes), versions(), seconds, created)

    @classmethod
    def from_record(
        cls, record: Mapping[str, Any], *, model: Any = None, data: Any = None, text: bool = False
    ) -> Facts:
        """Read facts from JSON; `model` and `data` are for records that keep these elsewhere.

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

    def record(
        self, *keys: str, model: Sequence[str] | None = None, by_name: bool = False
    ) -> dict[str, Any]:
        """The facts as JSON stores them: these keys, in this order.

        Each kind of result stores its own keys. `model` are the facts about the model to store; by
        default all that are known. With `by_name`, only the names of model and data are stored.
        """
        found = {
            "eigenlens": self.versions["eigenlens"],
            "model": self.model.name if by_name else self.model.record(model),
            "data": self.data.name if by_name else self.data.record(),
            "length": self.length,
            "inputs": self.inputs,
            "notes": list(self.notes),
            "versions": dict(self.versions),
            "seconds": self.seconds,
            "created": self.created,
        }
        return {key: found[key] for key in keys}

    @property
    def name(self) -> str:
        """Model and data in words: `minilm on python-docs`."""
        return f"{self.model.name} on {self.data.few_names}"


class ModelResult(Result, Protocol):
    """A result of one model on some data."""

    @property
    def facts(self) -> Facts:
        """What the result is about, and how and when it was made."""


class ModelResultViews(ResultViews):
    """What every result of one model has; `stored` is what its JSON file says."""

    stored: dict[str, Any]

    @property
    def facts(self) -> Facts:
        """What the result is about, and how and when it was made."""
        return Facts.from_record(self.stored)

    @property
    def name(self) -> str:
        """Model and data in words: `minilm on python-docs`."""
        return self.facts.name

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know: what was left out, and what is special about the inputs."""
        return self.facts.notes

"""What every result says of its model, its data, and of what it was made with."""

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
    """What a result is of, and how and when it was made.

    A new result has them by `now` and writes them by `record`; a stored one reads them back.

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
        """Of a result that is made now, by the versions that are here; the time is in UTC."""
        created = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        return cls(model, data, length, inputs, tuple(notes), versions(), seconds, created)

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

    def record(
        self, *keys: str, model: Sequence[str] | None = None, by_name: bool = False
    ) -> dict[str, Any]:
        """As JSON keeps it: these keys, in this order.

        The kinds of results keep different ones. `model` are the facts of the model that are kept;
        default: all that are known. With `by_name`, model and data are their names alone.
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
        """Model and data: `minilm on python-docs`."""
        return f"{self.model.name} on {self.data.few_names}"


class ModelResult(Result, Protocol):
    """A result of one model on some data."""

    @property
    def facts(self) -> Facts:
        """What it is of, and how and when it was made."""


class ModelResultViews(ResultViews):
    """What a result of one model has without saying so; `stored` is what its JSON says of it."""

    stored: dict[str, Any]

    @property
    def facts(self) -> Facts:
        """What it is of, and how and when it was made."""
        return Facts.from_record(self.stored)

    @property
    def name(self) -> str:
        """Model and data: `minilm on python-docs`."""
        return self.facts.name

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader has to know: what was left out, what is special about its inputs."""
        return self.facts.notes

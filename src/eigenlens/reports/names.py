"""The labels that tell the models of a page apart."""

from __future__ import annotations

from dataclasses import dataclass

from ..display import listed
from ..passes.facts import ModelResult
from .results import Results

LONGEST = 200
"""The most characters of a name of data; for an explanation that is its text."""
MOST = 2000
"""The most characters of all names of data."""
DIGITS = 6
"""Digits of the fingerprint of weights, if two models have one name."""


@dataclass(frozen=True)
class Names:
    """The label of every model, by its name and the fingerprint of its weights."""

    labels: dict[tuple[str, str], str]

    @classmethod
    def of(cls, results: Results) -> Names:
        models = list(dict.fromkeys(_model(result) for result in results.all))
        shared = {
            name for name, weights in models if any(n == name and w != weights for n, w in models)
        }
        return cls({(n, w): f"{n} ({w[:DIGITS]})" if n in shared and w else n for n, w in models})

    @property
    def several(self) -> bool:
        """Whether the page has several models, so that each part must name its model."""
        return len(self.labels) > 1

    @property
    def title(self) -> str:
        """All models in one text: `minilm`, `minilm and smollm2`, `minilm, smollm2 and gpt2`."""
        return listed(list(dict.fromkeys(self.labels.values())))

    def model(self, result: ModelResult) -> str:
        return self.labels[_model(result)]

    def full_name(self, result: ModelResult) -> str:
        """Model and data of a result: `minilm on python-docs`."""
        return f"{self.model(result)} on {data_of(result)}"

    def relabelled(self, text: str, result: ModelResult) -> str:
        """A text that begins with the name of the model, with the label of the model instead."""
        name = _model(result)[0]
        return f"{self.model(result)}{text.removeprefix(name)}" if text.startswith(name) else text


def _model(result: ModelResult) -> tuple[str, str]:
    return result.facts.model.name, result.facts.model.fingerprint or ""


def data_of(result: ModelResult) -> str:
    """The data in a few words: names of files, or how many there are.

    For an explanation, its text.
    """
    return _cut(result.facts.data.few_names, LONGEST)


def all_data_of(result: ModelResult) -> str:
    """The data with every name; for an explanation, its text."""
    data = result.facts.data
    return _cut(data.name, LONGEST if data.is_input else MOST)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}…"

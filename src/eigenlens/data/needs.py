"""Extra libraries that models and data sets of the catalogue need, known before any download."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from ..extras import needs
from ..models.catalogue import MODELS, is_converted
from .datasets import DATASETS

PHOTOS = "photos"
"""The pictures that a vision model gets if no other data is named."""


def check_named(names: Iterable[Any], what: str = "") -> None:
    """Refuse models and data sets, by name, whose libraries are not installed.

    A name in no list needs no library that is known.

    `what` is the work that reads them all; without it each is named by itself.
    """
    asked = {name: _libraries(name) for name in names if isinstance(name, str | Path)}
    if what:
        needs(*(library for some in asked.values() for library in some), what=what)
    for name, libraries in asked.items():
        needs(*libraries, what=f"the {'data set' if str(name) in DATASETS else 'model'} {name}")


def check_asked(model: Any, data: Any = None) -> None:
    """Refuse a model and data, as a user gives them, whose libraries are not installed."""
    given = list(data) if isinstance(data, list | tuple) else [data]
    looks = isinstance(model, str) and model in MODELS and MODELS[model].kind == "vision"
    check_named([model, PHOTOS if data is None and looks else None, *given])


def names_of_scale(scale: Any) -> tuple[str, ...]:
    """Return the models and data sets that a scale names.

    Also the photographs, if a vision model is given no other pictures.
    """
    found = tuple(
        dict.fromkeys(name for name in _texts(scale) if name in MODELS or name in DATASETS)
    )
    looks = any(name in MODELS and MODELS[name].kind == "vision" for name in found)
    shown = any(name in DATASETS and DATASETS[name].kind == "images" for name in found)
    return (*found, PHOTOS) if looks and not shown else found


def _libraries(name: str | Path) -> tuple[str, ...]:
    known = str(name)
    if known in MODELS:
        entry = MODELS[known]
        convert = () if is_converted(known) else entry.libraries
        return (*convert, "PIL") if entry.kind == "vision" else convert
    if known in DATASETS:
        return DATASETS[known].libraries
    return ()


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            yield from _texts(getattr(value, field.name))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)

"""Short names of models from elsewhere: `load` knows them while a run lasts.

A run that is given folders and hub ids writes tables and files by model. It calls a model by the
end of its place, such as `bert-base` for `/models/bert-base`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from .catalogue import MODELS

_PLACES: ContextVar[Mapping[str, str] | None] = ContextVar("places of models", default=None)


@contextmanager
def named(places: Mapping[str, str]) -> Iterator[None]:
    """Let `load` take these names, each for the folder or hub id beside it."""
    before = _PLACES.set({**(_PLACES.get() or {}), **places})
    try:
        yield
    finally:
        _PLACES.reset(before)


def place_of(name: str) -> str:
    """Where the model of that name is; the name itself if nothing borrowed it."""
    return (_PLACES.get() or {}).get(name, name)


def short_names(places: Sequence[str]) -> dict[str, str]:
    """Name → place, for different places: a folder is named by as little of its end as tells it.

    Names of the catalogue and hub ids stay as they are, and no folder is called like one of them.

    >>> short_names(["minilm", "org/bert"])
    {'minilm': 'minilm', 'org/bert': 'org/bert'}
    """
    folders = [place for place in places if place not in MODELS and Path(place).is_dir()]
    found = {place: place for place in places if place not in folders}
    parts = {place: Path(place).resolve().parts[1:] for place in folders}
    for place in folders:
        for length in range(1, len(parts[place]) + 1):
            end = parts[place][-length:]
            name = "/".join(end)
            shared = any(parts[other][-length:] == end for other in folders if other != place)
            if not shared and name not in MODELS and name not in found:
                break
        found[name] = place
    return {name: found[name] for name in sorted(found, key=lambda one: places.index(found[one]))}

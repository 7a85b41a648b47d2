"""Labels for people: heads are `L3H4`, layers `L3`; with several stacks `encoder L3`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from ..errors import EigenlensError
from ..names import unknown_name
from .sites import Head, Site, location_of

V = TypeVar("V")

_WHERE = ("stack", "layer", "head")


class Labels:
    """The labels of layers and heads among these stacks.

    The name of the stack comes first if there are several.

    >>> Labels(["encoder"])(Head("encoder", 3, 4))
    'L3H4'
    >>> both = Labels(["encoder", "decoder", "decoder.cross"])
    >>> both(Head("decoder.cross", 3, 4)), both(Site("encoder", 0)), both.stack("decoder.cross")
    ('cross L3H4', 'encoder L0', 'cross')
    """

    def __init__(self, stacks: Iterable[str]) -> None:
        known = dict.fromkeys(stacks)
        short = {stack: "cross" if stack.endswith(".cross") else stack for stack in known}
        number = Counter(short.values())
        self._stacks = {
            stack: name if number[name] == 1 else stack for stack, name in short.items()
        }

    def __call__(self, where: Head | Site | str) -> str:
        """The label of a head, a layer, or a stack, which is given by its name."""
        if isinstance(where, str):
            return self.stack(where)
        several = len(self._stacks.keys() | {where.stack}) > 1
        return f"{self.stack(where.stack)} {where.label}" if several else where.label

    def stack(self, stack: str) -> str:
        """The label of a stack: `cross` for `decoder.cross`, if no other stack has that label."""
        return self._stacks.get(stack, stack)


def unknown_location(
    what: str, given: Head | Site | str, known: Iterable[Head | Site | str]
) -> EigenlensError:
    """Return the error for an unknown head, layer or stack."""
    locations = [*known, given]
    labels = Labels(_stacks(locations))
    return unknown_name(what, labels(given), [labels(location) for location in locations[:-1]])


def _stacks(locations: Iterable[Head | Site | str]) -> list[str]:
    return [location.stack for location in locations if not isinstance(location, str)]


class BySite(dict[Site, V]):
    """A dictionary by site whose error for an unknown site lists the known ones."""

    def __missing__(self, site: Site) -> V:
        raise unknown_location("site", site, self)


def labelled(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows for people: one column of labels replaces stack, layer and head.

    The column is called `head` or `layer`. Heads without a stack belong to models with one stack.
    In a table with several models, each model decides by itself whether its stacks are named. Other
    tables stay as they are.

    >>> labelled([{"stack": "encoder", "layer": 3, "head": 4, "rate": 0.5}])
    [{'head': 'L3H4', 'rate': 0.5}]
    """
    if not all(isinstance(row.get("layer"), int) for row in rows):
        return [dict(row) for row in rows]
    column = "head" if all(isinstance(row.get("head"), int) for row in rows) else "layer"
    if column == "layer" and not all("stack" in row for row in rows):
        return [dict(row) for row in rows]
    stacks: dict[Any, list[str]] = {}
    for row in rows:
        stacks.setdefault(row.get("model"), []).append(row.get("stack", ""))
    labels = {model: Labels(own) for model, own in stacks.items()}
    made = []
    for row in rows:
        first = next(key for key in row if key in _WHERE)
        label = labels[row.get("model")](location_of({"stack": "", **row}))
        made.append(
            {
                column if key == first else key: label if key == first else x
                for key, x in row.items()
                if key == first or key not in _WHERE
            }
        )
    return made

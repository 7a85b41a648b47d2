"""The contract of every streaming statistic."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Protocol, Self, TypeVar

from torch import Tensor

from ..captures import AttentionCall, Site
from ..captures.sites import field_of
from ..errors import EigenlensError

K = TypeVar("K")
T = TypeVar("T")
State = dict[str, Tensor]
"""Named tensors, ready for a safetensors file.

Names are `site/field` with sites such as `encoder/3`.
"""


class Statistic(Protocol):
    """What a pass over the data accumulates.

    Memory does not grow with the number of inputs, and `merge` is associative: one pass, shards on
    many machines and a resumed run give the same numbers. `state` and `from_state` are inverse to
    each other, to the last bit.
    """

    def update(self, call: AttentionCall) -> None: ...

    def merge(self, other: Self) -> None:
        """Add what `other` has seen; `other` does not change."""

    def state(self) -> State: ...

    @classmethod
    def from_state(cls, state: State, **settings: Any) -> Self: ...

    def result(self) -> Any: ...


def add_sites(mine: dict[K, T], theirs: dict[K, T], add: Callable[[T, T], T]) -> None:
    """Merge two dictionaries of accumulators by site, without sharing memory between them."""
    for site, other in theirs.items():
        mine[site] = add(mine[site], other) if site in mine else copy.deepcopy(other)


def by_site(state: State) -> dict[Site, State]:
    """`{"encoder/3/second": x}` → `{Site("encoder", 3): {"second": x}}`."""
    sites: dict[Site, State] = {}
    for name, tensor in state.items():
        site, part = field_of(name)
        sites.setdefault(site, {})[part] = tensor
    return sites


def same_shape(where: str, mine: tuple[int, ...], theirs: tuple[int, ...]) -> None:
    """Refuse inputs of different lengths, which cannot share a covariance over positions."""
    if mine != theirs:
        raise EigenlensError(
            f"{where} was seen with shapes {mine} and {theirs}, but"
            " all inputs of a study must have one length"
        )

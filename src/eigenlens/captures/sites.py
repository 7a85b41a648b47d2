"""Where something is in a model: a layer (`Site`) or a head, and their labels."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from torch import nn

if TYPE_CHECKING:
    from .call import AttentionCall

_CROSS = re.compile(r"cross|encoder_attn|encdecattention|multihead_attn", re.IGNORECASE)


@dataclass(frozen=True, order=True)
class Site:
    """The attention of one layer.

    `stack` groups the layers that belong together, `layer` counts within it.

    A BERT has the stack `encoder`, a T5 has `encoder`, `decoder` and `decoder.cross`, a Llama has
    `self`. `str` is the key in files, `label` is what a person reads.

    >>> str(Site("encoder", 3)), Site("encoder", 3).label
    ('encoder/3', 'L3')
    """

    stack: str
    layer: int

    def __str__(self) -> str:
        return f"{self.stack}/{self.layer}"

    @property
    def label(self) -> str:
        """The label, such as `L3`; `Labels` puts the stack in front."""
        return f"L{self.layer}"

    @property
    def full_label(self) -> str:
        """The label with its stack, `encoder L3`, for use where other stacks are not known."""
        return f"{self.stack} {self.label}"

    @classmethod
    def parse(cls, key: str) -> Site:
        """Return the site of a key such as `encoder/3`, the inverse of `str`."""
        stack, _, layer = key.rpartition("/")
        return cls(stack, int(layer))


@dataclass(frozen=True, order=True)
class Head:
    """One head of one layer.

    >>> Head("encoder", 3, 4).label, str(Head("encoder", 3, 4).site)
    ('L3H4', 'encoder/3')
    """

    stack: str
    layer: int
    head: int

    @property
    def site(self) -> Site:
        """The layer of the head."""
        return Site(self.stack, self.layer)

    @property
    def label(self) -> str:
        """The label, such as `L3H4`; `Labels` puts the stack in front."""
        return f"L{self.layer}H{self.head}"


def location(stack: str, layer: int, head: int | None = None) -> Head | Site:
    """Return the head, or the layer if no head is given.

    >>> location("encoder", 3, 4), location("encoder", 3)
    (Head(stack='encoder', layer=3, head=4), Site(stack='encoder', layer=3))
    """
    return Site(stack, layer) if head is None else Head(stack, layer, head)


def location_of(row: Mapping[str, Any]) -> Head | Site:
    """Return the location of a record with `stack` and `layer`, and `head` if it has one."""
    return location(row["stack"], row["layer"], row.get("head"))


def field_of(name: str) -> tuple[Site, str]:
    """Return site and field from the name of a tensor in a state.

    >>> field_of("encoder/3/values")
    (Site(stack='encoder', layer=3), 'values')
    """
    site, _, field = name.rpartition("/")
    return Site.parse(site), field


class SiteNames:
    """Maps each attention module to its `Site`, the same in every pass over the same model.

    The stack is the module path up to its first number, without the name of the list
    (`encoder.layer.3.…` → `encoder`); the layer is the one number of the path that differs within
    the stack. A module that is called again in the same pass (shared layers, as in ALBERT), and
    nested numbering (stages of blocks), count upwards from there. In a transformers model with a
    task's head, the stack is named as in the backbone, which is what a study reads: `self/3`, not
    `model/3`.
    """

    def __init__(self, model: nn.Module) -> None:
        self.paths = {id(module): path for path, module in model.named_modules()}
        self._front = front_of(model)
        numbers: dict[str, list[set[int]]] = {}
        for path in self.paths.values():
            found = [int(part) for part in path.split(".") if part.isdigit()]
            sets = numbers.setdefault(path_pattern(path), [set() for _ in found])
            for values, number in zip(sets, found):
                values.add(number)
        self._varying = {
            p: [i for i, values in enumerate(sets) if len(values) > 1]
            for p, sets in numbers.items()
        }
        self._pass = _SitePass()

    def start_pass(self) -> None:
        self._pass.used.clear()

    def __contains__(self, module: nn.Module) -> bool:
        return id(module) in self.paths

    def path(self, module: nn.Module) -> str:
        return self.paths[id(module)]

    def kind(self, module: nn.Module) -> Literal["self", "cross"]:
        cross = getattr(module, "is_cross_attention", False) or _CROSS.search(
            self.path(module).rpartition(".")[2]
        )
        cross = cross or _CROSS.search(".".join(self.path(module).split(".")[-2:]))
        return "cross" if cross else "self"

    def site(self, module: nn.Module) -> Site:
        path = self.path(module)
        stack = stack_of(path, self._front)
        if self.kind(module) == "cross":
            stack = "cross" if stack == "self" else f"{stack}.cross"
        varying = self._varying[path_pattern(path)]
        numbers = [int(part) for part in path.split(".") if part.isdigit()]
        site = Site(stack, numbers[varying[0]] if len(varying) == 1 else 0)
        while site in self._pass.used:
            site = Site(stack, site.layer + 1)
        self._pass.used.add(site)
        return site


class _SitePass(threading.local):
    """The sites that were called in the pass that this thread runs."""

    def __init__(self) -> None:
        self.used: set[Site] = set()

    def __reduce__(self) -> tuple[type[_SitePass], tuple[()]]:
        return _SitePass, ()  # a copy of a model runs passes of its own


def stack_of(path: str, front: Sequence[str] = ()) -> str:
    """Return the stack of a block: its path up to the list, `encoder.layer.3` → `encoder`.

    Without the `front` that leads to the backbone.

    >>> stack_of("encoder.layer.3"), stack_of("model.layers.3")
    ('encoder', 'model')
    >>> stack_of("model.layers.3", ["model"])
    'self'
    """
    parts = path.split(".")
    first = next((i for i, part in enumerate(parts) if part.isdigit()), len(parts))
    before = parts[: max(first - 1, 0)]
    return (
        ".".join(before[len(front) :] if before[: len(front)] == list(front) else before) or "self"
    )


def front_of(model: nn.Module) -> list[str]:
    """Return the path of the backbone in a transformers model; empty for any other module."""
    # slow to load; before that, nothing is a model of it
    library = sys.modules.get("transformers.modeling_utils")
    if library is None or not isinstance(model, library.PreTrainedModel):
        return []
    backbone = model.base_model
    if backbone is model:
        return []
    path = next(path for path, module in model.named_modules() if module is backbone)
    return path.split(".")


def path_pattern(path: str) -> str:
    """Return a path with `*` for every number in it.

    >>> path_pattern("encoder.layer.3.attention")
    'encoder.layer.*.attention'
    """
    return ".".join("*" if part.isdigit() else part for part in path.split("."))


@dataclass(frozen=True)
class SiteInfo:
    """What one call shows about its site: the attention module, and the shapes of its scores.

    Scores are `(B, heads, queries, keys)`; queries are `(B, heads, queries, head_dimension)`, keys
    `(B, kv_heads, keys, head_dimension)`.
    """

    kind: Literal["self", "cross"]
    name: str  # the path of the module in the backbone
    heads: int
    kv_heads: int
    queries: int
    keys: int
    head_dimension: int
    mask: str  # the form of the mask, as `MaskShape` names it
    linear: bool  # whether the scores are plain products, without a cap or a bias
    pairs: int  # of a query and a key that any head may attend to, in the first input

    @classmethod
    def of_call(cls, call: AttentionCall) -> SiteInfo:
        (_, H, T, D), (_, G, S, _) = call.q.shape, call.k.shape
        pairs = int(call.valid()[0].any(0).sum())
        return cls(call.kind, call.name, H, G, T, S, D, call.mask_shape.form, call.linear, pairs)

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> SiteInfo:
        """The inverse of `record`; older studies do not store `linear`, which was then True."""
        known = {"linear": True, **record}
        return cls(**{name: known[name] for name in cls.__dataclass_fields__})

    def record(self) -> dict[str, Any]:
        """The entry as a study's JSON stores it."""
        return asdict(self)


def attention_kinds(sites: Mapping[Site, SiteInfo]) -> dict[str, Literal["self", "cross"]]:
    """Return the attention modules by path, with the kind of their attention.

    They show where the blocks are.
    """
    return {site.name: site.kind for site in sites.values()}

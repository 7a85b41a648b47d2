"""Where in a model something is: a layer (`Site`) or a head, and what both are called."""

from __future__ import annotations

import re
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from torch import nn

if TYPE_CHECKING:
    from .call import AttentionCall

_CROSS = re.compile(r"cross|encoder_attn|encdecattention|multihead_attn", re.IGNORECASE)


@dataclass(frozen=True, order=True)
class Site:
    """The attention of one layer: `stack` groups the layers that belong together, `layer` counts
    within it.

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
        """Such as `L3`; with the stack in front by `Labels`."""
        return f"L{self.layer}"

    @classmethod
    def parse(cls, key: str) -> Site:
        """The inverse of `str`: `encoder/3`."""
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
        return Site(self.stack, self.layer)

    @property
    def label(self) -> str:
        """Such as `L3H4`; with the stack in front by `Labels`."""
        return f"L{self.layer}H{self.head}"


def location(stack: str, layer: int, head: int | None = None) -> Head | Site:
    """The head, or the layer where there is no head.

    >>> location("encoder", 3, 4), location("encoder", 3)
    (Head(stack='encoder', layer=3, head=4), Site(stack='encoder', layer=3))
    """
    return Site(stack, layer) if head is None else Head(stack, layer, head)


def location_of(row: Mapping[str, Any]) -> Head | Site:
    """The location of a record with `stack` and `layer`, and `head` if it is about a head."""
    return location(row["stack"], row["layer"], row.get("head"))


class Labels:
    """What layers and heads are called where all these stacks are beside each other: with the stack
    in front if there are several.

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
        """Of a head, a layer, or a stack, which is given by its name."""
        if isinstance(where, str):
            return self.stack(where)
        several = len(self._stacks.keys() | {where.stack}) > 1
        return f"{self.stack(where.stack)} {where.label}" if several else where.label

    def stack(self, stack: str) -> str:
        """What a stack is called: `cross` for `decoder.cross`, if no other is called so."""
        return self._stacks.get(stack, stack)


def labelled(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows to read: stack, layer and head become one column `head`, or `layer`, of labels.

    Of a table with several models, the stacks of each model alone say whether stacks are named.

    >>> labelled([{"stack": "encoder", "layer": 3, "head": 4, "rate": 0.5}])
    [{'head': 'L3H4', 'rate': 0.5}]
    """
    if not all({"stack", "layer"} <= row.keys() for row in rows):
        return [dict(row) for row in rows]
    stacks: dict[Any, list[str]] = {}
    for row in rows:
        stacks.setdefault(row.get("model"), []).append(row["stack"])
    labels = {model: Labels(own) for model, own in stacks.items()}
    column = "head" if any(row.get("head") is not None for row in rows) else "layer"
    made = []
    for row in rows:
        at = row["stack"] if row["layer"] is None else location_of(row)
        own = {**row, "stack": labels[row.get("model")](at)}
        made.append(
            {
                column if key == "stack" else key: value
                for key, value in own.items()
                if key not in ("layer", "head")
            }
        )
    return made


def field_of(name: str) -> tuple[Site, str]:
    """Site and field of the name of a tensor in a state.

    >>> field_of("encoder/3/values")
    (Site(stack='encoder', layer=3), 'values')
    """
    site, _, field = name.rpartition("/")
    return Site.parse(site), field


class SiteNames:
    """Turns the module that attends into a `Site`, the same for every pass over the same model.

    The stack is the module path up to its first number, without the name of the list
    (`encoder.layer.3.…` → `encoder`); the layer is the one number of the path that differs within
    the stack. A module that is called again in the same pass (shared layers, as in ALBERT), and
    nested numbering (stages of blocks), count upwards from there. Of a transformers model with a
    head the stack is named as in its backbone, which a study looks at: `self/3`, not `model/3`.
    """

    def __init__(self, model: nn.Module) -> None:
        self.paths = {id(module): path for path, module in model.named_modules()}
        self._front = front_of(model)
        numbers: dict[str, list[set[int]]] = {}
        for path in self.paths.values():
            found = [int(part) for part in path.split(".") if part.isdigit()]
            sets = numbers.setdefault(_pattern(path), [set() for _ in found])
            for values, number in zip(sets, found):
                values.add(number)
        self._varying = {
            p: [i for i, values in enumerate(sets) if len(values) > 1]
            for p, sets in numbers.items()
        }
        self._pass = _Pass()

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
        varying = self._varying[_pattern(path)]
        numbers = [int(part) for part in path.split(".") if part.isdigit()]
        site = Site(stack, numbers[varying[0]] if len(varying) == 1 else 0)
        while site in self._pass.used:
            site = Site(stack, site.layer + 1)
        self._pass.used.add(site)
        return site


class _Pass(threading.local):
    """The sites that were called in the pass which this thread runs."""

    def __init__(self) -> None:
        self.used: set[Site] = set()

    def __reduce__(self) -> tuple[type[_Pass], tuple[()]]:
        return _Pass, ()  # a copy of a model runs passes of its own


def stack_of(path: str, front: Sequence[str] = ()) -> str:
    """`encoder.layer.3` → `encoder`: the path up to the list of blocks, without the `front` that
    leads to the backbone.

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
    """Where the backbone of a transformers model is; nowhere of any other module."""
    # slow to load; before that, nothing is a model of it
    library = sys.modules.get("transformers.modeling_utils")
    if (
        library is None
        or not isinstance(model, library.PreTrainedModel)
        or model.base_model is model
    ):
        return []
    return next(path for path, module in model.named_modules() if module is model.base_model).split(
        "."
    )


def _pattern(path: str) -> str:
    return ".".join("*" if part.isdigit() else part for part in path.split("."))


@dataclass(frozen=True)
class SiteInfo:
    """What one call shows of its site: the module that attends, and the shapes of its scores.

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
        """The inverse of `record`; older studies say nothing of `linear`, which was the rule."""
        known = {"linear": True, **record}
        return cls(**{name: known[name] for name in cls.__dataclass_fields__})

    def record(self) -> dict[str, Any]:
        """As a study's JSON has it."""
        return asdict(self)


def attention_kinds(sites: Mapping[str, SiteInfo]) -> dict[str, Literal["self", "cross"]]:
    """The modules that attend, by path, with the kind of their attention: they show where the
    blocks are.
    """
    return {site.name: site.kind for site in sites.values()}

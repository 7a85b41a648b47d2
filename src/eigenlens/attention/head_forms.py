"""How each head of a layer attends: to all keys, to a window, or to keys that a few rows choose.

| form | keys of a block of queries |
|---|---|
| dense | all of them |
| window | the first keys (sinks) and the near ones; nothing is chosen |
| blocks | these, and all that a few exact rows look at |
| ranked | the same, where rows are scored in `rank` coordinates of queries and keys |
| pooled | the same as `blocks`; all others are attended too, as the means of groups |

Whatever is kept is attended exactly (`kept_attention`). `attend_by_forms` computes a layer.

Some queries attend to every key, in every head. In a causal call they are the last ones: the
question at the end of a long prompt looks for what no row before it looked for. Both ways they are
the first ones: special tokens that no neighbour speaks for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from ..errors import EigenlensError
from .picture_order import picture_order

KINDS = ("dense", "window", "blocks", "ranked", "pooled")
SHARED = ("block", "first", "stride")
"""What all heads of a layer share; pooled ones also `group`, causal calls also `last`."""


@dataclass(frozen=True)
class HeadForm:
    """How one head attends.

    `threshold` is the least mean probability, in `samples` rows, of a key that is kept; `window`
    the near keys that are always kept, before a block of queries and both ways also after it;
    `rank` the coordinates that rows are scored in; `correction` the share of the dropped mass that
    is put back as its mean value (a pooled head has none).
    """

    kind: Literal["dense", "window", "blocks", "ranked", "pooled"] = "dense"
    threshold: float = 0.0
    window: int = 64
    samples: int = 4
    rank: int = 0
    correction: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise EigenlensError(f"a head attends by one of {', '.join(KINDS)}, not {self.kind!r}")
        for name in ("threshold", "correction"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise EigenlensError(f"{name} of a head must be from 0 to 1, not {value}")
        if self.window < 0 or self.rank < 0 or self.samples < 1:
            raise EigenlensError(
                f"window and rank of a head must be 0 or more, and samples 1 or more, not {self}"
            )
        if self.kind == "ranked" and not self.rank:
            raise EigenlensError("a ranked head needs a rank of at least 1")
        if self.kind == "pooled" and self.correction:
            raise EigenlensError(
                "a pooled head drops nothing: it attends to the means of what it does not keep,"
                " and takes no correction"
            )

    @property
    def chooses(self) -> bool:
        """Whether rows are scored to choose keys."""
        return self.kind in {"blocks", "ranked", "pooled"}


@dataclass(frozen=True)
class LayerForms:
    """The forms of all query heads of a layer, with what they share.

    `causal` says for which calls they are: query i sees keys j ≤ i, or every key. Queries are taken
    in blocks of `block`; the `first` keys are always kept; sampled rows lie `stride` apart in a
    causal call; pooled heads take the means of `group` keys in a row. The `last` queries of a
    causal call attend to every key before them; both ways, the `first` queries do. `to_x`, `to_y
    (n, D, R)` are the coordinates of the n ranked heads, in their order. `before_picture` is for
    vision models: how many tokens stand before the patches of a square picture, which are then
    taken along a curve (`picture_order`).
    """

    heads: tuple[HeadForm, ...]
    causal: bool = True
    block: int = 128
    first: int = 4
    stride: int = 16
    group: int = 64
    last: int = 64
    to_x: Tensor | None = None
    to_y: Tensor | None = None
    before_picture: int | None = None

    def __post_init__(self) -> None:
        if self.causal and self.before_picture is not None:
            raise EigenlensError("patches of a picture have an order only in attention both ways")
        if min(self.block, self.stride, self.group) < 1 or min(self.first, self.last) < 0:
            raise EigenlensError(
                "block, stride and group must be at least 1, first and last at least 0, not"
                f" {self.block}, {self.stride}, {self.group}, {self.first} and {self.last}"
            )
        for form in self.heads:
            reach = (form.samples - 1) * self.stride
            if self.causal and form.chooses and form.window < reach:
                raise EigenlensError(
                    f"a window of {form.window} keys must cover the sampled rows, which reach back"
                    f" {reach} tokens"
                )
        ranked = [form for form in self.heads if form.kind == "ranked"]
        given = 0 if self.to_x is None or self.to_y is None else len(self.to_x)
        if len(ranked) != given:
            raise EigenlensError(
                f"{len(ranked)} ranked heads need as many coordinates, and {given} are given"
            )

    @property
    def plain(self) -> bool:
        """Whether every head is dense."""
        return all(form.kind == "dense" for form in self.heads)

    def order(self, tokens: int, device: torch.device | str = "cpu") -> Tensor | None:
        """The order that tokens are taken in, `(tokens,)`; None: as they come."""
        if self.before_picture is None:
            return None
        order = picture_order(tokens, self.before_picture)
        return None if order is None else order.to(device)

    def record(self) -> dict[str, Any]:
        """The forms as plain JSON values, without the coordinates."""
        shared = {name: getattr(self, name) for name in (*SHARED, "group", "last")}
        picture = {} if self.before_picture is None else {"before_picture": self.before_picture}
        heads = [asdict(form) for form in self.heads]
        return {"causal": self.causal, **shared, **picture, "heads": heads}

    @classmethod
    def from_record(
        cls, record: Mapping[str, Any], to_x: Tensor | None = None, to_y: Tensor | None = None
    ) -> LayerForms:
        """Read the forms of a layer; `to_x` and `to_y` are the coordinates of its ranked heads."""
        shared = {name: int(record[name]) for name in SHARED}
        heads = tuple(HeadForm(**head) for head in record["heads"])
        picture = record.get("before_picture")
        return cls(
            heads,
            bool(record["causal"]),
            **shared,
            group=int(record.get("group", cls.group)),  # plans of 0.1.0 have no pooled heads
            last=int(record.get("last", 0)),  # nor exact queries
            to_x=to_x,
            to_y=to_y,
            before_picture=None if picture is None else int(picture),
        )

"""The shape of the lab's model: everything that can be chosen, and errors for what cannot be."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ..anatomy.switches import Switches
from ..errors import EigenlensError
from ..hints import check_fields
from ..names import unknown_name
from .fusion import FUSIONS
from .layers import as_tuples, check_mechanisms, gate_of

SIZES = (
    "vocabulary",
    "length",
    "width",
    "layers",
    "heads",
    "features",
    "classes",
    "rank",
    "value_width",
    "mlp_width",
)
NormPosition = Literal["pre", "post"]
Activation = Literal["gelu", "relu"]


@dataclass(frozen=True)
class Config:
    """The shape of the model; the five switches at the end take a part out of every block.

    The input is token ids of a `vocabulary`, or vectors of `features` numbers through a linear map.
    The output is logits of the vocabulary, by the weights of the embedding, or `classes` numbers
    per token by a read-out of its own; `pooled`, the mean of all tokens is read out. Without
    `positions` the model sees a set. `neighbourly` is the start for text, `size` the standard
    deviation of an embedded input at the start (for vectors: of one of unit length).

    `mechanism` is a name, letters for layers (`"DDDF"`, repeated to the number of layers), heads of
    every layer (`[("full", 2), ("local", 2)]`), or a list with one of these per layer;
    `mechanism_settings` are their settings by name, `{"local": {"window": 16}}`. `rank` is the
    width of a head's queries and keys, `value_width` that of its values, both width/heads unless
    given. `gate` is "G1" … "G5" with options, see `lab.layers.gate_of`; `fusion` reads out all
    layers.
    """

    vocabulary: int | None = None
    length: int = 128
    width: int = 128
    layers: int = 4
    heads: int = 4
    causal: bool = False
    features: int | None = None
    classes: int | None = None
    pooled: bool = False
    positions: bool = True
    neighbourly: bool = True
    size: float = 0.1
    mechanism: str | tuple[Any, ...] = "softmax"
    mechanism_settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)
    rank: int | None = None
    value_width: int | None = None
    norm_position: NormPosition = "pre"
    activation: Activation = "gelu"
    mlp_width: int | None = None
    gate: str | None = None
    fusion: str | None = None
    attention_skip: bool = True
    mlp_skip: bool = True
    mlp: bool = True
    norm: bool = True
    attention: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "mechanism", as_tuples(self.mechanism))
        check_fields(self)
        for name in SIZES:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise EigenlensError(f"{name} is at least 1, not {value}")
        if not (math.isfinite(self.size) and self.size > 0):
            raise EigenlensError(f"size is a number above 0, not {self.size}")
        if self.width % self.heads and (self.rank is None or self.value_width is None):
            raise EigenlensError(
                f"a width of {self.width} does not divide into {self.heads} heads; change one, or"
                " give rank and value_width"
            )
        if (self.vocabulary is None) == (self.features is None):
            raise EigenlensError(
                f"the input is token ids or vectors: give one of vocabulary={self.vocabulary},"
                f" features={self.features}"
            )
        if self.classes is None and (self.features is not None or self.pooled):
            raise EigenlensError(
                "a model of vectors, or one that pools its tokens, needs a read-out of its own:"
                " give classes"
            )
        if self.fusion is not None and self.fusion not in FUSIONS:
            raise unknown_name("fusion", self.fusion, FUSIONS)
        if self.gate is not None:
            gate_of(self.gate)
        check_mechanisms(self)

    @property
    def head_width(self) -> int:
        """D, the width of a query and a key."""
        return self.width // self.heads if self.rank is None else self.rank

    @property
    def head_values(self) -> int:
        """E, the width of a value."""
        return self.width // self.heads if self.value_width is None else self.value_width

    @property
    def switches(self) -> Switches:
        return Switches(self.attention_skip, self.mlp_skip, self.mlp, self.norm, self.attention)

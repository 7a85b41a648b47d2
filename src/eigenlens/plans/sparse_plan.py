"""Attention that leaves keys out: the form of every head, and the calls it serves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ..attention.attend_by_forms import planned_attention
from ..attention.head_forms import HeadForm, LayerForms
from ..attention.head_keys import keep_keys, work_shares
from ..captures import AttentionCall, Site

SHORTEST = 4
"""Inputs of at most this many blocks of queries attend exactly: there is nothing to save."""
REASONS = {
    "decoding": "steps of generation after the first",
    "cache": "queries that meet a cache with more keys than they are",
    "short": "inputs too short to save anything",
    "long": "inputs longer than the plan was made for",
    "mask": "other masks than causal and padding",
    "scores": "scores with a bias, a cap or sink logits",
    "layer": "layers without a plan",
}
"""Why a call is attended exactly, in words."""


@dataclass
class Tally:
    """How many calls were attended by a plan, and how many exactly, by reason."""

    planned: int = 0
    exact: Counter[str] = field(default_factory=Counter)

    def record(self) -> dict[str, int]:
        return {"planned": self.planned, **self.exact}

    def reset(self) -> None:
        """Count from zero."""
        self.planned = 0
        self.exact.clear()


@dataclass(frozen=True)
class SparsePlan:
    """The forms of every layer; a layer without forms attends as before.

    `length` is the longest input it serves.
    """

    layers: dict[Site, LayerForms]
    length: int
    # what the fit expects: share of the pairs, seconds, error
    expected: dict[str, float] = field(default_factory=dict)
    tally: Tally = field(default_factory=Tally, compare=False)

    def record(self) -> dict[str, Any]:
        """The plan as plain JSON values, without its tensors."""
        layers = {str(site): forms.record() for site, forms in self.layers.items()}
        return {"layers": layers, "length": self.length, "expected": dict(self.expected)}

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The coordinates of ranked heads, by site and name."""
        return {
            f"{site}|{name}": x.contiguous()
            for site, forms in self.layers.items()
            for name, x in (("to_x", forms.to_x), ("to_y", forms.to_y))
            if x is not None
        }

    @classmethod
    def from_record(
        cls, record: Mapping[str, Any], tensors: Mapping[str, Tensor], length: int
    ) -> SparsePlan:
        """Read a plan; version 0.1.0 stored one threshold per key-value head as `sites`."""
        expected = dict(record.get("expected", {}))
        if "sites" in record:
            layers = {Site.parse(key): _from_blocks(s) for key, s in record["sites"].items()}
            return cls(layers, length, expected)
        layers = {
            Site.parse(key): LayerForms.from_record(
                found, tensors.get(f"{key}|to_x"), tensors.get(f"{key}|to_y")
            )
            for key, found in record["layers"].items()
        }
        return cls(layers, int(record["length"]), expected)

    def attend(self, call: AttentionCall) -> Tensor | None:
        """The output of a call under the plan, `(B, H, T, E)`; None if the call is not covered.

        The model then attends as before, and the tally counts why.
        """
        why, valid = self.uncovered(call)
        if why is not None:
            self.tally.exact[why] += 1
            return None
        self.tally.planned += 1
        forms = self.forms(call)
        return planned_attention(call.q, call.k, call.v, forms, scale=call.scale, valid=valid)

    def shares(self, call: AttentionCall) -> Tensor:
        """The work of each head in this call, as a share of full attention's, `(H,)`.

        It is 1 if the model attends as before.
        """
        why, valid = self.uncovered(call)
        if why is not None:
            return torch.ones(call.heads, dtype=torch.float64)
        forms = self.forms(call)
        kept = keep_keys(call.q, call.k, call.v, forms, scale=call.scale, valid=valid)
        return work_shares(kept, forms, call.q.shape[2], call.q.shape[3])

    def forms(self, call: AttentionCall) -> LayerForms:
        """The forms of a call's heads; those of an old plan are repeated for grouped queries."""
        forms = self.layers[call.site]
        given = len(forms.heads)
        if given == call.heads:
            return forms
        heads = tuple(head for head in forms.heads for _ in range(call.heads // given))
        return replace(forms, heads=heads)

    def uncovered(self, call: AttentionCall) -> tuple[str | None, Tensor | None]:
        """Why a call is not covered (None: it is), and which of its tokens are no padding."""
        forms, T = self.layers.get(call.site), call.q.shape[2]
        if forms is None or call.kind != "self":
            return "layer", None
        if call.k.shape[2] != T:
            return ("decoding" if T == 1 else "cache"), None
        if SHORTEST * forms.block >= T:
            return "short", None
        if self.length < T:
            return "long", None
        if not call.linear or call.sinks is not None:
            return "scores", None
        return padded_form(call, forms.causal)


def padded_form(call: AttentionCall, causal: bool) -> tuple[str | None, Tensor | None]:
    """Whether a mask is causal, or full, up to padding: `(None, valid)`, else `("mask", None)`.

    `valid (B, T)` are the tokens that are no padding, None if all are real.
    """
    shape = call.mask_shape
    if shape.form == ("causal" if causal else "full"):
        return None, None
    if shape.keys is not None and shape.form == ("varied" if causal else "rectangle"):
        return None, shape.keys
    return "mask", None


def plain_form(call: AttentionCall, causal: bool = True) -> tuple[bool, Tensor | None] | None:
    """Whether a call is causal, and which of its tokens are no padding, `(B, T)` or None for all.

    None for calls that no plan could serve: cross-attention, steps of generation, other masks than
    causal and padding, and scores with a bias, a cap or sink logits. `causal` is asked first; a
    mask of a single token is both.
    """
    if call.kind != "self" or call.q.shape[2] != call.k.shape[2]:
        return None
    if not call.linear or call.sinks is not None:
        return None
    for asked in (causal, not causal):
        why, valid = padded_form(call, asked)
        if why is None:
            return asked, valid
    return None


def _from_blocks(record: Mapping[str, Any]) -> LayerForms:
    heads = tuple(
        HeadForm("blocks", min(float(t), 1.0), int(record["local"]), int(record["samples"]))
        if t
        else HeadForm()
        for t in record["thresholds"]
    )
    block, first, stride = (int(record[name]) for name in ("query_block", "first", "stride"))
    return LayerForms(heads, True, block, first, stride, last=0)

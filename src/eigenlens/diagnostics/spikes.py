"""Massive activations (arXiv 2603.05498): a few channels far larger than all others."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..captures import location_of
from ..display import numbered, percent
from ..errors import EigenlensError
from .diagnostic import CallView, Diagnostic, LayerView, field_by_site
from .finding import Finding
from .token_counts import TOP, TokenCounts


@dataclass(frozen=True)
class SpikeSettings:
    """An activation x is massive if `|x| > size` and `|x| ≥ ratio · median |x|`.

    The median is taken over the same input at the same block.

    A block steps up or down if the largest magnitude, averaged over inputs, changes there by at
    least `jump` times the largest in the whole stack.
    """

    size: float = 100.0
    ratio: float = 1000.0
    jump: float = 0.5

    def __post_init__(self) -> None:
        if not (0 <= self.size < math.inf and 1 <= self.ratio < math.inf):
            raise EigenlensError(
                f"size must be at least 0 and ratio at least 1, not {self.size} and {self.ratio}"
            )
        if not 0 < self.jump <= 1:
            raise EigenlensError(
                "jump is a share of the largest activation: it must be above 0 and at most 1, not"
                f" {self.jump}"
            )


class Spikes(TokenCounts, Diagnostic):
    """The three largest channels of `|H_{i+1}|` over tokens, their median, and the largest `|F_i|`.

    `H_{i+1} = H_i + F_i`.

    A channel's magnitude is its largest over the tokens that are not padding. The median is the
    lower median over all channels and tokens. A block that merges tokens has no step. It also keeps
    the largest numbers over all inputs, in how many inputs each channel is the largest or massive
    (2, C), and the token ids that carry a massive activation.
    """

    name = "spikes"
    title = "Massive activations"
    sees = "layers"
    level = "layer"
    numbers: ClassVar = {
        "largest": "largest magnitude after the block",
        "second": "magnitude of the second largest channel",
        "third": "magnitude of the third largest channel",
        "median": "median magnitude",
        "ratio": "largest magnitude, divided by the median",
        "massive": "share of inputs with a massive activation",
        "step": "largest magnitude the block adds",
        "before": "largest magnitude before the block",
        "first": "share of inputs whose largest activation is at the first token",
    }
    Settings = SpikeSettings

    @torch.no_grad()
    def update(self, seen: CallView | LayerView) -> None:
        assert isinstance(seen, LayerView)
        X, Y = seen.inputs, seen.outputs.abs()
        kept = (
            seen.valid
            if Y.shape[:2] == seen.valid.shape
            else torch.ones(Y.shape[:2], dtype=torch.bool, device=Y.device)
        )
        Y = _kept(Y, kept)
        channels, token = Y.max(1)  # (B, C): its largest magnitude, and where that is
        three = channels.topk(min(3, channels.shape[1]), 1).values  # (B, 3)
        three = torch.nn.functional.pad(three, (0, 3 - three.shape[1]), value=torch.nan)
        median = _median(Y, kept)
        step = torch.full_like(median, torch.nan)
        if X.shape == Y.shape:
            step = _largest(seen.outputs - X, kept)
        before = _largest(X, seen.valid)
        bound = torch.clamp(self.settings.ratio * median, min=self.settings.size)[:, None]
        massive = (channels > self.settings.size) & (channels >= bound)  # (B, C)
        most = channels.argmax(1, keepdim=True)
        place = token.gather(1, most)[:, 0]  # (B,)
        first = place == kept.to(torch.int8).argmax(1)
        ratio = torch.where(median > 0, three[:, 0] / median, torch.nan)
        columns = (*three.unbind(1), median, ratio, massive.any(1), step, before, first)
        values = torch.stack([x.double() for x in columns], 1)  # (B, numbers)
        there = kept.any(1)
        self.count(seen.site, values.masked_fill(~there[:, None], torch.nan)[..., None])
        largest = values[there][:, [0, 1, 2, 6]].nan_to_num(0.0)
        if len(largest):
            self.peak(f"{seen.site}/peak", largest.amax(0))
        one = torch.zeros_like(massive).scatter_(1, most, value=True) & there[:, None]
        self.add(f"{seen.site}/channels", torch.stack([one.sum(0), massive.sum(0)]))
        if (
            seen.ids is not None
            and seen.vocabulary is not None
            and bool(massive.any())
            and seen.ids.shape == kept.shape
        ):
            counts = torch.zeros(2, seen.vocabulary, dtype=torch.float64, device=Y.device)
            some = massive.any(1)
            # (b, T)
            carries = ((Y[some] > self.settings.size) & (Y[some] >= bound[some, None])).any(2)
            front = kept[some].to(torch.int8).argmax(1, keepdim=True)
            later = (torch.arange(Y.shape[1], device=Y.device) != front)[carries].long()
            counts.index_put_(
                (later, seen.ids.to(Y.device)[some][carries]), counts.new_ones(()), accumulate=True
            )
            self.add(f"{seen.site.stack}/tokens", counts)

    def channels(self, stack: str) -> list[dict[str, Any]]:
        """Return every channel that is the largest or massive in some input and layer.

        The one that is massive most often comes first.
        """
        own = [x for site, x in field_by_site(self.sums, "channels") if site.stack == stack]
        rows = []
        for C in {x.shape[1] for x in own}:  # stages of a model may differ in width
            counts = torch.stack([x for x in own if x.shape[1] == C])  # (L, 2, C)
            total = counts.sum(0)
            rows += [
                {
                    "stack": stack,
                    "channel": c,
                    "massive in layers": int((counts[:, 1, c] > 0).sum()),
                    "massive": int(total[1, c]),
                    "largest in layers": int((counts[:, 0, c] > 0).sum()),
                    "largest": int(total[0, c]),
                }
                for c in total.sum(0).nonzero()[:, 0].tolist()
            ]
        return sorted(rows, key=lambda row: (-row["massive"], -row["largest"]))

    def steps(self, finding: Finding) -> list[dict[str, Any]]:
        """Return the blocks where the largest magnitude changes by `jump` or more."""
        rows = []
        for stack in finding.stacks:
            behind, before = (finding.values(name, stack) for name in ("largest", "before"))
            top = max(*behind.values(), *before.values())
            for at, value in behind.items():
                moved = value - before[at]
                if abs(moved) >= self.settings.jump * top > 0:
                    rows.append(
                        {
                            "stack": stack,
                            "layer": at.layer,
                            "steps": "up" if moved > 0 else "down",
                            "from": before[at],
                            "to": value,
                            "criterion": (
                                f"changes by at least {self.settings.jump:g} of the largest,"
                                f" {top:.4g}"
                            ),
                        }
                    )
        return rows

    def tables(
        self, finding: Finding, tokens: Mapping[int, str]
    ) -> dict[str, list[dict[str, Any]]]:
        names = ("largest", "second", "third", "step")
        peaks = [
            {"stack": site.stack, "layer": site.layer, **dict(zip(names, x.tolist()))}
            for site, x in field_by_site(self.peaks, "peak")
        ]
        words = self.token_rows(tokens)
        found = {
            "Blocks where activations step up or down": self.steps(finding),
            "Channels, over layers and inputs": [
                row for stack in finding.stacks for row in self.channels(stack)[:TOP]
            ],
            "Tokens that carry massive activations": words,
            "Largest over all inputs": peaks,
        }
        return {title: rows for title, rows in found.items() if rows}

    def sentence(self, finding: Finding) -> str:
        shares, largest, ratios = (finding.values(name) for name in ("massive", "largest", "ratio"))
        spiking = [at for at, share in shares.items() if share > 0]
        top, labels = max(spiking or largest, key=lambda at: largest[at]), finding.labels
        ratio = f", {ratios[top]:,.0f} times the median" if top in ratios else ""
        if not spiking:
            return (
                f"No activation is massive (above {self.settings.size:g} and"
                f" {self.settings.ratio:g} times the median): the largest is"
                f" {largest[top]:.3g}{ratio}, after {labels(top)}."
            )
        first = finding.values("first")
        front = sum(first[at] for at in spiking) / len(spiking)
        channel = self.channels(top.stack)[0]["channel"]
        steps = [row for row in self.steps(finding) if row["stack"] == top.stack]
        ways = {
            way: [labels(location_of(row)) for row in steps if row["steps"] == way]
            for way in ("up", "down")
        }
        message = " and ".join(
            f"{way} in {', '.join(layers)}" for way, layers in ways.items() if layers
        )
        moves = f" They step {message}." if message else ""
        return (
            f"There are massive activations after {numbered(len(spiking), 'layer')} of"
            f" {len(shares)}. The largest is {largest[top]:,.0f} on average over inputs{ratio},"
            f" after {labels(top)}. Channel {channel} is massive most often; in {percent(front)}"
            f" of the inputs the largest activation is at the first token.{moves}"
        )

    @classmethod
    def chart(cls, finding: Finding) -> Any:
        from .pictures import layer_curves

        return layer_curves(finding, ("largest", "second", "median", "ratio", "massive", "step"))


def _kept(x: Tensor, kept: Tensor) -> Tensor:
    """Return x (B, T, C) with zeros at tokens that are not kept; x itself if all are."""
    return x if bool(kept.all()) else torch.where(kept[..., None], x, 0.0)


def _largest(x: Tensor, kept: Tensor) -> Tensor:
    """Return the largest magnitude at a kept token, (B, T, C) → (B,)."""
    flat = _kept(x, kept).flatten(1)
    return torch.maximum(flat.amax(1), -flat.amin(1))


def _median(Y: Tensor, kept: Tensor) -> Tensor:
    """Return the lower median over channels and kept tokens, (B, T, C) → (B,).

    0 if no token is kept.
    """
    if bool(kept.all()):
        return Y.flatten(1).median(1).values
    return Y.masked_fill(~kept[..., None], torch.nan).flatten(1).nanmedian(1).values.nan_to_num(0.0)

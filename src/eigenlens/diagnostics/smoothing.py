"""Over-smoothing (arXiv 2202.08625): how similar tokens become from block to block, and a bound."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ..captures import Head, Site
from ..display import percent
from ..errors import EigenlensError
from ..stats.geometry import mean_cosine, residual
from .diagnostic import Diagnostic, LayerView
from .finding import Finding
from .pictures import layer_curves
from .smoothing_bound import PostNorm, Tape
from .studied_model import StudiedModel

ROUNDING = 1e-6
EQUAL = 8
"""Tokens count as equal within this many units of rounding of their mean, relative to their size.
"""
OTHER = (
    "there is no bound: it is computed only for blocks known to be post-norm, with one attention"
    " and an MLP without a gate"
)
MASKED = "there is no bound: it is computed only for inputs without padding and without a mask"
NOT_COMPUTED = "the bound was not computed"


class Likeness(NamedTuple):
    """What is measured about the tokens of each input, each (B,)."""

    alike: Tensor  # mean cosine, nan without pairs
    apart: Tensor  # d_M
    size: Tensor  # ‖X‖_F


class Smoothing(Diagnostic):
    """Token similarity and `d_M` before and after every block.

    `mean cos(h_i, h_j), i ≠ j`, and `d_M(H) = ‖(I − 11ᵀ/n) H‖_F`.

    `maps` is the cosine of the block's attention map, averaged over heads, with that of the
    previous block. For post-norm blocks `v` bounds `ratio = d_M after / before`, if every token
    sees every other and none is padding (`smoothing_bound.py`). It costs n³ per head, so it is
    computed for the expensive inputs of a call only. Other blocks, such as pre-norm ones, have no
    bound. Only tokens that are not padding count. An input of one token has no pairs; an input
    whose tokens are equal but for rounding has no ratio.
    """

    name = "smoothing"
    title = "Over-smoothing"
    sees = "layers"
    level = "layer"
    numbers: ClassVar[Mapping[str, str]] = {
        "similarity": "mean cosine of two tokens after the block",
        "similarity_before": "mean cosine of two tokens before the block",
        "ratio": "distance d_M of the tokens from their mean, after the block / before it",
        "distance": "distance d_M of the tokens from their mean, after the block",
        "distance_before": "distance d_M of the tokens from their mean, before the block",
        "maps": "cosine of the attention map with that of the previous block",
        "sigma": "product of a token's smallest standard deviations at the two norms",
        "root": "how far apart a head may leave tokens, √λ",
        "v": "bound v on the ratio, as published",
        "sharp": "sharper bound on the ratio, with the norms' gains",
        "bounded": "share of inputs whose ratio is within the bound",
    }

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.blocks: dict[Site, PostNorm] = {}
        self.refused: dict[Site, str] = {}  # why a block has no bound
        self._tape: Tape = {}
        # (B, T, T): of the block before, in the same pass
        self._map: tuple[Site, Tensor] | None = None
        self._tokens: tuple[Tensor, Likeness] | None = None  # what a block gave

    def begin(self, studied: StudiedModel) -> str:
        try:
            known = studied.block_sites()
        except EigenlensError as error:
            known, why = {}, str(error)
            self.refused = dict.fromkeys(studied.sites, why)
        for site, block in known.items():
            entry = studied.sites[site]
            try:
                self.blocks[site] = PostNorm(block, entry.heads, entry.kv_heads)
                self.peak(f"{site}/post", torch.ones(1))
            except EigenlensError as error:
                self.refused[site] = str(error)
        return ""

    @contextmanager
    def attached(self, studied: StudiedModel) -> Iterator[None]:
        with ExitStack() as hooks:
            # ALBERT has one block at all sites
            norms = {id(block.norms[0]): block for block in self.blocks.values()}
            for block in norms.values():
                hooks.enter_context(block.watched(self._tape))
            yield
        self._tape.clear()
        self._map = self._tokens = None

    def measure(self, seen: LayerView) -> Tensor:
        X, Y = seen.inputs, seen.outputs
        valid = seen.valid
        alike, apart, size = self._of_tokens(X, valid)
        after = (
            valid
            if Y.shape[:2] == X.shape[:2]
            else torch.ones(Y.shape[:2], dtype=torch.bool, device=Y.device)
        )
        alike_behind, apart_behind, _ = behind = _likeness(Y, after)
        self._tokens = Y, behind
        tiny, eps = torch.finfo(apart.dtype).tiny, torch.finfo(X.dtype).eps
        ratio = torch.where(
            apart > EQUAL * eps * size, apart_behind / apart.clamp_min(tiny), torch.nan
        )
        bounds = torch.full((4, len(X)), torch.nan, dtype=torch.float64, device=X.device)
        if (found := self._bounds(seen)) is not None:
            bounds[:, seen.sampled_inputs] = found
        there = ~(ratio.isnan() | bounds[3].isnan())
        bounded = torch.where(there, (ratio <= bounds[3] * (1 + ROUNDING)).double(), torch.nan)
        numbers = (
            alike_behind,
            alike,
            ratio,
            apart_behind,
            apart,
            self._maps(seen),
            *bounds,
            bounded,
        )
        values = torch.stack(numbers, 1)[..., None]  # (B, numbers, 1)
        return values.masked_fill((valid.sum(1) < 1)[:, None, None], torch.nan)

    def _of_tokens(self, X: Tensor, valid: Tensor) -> Likeness:
        """Measure the input of a block; reuse the values if the previous block gave it."""
        if self._tokens is not None:
            known = self._tokens[0]
            if (X.data_ptr(), X.shape, X.stride(), X.dtype) == (
                known.data_ptr(),
                known.shape,
                known.stride(),
                known.dtype,
            ):
                return self._tokens[1]
        return _likeness(X, valid)

    def _maps(self, seen: LayerView) -> Tensor:
        """Return the cosine (B,) with the map of the previous block; NaN for the first block."""
        site, before = seen.site, self._map
        nothing = torch.full(
            (len(seen.inputs),), torch.nan, dtype=torch.float64, device=seen.inputs.device
        )
        if seen.seen is None:
            self._map = None
            return nothing
        p = seen.seen.pattern.mean(1)  # (B, T, S)
        self._map = site, p
        if (
            before is None
            or before[0] != Site(site.stack, site.layer - 1)
            or before[1].shape != p.shape
        ):
            return nothing
        return map_cosine(before[1], p)

    def _bounds(self, seen: LayerView) -> Tensor | None:
        """Return σ₁σ₂, √λ, v and the sharper bound for the expensive inputs, (4, b).

        None if there are no bounds.
        """
        block, call, sampled = self.blocks.get(seen.site), seen.seen, seen.sampled_inputs.tolist()
        if block is None or call is None or len(self._tape) < 2 or not sampled:
            return None
        T = seen.inputs.shape[1]
        # (batch, T, C): the study may show only some inputs of it
        given = self._tape[1][1].to(seen.outputs.dtype)
        full = call.allowed.all(3).all(2).all(1).expand(len(seen.inputs)) & seen.valid.all(1)
        full &= call.pattern.shape[2:] == (T, T)
        self.add(f"{seen.site}/masked", (~full[sampled]).sum()[None])
        bounds = torch.full(
            (4, len(sampled)), torch.nan, dtype=torch.float64, device=seen.inputs.device
        )
        rows, places = [], []
        for place, i in enumerate(sampled):
            same = (r for r in range(len(given)) if torch.equal(given[r], seen.outputs[i]))
            if bool(full[i]) and (row := next(same, None)) is not None:
                rows.append(row)
                places.append(place)
        if rows:
            some = call.pattern[[sampled[place] for place in places]]
            bounds[:, places] = torch.stack(block.of(some, rows, self._tape))
        return bounds

    def tables(
        self, finding: Finding, tokens: Mapping[int, str]
    ) -> dict[str, list[dict[str, Any]]]:
        rows = []
        v, sharp, bounded = (finding.values(name) for name in ("v", "sharp", "bounded"))
        for at, ratio in finding.values("ratio").items():
            message = self._without([at])
            if at in v:
                message = (
                    "above 1, so it allows anything"
                    if sharp[at] >= 1
                    else "below 1, so tokens must come closer"
                )
            rows.append(
                {
                    "stack": at.stack,
                    "layer": at.layer,
                    "ratio": ratio,
                    "v": v.get(at),
                    "sharper": sharp.get(at),
                    "kept": bounded.get(at),
                    "bound": message,
                }
            )
        return {"What the bound says of each block": rows} if rows else {}

    def _without(self, sites: Iterable[Head | Site]) -> str:
        """Say why sites have no bound."""
        post = [site for site in sites if f"{site}/post" in self.peaks]
        masked = any(
            f"{site}/masked" in self.sums and bool(self.sums[f"{site}/masked"] > 0) for site in post
        )
        return OTHER if not post else MASKED if masked else NOT_COMPUTED

    def sentence(self, finding: Finding) -> str:
        before, behind, v, bounded = (
            finding.values(n) for n in ("similarity_before", "similarity", "v", "bounded")
        )
        parts = []
        for stack in finding.stacks:
            layers = sorted(at.layer for at in behind if at.stack == stack)
            if layers and (first := Site(stack, layers[0])) in before:
                ends = before[first], behind[Site(stack, layers[-1])]
                parts.append(
                    f"from {ends[0]:.2f} to {ends[1]:.2f}"
                    + ("" if len(finding.stacks) == 1 else f" in {finding.labels.stack(stack)}")
                )
        if not parts:
            return "No input has two tokens that could be compared."
        message = (
            "From the first block to the last, the mean cosine of two tokens goes"
            f" {', '.join(parts)}"
        )
        if not v:
            return f"{message}; {self._without(behind)}."
        kept = sum(bounded.values()) / len(bounded) if bounded else 1.0
        says = sum(finding.values("sharp")[at] < 1 for at in v)
        bound = (
            f"the bound for post-norm blocks holds in {percent(kept)} of cases, and in {says} of"
            f" {len(v)} blocks it is below 1 (above 1 it limits nothing)"
        )
        return f"{message}; {bound}."

    @classmethod
    def chart(cls, finding: Finding) -> Any:
        """Draw similarity, ratio and maps along the layers, and the bound if there is one."""
        names = ("similarity", "ratio", "maps", "sigma", "v", "sharp")
        return layer_curves(finding, tuple(name for name in names if finding.values(name)))


def distance(X: Tensor, valid: Tensor | None = None) -> Tensor:
    """Return `d_M(X) = ‖(I − 11ᵀ/n) X‖_F`, (B, T, C) → (B,).

    It is the distance of the tokens from their mean.
    """
    return residual(X, valid).flatten(1).norm(dim=1)


def map_cosine(p: Tensor, q: Tensor) -> Tensor:
    """Return the cosine (B,) of two attention maps (B, T, S), each a mean over a layer's heads.

    NaN for a map of zeros.
    """
    p, q = p.flatten(1).double(), q.flatten(1).double()
    return (p * q).sum(1) / (p.norm(dim=1) * q.norm(dim=1))


def _likeness(X: Tensor, valid: Tensor) -> Likeness:
    alike = torch.where(valid.sum(1) > 1, mean_cosine(X, valid), torch.nan)
    sizes = torch.linalg.vector_norm(X, dim=2, dtype=torch.float64) * valid  # (B, T)
    return Likeness(alike, distance(X, valid), sizes.norm(dim=1))

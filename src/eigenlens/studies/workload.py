"""The memory that one batch takes in the model and the statistics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from ..captures import Site, SiteInfo
from ..data.inputs import Inputs
from ..stats.depth import PAIRS
from ..stats.row_products import BLOCK
from ..stats.within import CHUNK, PATTERN_TOKENS
from .options import Options


@dataclass(frozen=True)
class BatchMemory:
    """The bytes while a batch runs, and the bytes that diagnostics keep throughout."""

    run: int
    kept: int


def batch_of(
    module: nn.Module,
    sites: Mapping[Site, SiteInfo],
    options: Options,
    inputs: Inputs,
    matrix: str | None,
) -> BatchMemory:
    """The memory that a batch takes; the largest site counts.

    Statistics work on one site after the other and use their buffers again.
    """
    most = max(inputs.number(bucket) for bucket in inputs.groups)
    B = min(options.inputs_per_batch(inputs.length), most)
    item = 8 if options.float64 else 4
    work = max(_site(site, options, B, item, matrix) for site in sites.values())
    tokens = B * max(site.queries for site in sites.values())
    kept = 0
    if options.diagnosed:
        vocabulary = getattr(getattr(module, "config", None), "vocab_size", None) or 0
        heads = sum(site.heads * (1000 + 2 * site.keys) for site in sites.values())
        kept = (
            8 * heads
            + 64 * vocabulary
            + sum(item * (s.heads * s.head_dimension) ** 2 for s in sites.values())
        )
    return BatchMemory(work + tokens * item * _width(module), kept)


def _width(module: nn.Module) -> int:
    """Numbers per token in memory: copies of the stream, and the inside of the widest block."""
    shapes = [layer.weight.shape for layer in module.modules() if isinstance(layer, nn.Linear)]
    return 8 * max((min(shape) for shape in shapes), default=0) + 3 * max(
        (max(shape) for shape in shapes), default=0
    )


def _site(site: SiteInfo, options: Options, B: int, item: int, matrix: str | None) -> int:
    H, T, S, D = site.heads, site.queries, site.keys, site.head_dimension
    vectors, square, scores = item * B * H * max(T, S) * D, item * H * S * S, item * B * H * T * S
    total = 4 * vectors  # q, k, v as the call has them, by head
    if "rows" in options.only:
        form = mask_form(site, options)
        factorised = options.of == "scores" and site.linear
        if factorised and form == "full":
            total += 3 * vectors + square
        elif factorised and form == "rectangle":
            total += 7 * vectors + 6 * square
        elif factorised and form == "causal":
            blocks = math.ceil(S / BLOCK)
            # keys of all blocks, each with those before it
            seen = BLOCK * blocks * (blocks + 1) // 2
            total += item * H * B * seen * 2 * (D + BLOCK) + 5 * vectors + 4 * square
        else:
            total += 6 * scores + 5 * square
    if "within" in options.only:  # in float64, a part of one input at a time, and its patterns
        total += 8 * (H * min(T, CHUNK) * D * 2 + 8 * H * D * D)
        total += 16 * H * T * S if S <= PATTERN_TOKENS else 0
    if matrix is not None:
        total += 2 * scores + 2 * item * H * site.pairs
    patterns = 0
    if options.diagnosed:
        shown = math.ceil(B / options.diagnostics_step(T))
        patterns = item * shown * H * T * S
    total += 7 * patterns
    if "depth" in options.only:
        shown = math.ceil(B / options.depth_step(T))
        total += (
            max(0, 9 * item * min(shown * H * T * S, max(PAIRS, shown * T * S)) - 5 * patterns)
            + 40 * shown * T * T
        )
    return total


def mask_form(site: SiteInfo, options: Options) -> str:
    """The form of the masks of all inputs, as the probe saw only one input."""
    form = site.mask
    if not options.request.padding:
        return form
    return "rectangle" if form == "full" else form if form == "rectangle" else "varied"

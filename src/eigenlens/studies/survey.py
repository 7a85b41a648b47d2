"""One input through the model first: what attends, in which shapes, and what the study will hold in
memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from ..captures import AttentionCall, block_paths, capture
from ..data.inputs import Inputs
from ..data.split import FIT
from ..errors import EigenlensError, first_line
from ..models.forward import forward_of
from ..models.load import Model
from ..passes.sinks import sinks_of
from ..run.shards import copies
from .memory import Matrices
from .options import Options


def probe(model: Model, inputs: Inputs, options: Options) -> dict[str, dict[str, Any]]:
    """Every site of the model: kind, heads, key-value heads, queries, keys, head dimension, form of
    the mask, valid pairs.
    """
    sites: dict[str, dict[str, Any]] = {}

    def note(call: AttentionCall) -> None:
        if call.site.layer == 0 and not bool(torch.isfinite(call.q).all()):
            raise EigenlensError(
                f"the queries of {call.name} are not finite; the model or its inputs are broken"
            )
        sites[str(call.site)] = {
            "kind": call.kind,
            "name": call.name,
            "heads": call.heads,
            "kv_heads": call.k.shape[1],
            "queries": call.q.shape[2],
            "keys": call.k.shape[2],
            "head_dimension": call.q.shape[3],
            "mask": call.mask_shape.form,
            "linear": call.linear,
            "pairs": int(call.valid()[0].any(0).sum()),
        }

    forward = forward_of(model)
    with torch.no_grad(), capture(model.backbone, note, before_rope=options.before_rope):
        _, batch = next(inputs.batches(FIT, 1))
        try:
            forward(batch)
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            raise EigenlensError(
                f"{model.name} does not run on these inputs: {first_line(error)}"
            ) from error
    return sites


def matrix_form(
    sites: dict[str, dict[str, Any]], inputs: Inputs, options: Options
) -> tuple[str | None, str]:
    """How matrix spectra are to be had: `gram` (exact), `sketch`, or None with the reason."""
    if "matrices" not in options.only:
        return None, ""
    fit = inputs.number(FIT)
    exact = fit <= 2 * options.columns
    form = "gram" if exact else "sketch"
    shards = 1 + math.ceil(max(fit - options.columns, 0) / options.shard_size(inputs.length))
    needed = Matrices.of(sites, options, form, fit, 8 if options.float64 else 4).most(
        copies(shards)
    )
    if needed > options.matrix_gigabytes * 1e9:
        pairs = sum(site["heads"] * site["pairs"] for site in sites.values())
        why = (
            f"matrix spectra would hold {needed / 1e9:.1f} GB at most ({pairs:,} pairs of all"
            f" heads), over the limit of {options.matrix_gigabytes:g} GB"
        )
        if options.only == ("matrices",):
            raise EigenlensError(f"{why}; raise --matrix-memory, or lower --rank or --max-length")
        return None, f"{why}; left out"
    return form, ""


@dataclass(frozen=True)
class DepthForm:
    """How metrics along depth are to be had."""

    sinks: tuple[int, int]  # tokens at the front and at the end of an input that may be sinks
    every: int  # of the inputs only every n-th is measured

    def record(self) -> dict[str, Any]:
        return {"sinks": list(self.sinks), "every": self.every}


def depth_form(
    sites: dict[str, dict[str, Any]], model: Model, options: Options
) -> tuple[DepthForm | None, str]:
    """The form, or None with the reason."""
    if "depth" not in options.only:
        return None, ""
    names = names_of(sites)
    if block_paths(names):
        return (
            DepthForm(sinks_of(model, options.request.data), options.every(longest_of(sites))),
            "",
        )
    why = (
        f"{model.name} has no numbered blocks around its attention ({next(iter(names))}), so"
        " metrics along depth"
    )
    if options.only == ("depth",):
        raise EigenlensError(f"{why} are not to be had; ask for other statistics")
    return None, f"{why} were left out"


def names_of(sites: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The attention modules and their kinds: they show the blocks."""
    return {site["name"]: site["kind"] for site in sites.values()}


def longest_of(sites: dict[str, dict[str, Any]]) -> int:
    """The most queries of any site."""
    return max(site["queries"] for site in sites.values())

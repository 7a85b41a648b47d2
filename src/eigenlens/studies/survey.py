"""A first look at a model: what attends, in which shapes, and what can be measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from ..captures import AttentionCall, Site, SiteInfo, attention_kinds, block_paths, capture
from ..data.inputs import Inputs
from ..data.split import FIT
from ..errors import EigenlensError, first_line
from ..models.forward import forward_of
from ..models.load import Model
from ..passes.sinks import sinks_of
from ..run.shards import most_states
from ..shell import option
from .memory import Matrices
from .options import Options

MatrixForm = Literal["gram", "sketch"]
"""How spectra of whole matrices are made: from all samples, exactly, or from a sketch of them."""


@dataclass(frozen=True)
class DepthForm:
    """How metrics along depth are measured: which tokens may be sinks, and on which inputs."""

    sinks: tuple[int, int]  # tokens at the front and at the end of an input that may be sinks
    every: int  # of the inputs only every n-th is measured

    def record(self) -> dict[str, Any]:
        return {"sinks": list(self.sinks), "every": self.every}


@dataclass(frozen=True)
class WithinForm:
    """On which inputs the spectra of a single input are measured: every n-th, for each of them.

    On all inputs of 128 tokens the eigenvalues would cost more than the model; of a long input
    they are a small part.
    """

    every: int  # scores of the whole input
    growth_every: int  # scores of its first 32, 64, 128, … tokens
    pattern_every: int  # the pattern after the softmax

    @classmethod
    def of(cls, length: int, inputs: int) -> WithinForm:
        """One input in about 4,096 tokens, but at least 16 inputs, if there are so many.

        Growth is measured on every fourth of them, patterns on every eighth; each at least on four.
        """
        every = max(1, min(4096 // length, inputs // 16))
        measured = -(-inputs // every)
        growth, pattern = (every * max(1, min(n, measured // 4)) for n in (4, 8))
        return cls(every, growth, pattern)


@dataclass(frozen=True)
class Survey:
    """The sites of a model, and what a study of them will record."""

    sites: dict[Site, SiteInfo]
    options: Options  # what was asked for, but for what was left out
    matrix: MatrixForm | None
    within: WithinForm | None
    depth: DepthForm | None
    notes: tuple[str, ...]  # what was left out, and why


def survey(model: Model, inputs: Inputs, asked: Options) -> Survey:
    """Run one input, and leave out what this model or the memory does not allow."""
    sites = probe(model, inputs, asked)
    matrix, no_matrix = matrix_form(sites, inputs, asked)
    depth, no_depth = depth_form(sites, model, asked)
    missing = {name for name, form in (("matrices", matrix), ("depth", depth)) if form is None}
    options = replace(asked, only=tuple(name for name in asked.only if name not in missing))
    within = None
    if "within" in options.only:
        within = WithinForm.of(longest_of(sites), len(inputs.buckets))
    notes = tuple(note for note in (no_matrix, no_depth) if note)
    return Survey(sites, options, matrix, within, depth, notes)


def probe(model: Model, inputs: Inputs, options: Options) -> dict[Site, SiteInfo]:
    """Every site of the model, in the order in which the model runs them."""
    sites: dict[Site, SiteInfo] = {}

    def note(call: AttentionCall) -> None:
        if call.site.layer == 0 and not bool(torch.isfinite(call.q).all()):
            raise EigenlensError(
                f"the queries of {call.name} are not finite; check the model and its inputs"
            )
        sites[call.site] = SiteInfo.of_call(call)

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
    sites: Mapping[Site, SiteInfo], inputs: Inputs, options: Options
) -> tuple[MatrixForm | None, str]:
    """The form of matrix spectra, or None with the reason why there are none.

    The reason is empty if nobody asked for them.
    """
    if "matrices" not in options.only:
        return None, ""
    fit = inputs.number(FIT)
    form: MatrixForm = "gram" if fit <= 2 * options.columns else "sketch"
    shards = 1 + math.ceil(max(fit - options.columns, 0) / options.inputs_per_shard(inputs.length))
    needed = Matrices.of(sites, options, form, fit, 8 if options.float64 else 4).most(
        most_states(shards)
    )
    if needed > options.matrix_memory * 1e9:
        pairs = sum(site.heads * site.pairs for site in sites.values())
        why = (
            f"matrix spectra would take up to {needed / 1e9:.1f} GB ({pairs:,} pairs in all"
            f" heads), more than the limit of {options.matrix_memory:g} GB"
        )
        if options.only == ("matrices",):
            raise EigenlensError(
                f"{why}; raise {option('matrix_memory', None)}, or lower {option('rank', None)} or"
                f" {option('max_length', None)}"
            )
        return None, f"{why}; they were left out"
    return form, ""


def depth_form(
    sites: Mapping[Site, SiteInfo], model: Model, options: Options
) -> tuple[DepthForm | None, str]:
    """The form of metrics along depth, or None with the reason why there are none.

    The reason is empty if nobody asked for them.
    """
    if "depth" not in options.only:
        return None, ""
    names = attention_kinds(sites)
    if block_paths(names):
        every = options.depth_step(longest_of(sites))
        return DepthForm(sinks_of(model, options.request.data), every), ""
    why = (
        f"{model.name} has no numbered blocks around its attention ({next(iter(names))}), so"
        " metrics along depth"
    )
    if options.only == ("depth",):
        raise EigenlensError(f"{why} cannot be measured; ask for other statistics")
    return None, f"{why} were left out"


def longest_of(sites: Mapping[Site, SiteInfo]) -> int:
    """The largest number of queries of any site."""
    return max(site.queries for site in sites.values())

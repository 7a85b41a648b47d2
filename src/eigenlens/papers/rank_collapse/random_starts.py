"""Residual curves, single paths and bounds of models at their random start."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ...anatomy import freeze
from ...captures import Layer, attention_names, capture, capture_layers
from ...collapses import VARIANTS, ablate
from ...collapses.bounds_model import bound_rows, model_bounds
from ...models.load import load
from ...run.progress import Progress
from ...stats.geometry import relative_residual
from ..inputs import token_ids
from .single_paths import single_paths
from .surgery import SURGERIES, operated

if TYPE_CHECKING:
    from . import Scale


def random_model(family: str, layers: int, width: int, length: int, seed: int) -> torch.nn.Module:
    """BERT or ALBERT at its random start, at the base size if the width is 768."""
    import transformers

    shape = {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": max(2, width // 64),
        "intermediate_size": 4 * width,
        "vocab_size": 30_522,
        "max_position_embeddings": max(512, length),
    }
    torch.manual_seed(seed)
    if family == "albert":
        return transformers.AlbertModel(
            transformers.AlbertConfig(**shape), add_pooling_layer=False
        ).eval()
    return transformers.BertModel(transformers.BertConfig(**shape), add_pooling_layer=False).eval()


def texts(scale: Scale, seed: int) -> torch.Tensor:
    """Token ids of real text as BERT takes it, (N, length)."""
    return _texts(scale.text, scale.length, scale.inputs, seed)


@lru_cache(maxsize=2)  # every start reads the same texts
def _texts(text: str, length: int, number: int, seed: int) -> torch.Tensor:
    return token_ids(load("minilm"), text, length, number, seed)


@torch.no_grad()
def random_run(
    family: str, start: int, scale: Scale, seed: int, progress: Progress
) -> dict[str, Any]:
    """The variants of one random start, ours and the authors', its single paths and its bounds."""
    model, ids = (
        random_model(family, scale.layers, scale.width, scale.length, start),
        texts(scale, seed),
    )
    theirs = [name for (of, _), name in SURGERIES.items() if of == family]
    names, curves = [*VARIANTS, *theirs], []
    for done, name in enumerate(names):
        with in_form(model, name):
            means = residual_curve(model, ids)
        curves += _rows(family, start, name, means)
        progress(f"measuring random {family} models", done + 1, len(names) + 1)
    frozen = freeze(model, {"input_ids": ids[:1]})[0]
    single = single_paths(frozen, scale.paths, start)
    found = bound_rows(frozen.name, list(model_bounds(frozen)))
    progress(f"measuring random {family} models", len(names) + 1, len(names) + 1)
    return {
        "family": family,
        "seed": start,
        "curves": curves,
        "single": single,
        "bounds": [bound_summary(f"{family} random", found)],
    }


NO_NORM, OTHER_TEXT = "without norms", "on another text"
"""What else moves a curve, which the paper does not have."""


def changed_forms(family: str) -> tuple[tuple[str, str], ...]:
    """The forms of a family that are measured once more, and what is changed in them."""
    skips = SURGERIES.get((family, "SAN+skip"), "SAN+skip")
    return ("full", NO_NORM), ("full", OTHER_TEXT), (skips, OTHER_TEXT)


def changed_run(
    form: str, what: str, family: str, start: int, scale: Scale, seed: int
) -> dict[str, Any]:
    """A form of the model at the same random start, without its norms or on another text."""
    model = random_model(family, scale.layers, scale.width, scale.length, start)
    other = "python-docs" if scale.text != "python-docs" else "reviews"
    ids = texts(replace(scale, text=other) if what == OTHER_TEXT else scale, seed)
    with ablate(model, norm=False) if what == NO_NORM else in_form(model, form):
        means = residual_curve(model, ids)
    return {"curves": _rows(family, start, f"{form} {what}", means)}


def in_form(model: torch.nn.Module, form: str) -> AbstractContextManager[None]:
    """Run a model in one of our variants, or in the authors' form of one."""
    return ablate(model, form) if form in VARIANTS else operated(model, form)


def _rows(family: str, start: int, variant: str, means: Sequence[float]) -> list[dict[str, Any]]:
    return [
        {"family": family, "seed": start, "variant": variant, "depth": d, "residual": r}
        for d, r in enumerate(means)
    ]


@torch.no_grad()
def residual_curve(model: torch.nn.Module, ids: torch.Tensor) -> list[float]:
    """The mean relative residual of what goes into the first block and comes out of every one."""
    with capture(model) as calls:
        model(input_ids=ids[:1])
    sums: list[float] = []
    for batch in ids.split(8):
        depth = 0

        def note(layer: Layer) -> None:
            nonlocal depth
            streams = [layer.inputs, layer.outputs] if depth == 0 else [layer.outputs]
            for stream in streams:
                if depth == len(sums):
                    sums.append(0.0)
                sums[depth] += float(relative_residual(stream).sum()) / len(ids)
                depth += 1

        with capture_layers(model, attention_names(calls), note):
            model(input_ids=batch)
    return sums


def bound_summary(model: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The bounds of all heads of a model in one row."""
    return {
        "model": model,
        "heads": len(rows),
        "condition holds": float(np.mean([row["holds"] for row in rows])),
        "max D, median": float(np.median([row["max_d"] for row in rows])),
        "Dobrushin, median": float(np.median([row["dobrushin"] for row in rows])),
        "violated": sum(row["violated"] for row in rows),
    }

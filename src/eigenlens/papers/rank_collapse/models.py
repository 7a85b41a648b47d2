"""Residual curves, single paths and bounds of models.

The models are at their random start, or pretrained ones of the catalogue.
"""

from __future__ import annotations

import math
import tempfile
import wave
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ...anatomy import freeze
from ...captures import Layer, attention_names, capture, capture_layers
from ...collapses import VARIANTS, ablate, collapse
from ...collapses.bounds_model import bound_rows, model_bounds
from ...collapses.contraction import contraction_order
from ...collapses.sampling import residuals_by_length
from ...data import datasets
from ...errors import EigenlensError
from ...models.load import Model, load
from ...run.parts import Parts
from ...run.progress import Progress
from ...run.run_all import Refused
from ...stats.geometry import relative_residual
from ..inputs import token_ids

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
    """The four variants of one random start, its single paths and its bounds."""
    model, ids = (
        random_model(family, scale.layers, scale.width, scale.length, start),
        texts(scale, seed),
    )
    curves = []
    for done, (name, switches) in enumerate(VARIANTS.items()):
        with ablate(model, switches):
            means = residual_curve(model, ids)
        curves += _rows(family, start, name, means)
        progress(f"measuring random {family} models", done + 1, len(VARIANTS) + 1)
    frozen = freeze(model, {"input_ids": ids[:1]})[0]
    residuals = residuals_by_length(frozen, scale.paths, start)
    single = [
        {"attention_hops": hops, "residual": float(found.mean())}
        for hops, found in enumerate(residuals, 1)
    ]
    found = bound_rows(frozen.name, list(model_bounds(frozen)))
    progress(f"measuring random {family} models", len(VARIANTS) + 1, len(VARIANTS) + 1)
    return {
        "family": family,
        "seed": start,
        "curves": curves,
        "single": single,
        "bounds": [bound_summary(f"{family} random", found)],
    }


NO_NORM, OTHER_TEXT = "full without norm", "full on another text"
"""Variants that the paper does not have: what else moves the curve of the whole model."""


def other_run(what: str, family: str, start: int, scale: Scale, seed: int) -> dict[str, Any]:
    """The whole model at the same random start, without its norms or on another text."""
    model = random_model(family, scale.layers, scale.width, scale.length, start)
    other = "python-docs" if scale.text != "python-docs" else "reviews"
    ids = texts(replace(scale, text=other) if what == OTHER_TEXT else scale, seed)
    with ablate(model, norm=what != NO_NORM):
        means = residual_curve(model, ids)
    return {"curves": _rows(family, start, what, means)}


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


def catalogue_run(
    model: Model, scale: Scale, seed: int, folder: Path, progress: Progress
) -> dict[str, Any]:
    """A pretrained model of the catalogue: residuals of four variants, single paths, bounds."""
    name = model.name
    vision, audio = model.kind == "vision", model.kind == "audio"
    with tempfile.TemporaryDirectory(prefix="eigenlens-data-") as scratch:
        data = (
            None
            if vision
            else [str(path) for path in synthetic_sound(Path(scratch))]
            if audio
            else scale.text
        )
        number = min(scale.inputs, 3) if audio else min(scale.inputs, 16)
        run = collapse(
            model,
            data,
            folder / "models" / name,
            max_length=None if vision or audio else scale.length,
            max_inputs=max(3, number),
            paths=1 if audio else 2,
            bounds=0 if audio else 1,
            variants=list(VARIANTS),
            seed=seed,
            resume=True,
            progress=progress,
        )
    curves = []
    for stack in run.curves["full"].stacks:
        for row in (row for row in run.rows() if row["stack"] == stack):
            curves.append(
                {
                    "model": name,
                    "stack": stack,
                    "depth": row["depth"],
                    **{v: row.get(v) for v in VARIANTS},
                }
            )
    bounds = [bound_summary(name, run.bounds)] if run.bounds else []
    partial = [note for note in run.notes if " is partial: " in note]
    return {
        "model": name,
        "sentence": run.sentence,
        "curves": curves,
        "single": run.single_paths,
        "bounds": bounds,
        "notes": partial,
    }


def catalogue_runs(
    scale: Scale, parts: Parts, seed: int, progress: Progress
) -> list[dict[str, Any]]:
    """The catalogue's models. One that cannot be loaded is left out, and a note says why.

    A cluster that is lost ends the run.
    """
    found = []
    for name in scale.models:
        part = f"pretrained/{name}"
        if not parts.has(part):
            try:
                model = _load(name, scale.text)
                parts.write(part, catalogue_run(model, scale, seed, parts.folder, progress))
            except Refused as error:
                parts.notes.append(f"{name} was left out: {error.reason}")
                continue
        found.append(parts.read(part))
        parts.notes += [f"{name}: {note}" for note in found[-1]["notes"]]
    return found


def _load(name: str, text: str) -> Model:
    try:
        model = load(name)
        if model.kind not in {"vision", "audio"}:
            next(iter(datasets.text(text)))
    except EigenlensError as error:
        raise Refused(str(error)) from error
    return model


def synthetic_sound(folder: Path, clips: int = 4, rate: int = 16_000) -> list[Path]:
    """Chirps over noise as .wav files: there is no real speech in the catalogue."""
    time, paths = np.arange(8 * rate) / rate, []
    for clip in range(clips):
        noise = np.random.default_rng(clip).normal(0, 0.05, len(time))
        sound = 0.4 * np.sin(2 * math.pi * (200 + 150 * clip + 40 * time) * time) + noise
        paths.append(folder / f"clip-{clip}.wav")
        with wave.open(str(paths[-1]), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(rate)
            file.writeframes((np.clip(sound, -1, 1) * 32767).astype("<i2").tobytes())
    return paths


def orders(seed: int) -> list[dict[str, Any]]:
    """The measured order of contraction of one layer for each kind of attention."""
    return [
        contraction_order(kind, seed=seed).row() for kind in ("full", "causal", "position bias")
    ]

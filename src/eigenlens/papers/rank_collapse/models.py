"""Residual curves, single paths and bounds of pretrained models of the catalogue."""

from __future__ import annotations

import math
import tempfile
import wave
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ...anatomy import freeze
from ...collapses import VARIANTS, collapse
from ...collapses.contraction import contraction_order
from ...data import datasets
from ...data.needs import PHOTOS
from ...errors import EigenlensError
from ...models.forward import forward_of
from ...models.load import Model, load
from ...run.parts import Parts
from ...run.progress import Progress
from ...run.run_all import Refused
from ..inputs import make_batches
from .coverage import stack_facts
from .random_starts import bound_summary

if TYPE_CHECKING:
    from . import Scale


def catalogue_run(
    model: Model, scale: Scale, seed: int, folder: Path, progress: Progress
) -> dict[str, Any]:
    """A pretrained model of the catalogue: residuals of four variants, single paths, bounds.

    Of every stack also what keeps the theory from being about it, see `coverage`.
    """
    name = model.name
    vision, audio = model.kind == "vision", model.kind == "audio"
    length = None if vision or audio else scale.length
    with tempfile.TemporaryDirectory(prefix="eigenlens-data-") as scratch:
        sounds = [str(path) for path in synthetic_sound(Path(scratch))] if audio else []
        number = 3 if audio else scale.read
        run = collapse(
            model,
            None if vision else sounds or scale.text,
            folder / "models" / name,
            max_length=length,
            max_inputs=number,
            paths=1 if audio else 2,
            bounds=0 if audio else 1,
            variants=list(VARIANTS),
            seed=seed,
            resume=True,
            progress=progress,
        )
        data = PHOTOS if vision else scratch if audio else scale.text
        first = make_batches(model, data, length, 3, seed, batch_size=1)[0]
    with torch.no_grad():
        stacks = freeze(model.backbone, first, forward_of(model))
    facts = {one.name: stack_facts(one, scale.paths, seed) for one in stacks}
    curves = []
    for stack in run.curves["full"].stacks:
        for row in (row for row in run.rows() if row["stack"] == stack):
            curves.append(
                {
                    "model": name,
                    "stack": stack,
                    "depth": row["depth"],
                    **{v: row.get(v) for v in VARIANTS},
                    "theory": facts[stack]["theory"],
                }
            )
    bounds = [bound_summary(name, run.bounds)] if run.bounds else []
    partial = [note for note in run.notes if " is partial: " in note]
    return {
        "model": name,
        "sentence": run.sentence,
        "curves": curves,
        "single": [
            {**row, "rank one": _rank_one(facts[row["stack"]], row["attention_hops"])}
            for row in run.single_paths
        ],
        "bounds": bounds,
        "notes": partial,
    }


def _rank_one(facts: dict[str, Any], hops: int) -> float | None:
    return next((r["rank one"] for r in facts["single"] if r["attention_hops"] == hops), None)


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

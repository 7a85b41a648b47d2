"""Mind the gap: the outlier of softmax attention makes tokens collapse as an input gets longer
(arXiv 2410.07799).

One singular value of a random attention matrix of T tokens is near 1, all others are of the order
of `T^(−1/2)`. After one layer the tokens are therefore nearly of rank one, the more so the longer
the input. The remedy is `A⊥ = A − 11ᵀ/T`. What it does to whole encoders, and under a causal mask,
is measured here besides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ...run.parts import Parts
from ...run.progress import Progress
from ..claims import Tables
from ..paper import Paper
from .claims import claims_of
from .encoders import encoder_rows
from .models import (
    MODELS,
    VARIANTS,
    attention_of,
    generator,
    gradient_norm,
    layers,
    spectrum,
    stable_rank,
    start,
    uniform,
    weigh,
)
from .pictures import charts


@dataclass(frozen=True)
class Scale:
    """How many tokens, layers and random draws, and which encoder on which text.

    `ratio` is γ = T/d, `lengths` are those of spectra and of one layer, `clouds` those whose
    eigenvalues are kept. Gradients are of `gradient_depth` layers with `probes` random directions
    each. `starts` are random starts of the encoder's config.
    """

    lengths: tuple[int, ...]
    seeds: int
    clouds: tuple[int, ...]
    depth: int
    depth_length: int
    gradient_lengths: tuple[int, ...]
    gradient_depth: int
    probes: int
    causal_length: int
    model: str
    text: str
    length: int
    inputs: int
    starts: int
    ratio: float = 1.0


FULL = Scale(
    (50, 100, 200, 300, 400, 800),
    5,
    (200, 400, 800),
    12,
    200,
    (32, 64, 128, 256),
    3,
    16,
    400,
    "minilm",
    "wikipedia",
    128,
    64,
    3,
)
QUICK = Scale(
    (50, 100, 200),
    3,
    (100, 200),
    4,
    100,
    (16, 32, 64),
    3,
    8,
    100,
    "minilm",
    "python-docs",
    32,
    8,
    1,
)


def measure(scale: Scale, parts: Parts, seed: int, progress: Progress) -> Tables:
    """Spectra, ranks and gradients of random attention, and an encoder with and without its
    outlier.
    """
    makes: dict[str, Any] = {
        "gradients": partial(gradients, scale, seed, progress),
        "depth": partial(depths, scale, seed, progress),
        "spectrum": partial(spectra, scale, seed, progress),
        "width": partial(widths, scale, seed, progress),
        "encoder": partial(
            encoder_rows, scale.model, scale.text, scale.length, scale.inputs, scale.starts, seed
        ),
        "cloud": partial(clouds, scale, seed),
        "causal": partial(causal, scale, seed),
    }
    gradient_runs, depth, spectrum_runs, width, encoder, cloud, masked = parts.each(makes, progress)
    return {
        "spectrum": _summary(spectrum_runs, ("model", "T")),
        "spectrum runs": spectrum_runs,
        "cloud": cloud,
        "width": width,
        "rank by length": _beside(width, ("model", "T"), "variant", "stable rank"),
        "depth": depth,
        "rank by depth": _beside(depth, ("model", "T", "depth"), "variant", "stable rank"),
        "gradients": _summary(gradient_runs, ("model", "variant", "layers", "T")),
        "gradient runs": gradient_runs,
        "causal": masked,
        **encoder,
        "encoder by depth": _over_starts(encoder["encoder"]),
    }


def spectra(scale: Scale, seed: int, progress: Progress) -> list[dict[str, Any]]:
    """Outlier and bulk of A by model, T and seed."""
    rows = []
    for model in MODELS:
        for done, T in enumerate(scale.lengths):
            for s in range(scale.seeds):
                A = attention_of(model, T, _width(T, scale), generator(seed, s, T))
                rows.append({"model": model, "T": T, "seed": s, **spectrum(A)})
            progress(f"spectra, {model}", done + 1, len(scale.lengths))
    return rows


def clouds(scale: Scale, seed: int) -> list[dict[str, Any]]:
    """Every eigenvalue of one A by model and T."""
    rows = []
    for model in MODELS:
        for T in scale.clouds:
            values = torch.linalg.eigvals(
                attention_of(model, T, _width(T, scale), generator(seed, 0, T))
            )
            rows += [
                {"model": model, "T": T, "real": round(v.real, 5), "imaginary": round(v.imag, 5)}
                for v in values.tolist()
            ]
    return rows


def widths(scale: Scale, seed: int, progress: Progress) -> list[dict[str, Any]]:
    """The stable rank after one layer, by model, variant and T."""
    rows = []
    for model in MODELS:
        for done, T in enumerate(scale.lengths):
            for variant in VARIANTS:
                found = []
                for s in range(scale.seeds):
                    X, W = start(T, _width(T, scale), 1, seed + s)
                    found.append(
                        {
                            "stable rank": stable_rank(
                                layers(X, W, weigh(model, T, seed + s), variant)[0]
                            )
                        }
                    )
                rows.append({"model": model, "variant": variant.name, "T": T, **_means(found)})
            progress(f"one layer, {model}", done + 1, len(scale.lengths))
    return rows


def depths(scale: Scale, seed: int, progress: Progress) -> list[dict[str, Any]]:
    """The stable rank along depth, by model and variant."""
    rows, T = [], scale.depth_length
    for model in MODELS:
        for done, variant in enumerate(VARIANTS):
            ranks = []
            for s in range(scale.seeds):
                X, W = start(T, _width(T, scale), scale.depth, seed + s)
                ranks.append(
                    [stable_rank(Y) for Y in layers(X, W, weigh(model, T, seed + s), variant)]
                )
            for layer in range(scale.depth):
                found = [{"stable rank": curve[layer]} for curve in ranks]
                rows.append(
                    {
                        "model": model,
                        "variant": variant.name,
                        "T": T,
                        "depth": layer + 1,
                        **_means(found),
                    }
                )
            progress(f"depth, {model}", done + 1, len(VARIANTS))
    return rows


def gradients(scale: Scale, seed: int, progress: Progress) -> list[dict[str, Any]]:
    """`‖∂X_L/∂W_1‖` by model, variant, T and seed."""
    rows = []
    for model in MODELS:
        for done, variant in enumerate(VARIANTS):
            for T in scale.gradient_lengths:
                for s in range(scale.seeds):
                    sizes = (T, _width(T, scale), scale.gradient_depth)
                    norm = gradient_norm(model, *sizes, variant, seed + s, scale.probes)
                    row = {
                        "model": model,
                        "variant": variant.name,
                        "layers": scale.gradient_depth,
                        "T": T,
                        "seed": s,
                    }
                    rows.append({**row, "norm": norm})
            progress(f"gradients, {model}", done + 1, len(VARIANTS))
    return rows


def causal(scale: Scale, seed: int) -> list[dict[str, Any]]:
    """`s₁` under a causal mask, of A and with either uniform matrix removed, and the stable rank
    after that one layer.
    """
    rows, T = [], scale.causal_length
    taken = {
        "A": torch.zeros(T, T, dtype=torch.float64),
        "A − 11ᵀ/T": uniform(T),
        "A − causal uniform": uniform(T, True),
    }
    for model in MODELS:
        for name, U in taken.items():
            found = []
            for s in range(scale.seeds):
                A = attention_of(model, T, _width(T, scale), generator(seed, s, T), causal=True) - U
                X, W = start(T, _width(T, scale), 1, seed + s)
                found.append(
                    {
                        "s1": float(torch.linalg.matrix_norm(A, 2)),
                        "stable rank": stable_rank(A @ X @ W[0]),
                    }
                )
            rows.append({"model": model, "matrix": name, "T": T, **_means(found)})
    return rows


def _width(T: int, scale: Scale) -> int:
    return round(T / scale.ratio)


def _means(found: Sequence[dict[str, float]]) -> dict[str, Any]:
    """The mean of every number over the seeds, and the least and largest of the first."""
    first = [row[next(iter(found[0]))] for row in found]
    means = {key: sum(row[key] for row in found) / len(found) for key in found[0]}
    return {**means, "low": min(first), "high": max(first), "seeds": len(found)}


def _summary(runs: Sequence[dict[str, Any]], by: tuple[str, ...]) -> list[dict[str, Any]]:
    """Rows of all seeds in one, with the means."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for run in runs:
        groups.setdefault(tuple(run[key] for key in by), []).append(
            {k: x for k, x in run.items() if k not in (*by, "seed")}
        )
    return [{**dict(zip(by, place)), **_means(found)} for place, found in groups.items()]


def _over_starts(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """An encoder along its depth, the mean of all random starts in one row."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["weights"], row["attention"], row["depth"]), []).append(row)
    return [
        {
            "weights": weights,
            "attention": attention,
            "depth": depth,
            "models": len(found),
            **{
                key: sum(row[key] for row in found) / len(found)
                for key in ("stable rank", "residual", "cosine")
            },
        }
        for (weights, attention, depth), found in groups.items()
    ]


def _beside(
    rows: Sequence[dict[str, Any]], by: tuple[str, ...], across: str, value: str
) -> list[dict[str, Any]]:
    """One row for each place, with a column for each value of `across`."""
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in by), {})[row[across]] = row[value]
    return [{**dict(zip(by, place)), **found} for place, found in groups.items()]


SHOWN = (
    ("The spectrum of A: outlier and edge of the bulk, mean of the seeds", "spectrum"),
    ("Stable rank after one layer, mean of the seeds", "rank by length"),
    ("Stable rank along depth, mean of the seeds", "rank by depth"),
    ("Largest singular value under a causal mask", "causal"),
    (
        "An encoder along its depth, as it is and without the outlier (random starts: their mean)",
        "encoder by depth",
    ),
    ("Embeddings of the encoder without the outlier, beside its own", "embeddings"),
)
paper = Paper(
    "mind-the-gap",
    "Mind the gap: a spectral analysis of rank collapse and signal propagation in attention layers"
    " (arXiv 2410.07799)",
    FULL,
    QUICK,
    measure,
    claims_of,
    charts,
    SHOWN,
    (
        (
            "the paper's training runs are left out: attention is measured at its random start, and"
            " in one trained encoder"
        ),
    ),
)

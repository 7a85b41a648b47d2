"""Spectra, stable ranks and gradients of random attention, with and without its outlier."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ...run.progress import Progress
from .models import (
    MODELS,
    VARIANTS,
    attention_by_layer,
    attention_of,
    generator,
    gradient_norm,
    isometric_start,
    layer_outputs,
    spectrum,
    stable_rank,
    uniform,
)
from .tables import seed_means

if TYPE_CHECKING:
    from . import Scale


def spectra(scale: Scale, seed: int, progress: Progress) -> list[dict[str, Any]]:
    """Outlier and bulk of A by model, T and seed."""
    rows = []
    for model in MODELS:
        for done, T in enumerate(scale.lengths):
            for s in range(scale.seeds):
                A = attention_of(model, T, _width(T, scale), generator(seed, s, T))
                rows.append({"model": model, "T": T, "seed": s, **spectrum(A)})
            progress(f"computing spectra of attention ({model})", done + 1, len(scale.lengths))
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
                    X, W = isometric_start(T, _width(T, scale), 1, seed + s)
                    found.append(
                        {
                            "stable rank": stable_rank(
                                layer_outputs(
                                    X, W, attention_by_layer(model, T, seed + s), variant
                                )[0]
                            )
                        }
                    )
                rows.append({"model": model, "variant": variant.name, "T": T, **seed_means(found)})
            progress(f"computing ranks after one layer ({model})", done + 1, len(scale.lengths))
    return rows


def depths(scale: Scale, seed: int, progress: Progress) -> list[dict[str, Any]]:
    """The stable rank along depth, by model and variant."""
    rows, T = [], scale.depth_length
    for model in MODELS:
        for done, variant in enumerate(VARIANTS):
            ranks = []
            for s in range(scale.seeds):
                X, W = isometric_start(T, _width(T, scale), scale.depth, seed + s)
                ranks.append(
                    [
                        stable_rank(Y)
                        for Y in layer_outputs(
                            X, W, attention_by_layer(model, T, seed + s), variant
                        )
                    ]
                )
            for layer in range(scale.depth):
                found = [{"stable rank": curve[layer]} for curve in ranks]
                rows.append(
                    {
                        "model": model,
                        "variant": variant.name,
                        "T": T,
                        "depth": layer + 1,
                        **seed_means(found),
                    }
                )
            progress(f"computing ranks along depth ({model})", done + 1, len(VARIANTS))
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
            progress(f"computing gradients ({model})", done + 1, len(VARIANTS))
    return rows


def causal(scale: Scale, seed: int) -> list[dict[str, Any]]:
    """`s₁` under a causal mask, and the stable rank after that one layer.

    Both of A as it is and with either uniform matrix removed.
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
                X, W = isometric_start(T, _width(T, scale), 1, seed + s)
                found.append(
                    {
                        "s1": float(torch.linalg.matrix_norm(A, 2)),
                        "stable rank": stable_rank(A @ X @ W[0]),
                    }
                )
            rows.append({"model": model, "matrix": name, "T": T, **seed_means(found)})
    return rows


def _width(T: int, scale: Scale) -> int:
    return round(T / scale.ratio)

"""Mind the gap: the outlier of softmax attention makes tokens collapse (arXiv 2410.07799).

One singular value of a random attention matrix of T tokens is near 1, all others are of the order
of `T^(−1/2)`. After one layer the tokens are therefore nearly of rank one, the more so the longer
the input. The remedy is `A⊥ = A − 11ᵀ/T`. What it does to whole encoders, and under a causal mask,
is measured here besides.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from ...run.parts import Parts
from ...run.progress import Progress
from ..claims import Tables
from ..paper import Paper
from .claims import claims_of
from .encoders import encoder_rows
from .pictures import charts
from .random_attention import causal, clouds, depths, gradients, spectra, widths
from .tables import means_over_seeds, means_over_starts, side_by_side


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
    """Measure random attention, and an encoder with and without its outlier.

    Of random attention the spectra, ranks and gradients are measured.
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
    gradient_runs, depth, spectrum_runs, width, encoder, cloud, masked = parts.each(
        makes, progress, "measuring random attention and an encoder"
    )
    return {
        "spectrum": means_over_seeds(spectrum_runs, ("model", "T")),
        "spectrum runs": spectrum_runs,
        "cloud": cloud,
        "width": width,
        "rank by length": side_by_side(width, ("model", "T"), "variant", "stable rank"),
        "depth": depth,
        "rank by depth": side_by_side(depth, ("model", "T", "depth"), "variant", "stable rank"),
        "gradients": means_over_seeds(gradient_runs, ("model", "variant", "layers", "T")),
        "gradient runs": gradient_runs,
        "causal": masked,
        **encoder,
        "encoder by depth": means_over_starts(encoder["encoder"]),
    }


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
    models=("model",),
    kinds=("encoder",),
)

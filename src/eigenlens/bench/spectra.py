"""What training with a mechanism makes of the patterns: rank, sinks and gap."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..captures import AttentionCall, Site
from ..display import numbered, percent
from ..lab import Transformer
from ..run.parts import Parts
from ..run.progress import Progress
from ..spectra.rows import RowAnalysis
from ..stats import RowMoments
from .entrants import FULL, fits
from .result import Bench
from .training import TASKS, LabScale, config_of, task_named, trained

Row = dict[str, Any]
INPUTS = 32
MEASURES = {
    "row_dimension_90": "dimensions of the rows for 90 % of held-out variance",
    "effective_rank": "effective rank of a pattern",
    "gap": "second singular value over the first",
    "first_singular_value": "first singular value",
    "first_key": "weight on the first key",
    "largest_column": "weight on the heaviest key",
    "entropy": "entropy of attention rows, as a share of the largest possible",
}
"""What is measured of every head; a table has the median of the heads."""


def spectra(
    scale: LabScale, parts: Parts, names: Sequence[str], progress: Progress, store: Path
) -> Bench:
    """The patterns of every trained mechanism.

    Models that the quality bench has trained are not trained again.
    """
    runs = [(task, name) for task in scale.tasks for name in names if fits(name, TASKS[task])]
    heads: list[Row] = []
    stage = f"measuring the patterns of {numbered(len(runs), 'trained model')}"
    for done, (at, name) in enumerate(runs):
        progress(stage, done, len(runs))
        heads += parts.part(
            f"{at.replace(' ', '-')}/{name}",
            functools.partial(_one, at, name, scale, store, progress),
        )
    progress(stage, len(runs), len(runs))
    rows = [
        {
            "task": at,
            "mechanism": name,
            **{
                key: float(
                    np.median([h[key] for h in heads if (h["task"], h["mechanism"]) == (at, name)])
                )
                for key in MEASURES
            },
        }
        for at, name in runs
    ]
    return Bench(
        "spectra",
        "What a mechanism does to rank, sinks and gap of the patterns",
        sentence(rows),
        tables={"spectra": rows, "heads": heads},
        notes=("negative weights count by their absolute value",),
        shown=(
            (
                "Patterns of trained models, median of the heads; row dimensions hold 90 % of the"
                " variance",
                "spectra",
            ),
        ),
    )


def _one(at: str, name: str, scale: LabScale, store: Path, progress: Progress) -> list[Row]:
    task = task_named(at, scale)
    config = config_of(task, name, scale)
    model, _ = trained(
        task, config, scale.seeds[0], scale, store, progress, f"training on the task {at}"
    )
    inputs = torch.cat([batch.inputs for batch in task.held_out()])[:INPUTS]
    return [{"task": at, "mechanism": name, **row} for row in head_rows(model, inputs)]


@torch.no_grad()
def head_rows(model: Transformer, inputs: Tensor) -> list[Row]:
    """The measures of every head of a model on inputs: layer, head, and each of `MEASURES`."""
    patterns = [A.double() for A in model.patterns(inputs)]
    dimensions = row_dimensions(patterns, model.config.causal)
    return [
        {
            "layer": layer,
            "head": head,
            "row_dimension_90": dimensions[layer, head],
            **measures_of(A[:, head]),
        }
        for layer, A in enumerate(patterns)
        for head in range(A.shape[1])
    ]


def row_dimensions(patterns: Sequence[Tensor], causal: bool) -> dict[tuple[int, int], int]:
    """Eigen-analysis of the rows of `A (B, H, T, T)` of each layer, as of score rows.

    A call with q = A, k = I and scale 1 has the scores A exactly. Half of the inputs fit, two
    quarters are held out.
    """
    B = len(patterns[0])
    cuts = [
        slice(0, max(B // 2, 1)),
        slice(B // 2, max(B // 2 + B // 4, B // 2 + 1)),
        slice(B // 2 + B // 4, B),
    ]
    sums = []
    for cut in cuts:
        moments = RowMoments(of="scores")
        for call in calls_of([A[cut] for A in patterns], causal):
            moments.update(call)
        sums.append(moments.result())
    analysis = RowAnalysis(sums[0])
    found = analysis.spectra([analysis.energies(group) for group in sums[1:]])
    most = patterns[0].shape[3]
    return {
        (s.layer or 0, s.head or 0): s.dimension(0.9) or most
        for s in found
        if s.level == "head" and s.centring == "centred"
    }


def calls_of(patterns: Sequence[Tensor], causal: bool) -> Iterator[AttentionCall]:
    """Attention calls whose scores are given matrices `(B, H, T, T)`, one per layer."""
    for layer, A in enumerate(patterns):
        unit = torch.eye(A.shape[3], dtype=A.dtype, device=A.device).expand(*A.shape[:2], -1, -1)
        yield AttentionCall(
            Site("self", layer), "self", f"layer {layer}", A, unit, unit, 1.0, causal=causal
        )


@torch.no_grad()
def measures_of(A: Tensor) -> Row:
    """Means over the patterns `A (B, T, T)` of one head.

    effective rank `exp(−Σ p ln p)` of `p = s / Σs`; gap `s₂/s₁`; of the rows of |A|, normed to 1,
    the weight on the first key, on the heaviest key of the input, and the entropy over the
    logarithm of the keys that the row can see.
    """
    s = torch.linalg.svdvals(A)  # (B, T)
    p = s / s.sum(1, keepdim=True).clamp_min(1e-30)
    rows = A.abs()
    rows = rows / rows.sum(2, keepdim=True).clamp_min(1e-30)  # (B, T, T)
    seen = (A != 0).any(0).sum(1).clamp_min(1)  # (T,): keys that a row ever looks at
    wide = seen > 1
    entropy = torch.special.entr(rows).sum(2)[:, wide] / seen[wide].log()
    found = {
        "effective_rank": torch.special.entr(p).sum(1).exp().mean(),
        "gap": (s[:, 1] / s[:, 0].clamp_min(1e-30)).mean(),
        "first_singular_value": s[:, 0].mean(),
        "first_key": rows[:, :, 0].mean(),
        "largest_column": rows.mean(1).max(1).values.mean(),
        "entropy": entropy.mean() if bool(wide.any()) else torch.zeros(()),
    }
    return {name: float(x) for name, x in found.items()}


def sentence(rows: Sequence[Row]) -> str:
    """Which mechanism has the largest and the least rank, and the largest sink, in words."""
    message: list[str] = []
    for task in dict.fromkeys(row["task"] for row in rows):
        mine = [row for row in rows if row["task"] == task]
        full = next((row for row in mine if row["mechanism"] == FULL), mine[0])
        high, low = (f(mine, key=lambda row: row["effective_rank"]) for f in (max, min))
        sink = max(mine, key=lambda row: row["largest_column"])
        message.append(
            f"{'O' if not message else 'o'}n {task} the patterns of {high['mechanism']} have the"
            f" largest effective rank ({high['effective_rank']:.1f}), those of {low['mechanism']}"
            f" the least ({low['effective_rank']:.1f}), {full['mechanism']}"
            f" {full['effective_rank']:.1f}; {sink['mechanism']} puts most on one key"
            f" ({percent(sink['largest_column'])})"
        )
    return f"{'; '.join(message)}." if message else "No mechanism fits a task."

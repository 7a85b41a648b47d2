"""Gated attention as a mixture of experts (arXiv 2602.01468).

Exact statements are checked, and small language models are trained with every gate.

    Y' = Y ⊙ σ(X W_θ)

The published figures are of a mixture-of-experts model with 15 billion parameters, two of them
active (arXiv 2505.06708). Here models of about a hundred thousand are trained on the same text for
the same steps, once with each gate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ...display import numbered
from ...lab import NextBytes, TrainingSettings, Transformer, train
from ...run.parts import Parts
from ...run.progress import Progress
from ..claims import Tables
from ..paper import Paper
from .checks import exact_checks
from .claims import claims_of
from .pictures import charts


@dataclass(frozen=True)
class Scale:
    """The text, the models and their training; `spans` are numbers of queries."""

    data: str
    characters: int
    length: int
    width: int
    layers: int
    heads: int
    steps: int
    batch: int
    rate: float
    measure: int
    windows: int
    seeds: int
    gates: tuple[str, ...] = ("none", "G1", "G1-head", "G2", "G3", "G4", "G5")
    spans: tuple[int, ...] = (1, 2, 4, 8, 12, 16, 24, 32)
    draws: int = 3


FULL = Scale(
    data="python-docs",
    characters=400_000,
    length=64,
    width=64,
    layers=3,
    heads=4,
    steps=400,
    batch=16,
    rate=4e-3,
    measure=100,
    windows=128,
    seeds=2,
)
QUICK = Scale(
    data="python-docs",
    characters=200_000,
    length=32,
    width=32,
    layers=2,
    heads=2,
    steps=60,
    batch=16,
    rate=6e-3,
    measure=30,
    windows=32,
    seeds=2,
    draws=1,
)


def measure(scale: Scale, parts: Parts, seed: int, progress: Progress) -> Tables:
    """The exact checks, and every gate trained from every seed."""
    exact = parts.part("checks", partial(exact_checks, scale.spans, scale.draws))
    makes = {
        f"seed-{at}/{gate}": partial(one_run, scale, gate, at, progress)
        for at in range(seed, seed + scale.seeds)
        for gate in scale.gates
    }
    runs = parts.each(makes, progress, f"training {numbered(len(makes), 'model')}")
    rows = [{**run["end"], "even": uniform_share(scale.length)} for run in runs]
    return {
        "runs": rows,
        "gates": by_gate(rows),
        "curve": [row for run in runs for row in run["curve"]],
        **exact,
    }


def byte_task(scale: Scale) -> NextBytes:
    """The text as a task; a token of its own begins every input.

    Large models have their sinks at this place.
    """
    return NextBytes.from_data(
        scale.data, scale.characters, length=scale.length, windows=scale.windows, start=True
    )


def one_run(scale: Scale, gate: str, seed: int, progress: Progress) -> dict[str, Any]:
    """One model, trained and looked into."""
    task = byte_task(scale)
    shape = {"width": scale.width, "layers": scale.layers, "heads": scale.heads}
    torch.manual_seed(seed)
    model = Transformer(task.config(**shape, gate=None if gate == "none" else gate))
    settings = TrainingSettings(
        scale.steps, scale.batch, scale.rate, measure=scale.measure, seed=seed
    )
    done = train(model, task, settings, progress=progress, label=f"training with the gate {gate}")
    end = {
        "gate": gate,
        "seed": seed,
        "loss": done.loss,
        "accuracy": done.accuracy,
        **gate_numbers(model, task),
        "weights": sum(p.numel() for p in model.parameters()),
    }
    curve = [
        {"gate": gate, "seed": seed, "step": point.step, "loss": point.loss} for point in done.curve
    ]
    return {"end": end, "curve": curve}


@torch.no_grad()
def gate_numbers(model: Transformer, task: NextBytes) -> dict[str, Any]:
    """Numbers on held-out inputs: mean gate, attention to the first token, largest activation.

    The attention is that of queries in the second half, the activation that of the stream behind
    any block.
    """
    gates, first, largest = [], [], 0.0
    for batch in task.held_out():
        x = model.embed(batch.inputs)
        for block in model.blocks:
            x = block(x)
            largest = max(largest, float(x.abs().max()))
        for attention, given in zip(model.attentions, model.attended(batch.inputs)):
            A = attention.pattern(given)  # (B, H, T, T)
            first += A[:, :, A.shape[2] // 2 :, 0].mean((1, 2)).tolist()
            if attention.gate is not None:
                gates += attention.gate.values(given).flatten(1).mean(1).tolist()
    mean_gate = sum(gates) / len(gates) if gates else None
    return {
        "mean_gate": mean_gate,
        "first_token": sum(first) / len(first),
        "largest_activation": largest,
    }


def uniform_share(n: int) -> float:
    """What the first token of n gets on average from uniform queries of the second half.

    Such a query attends alike to all tokens up to itself.
    """
    half = range(n // 2, n)
    return sum(1 / (query + 1) for query in half) / len(half)


def by_gate(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The mean over seeds of every gate."""
    found = []
    for gate in dict.fromkeys(row["gate"] for row in rows):
        own = [row for row in rows if row["gate"] == gate]
        numbers = {}
        for key in ("loss", "mean_gate", "first_token", "largest_activation"):
            values = [row[key] for row in own if row[key] is not None]
            numbers[key] = sum(values) / len(values) if values else None
        losses = [row["loss"] for row in own]
        found.append(
            {
                "gate": gate,
                **numbers,
                "loss_low": min(losses),
                "loss_high": max(losses),
                "weights": own[0]["weights"],
                "seeds": len(own),
            }
        )
    return found


SHOWN = (
    ("Models trained with every gate, mean over seeds (loss in nats per byte)", "gates"),
    ("Dimension of the span of the queries' value-output maps", "spans"),
    ("Exact statements: the largest error of each", "exact"),
)
paper = Paper(
    "gated",
    "Gated attention as a hierarchical mixture of experts (arXiv 2602.01468)",
    FULL,
    QUICK,
    measure,
    claims_of,
    charts,
    SHOWN,
    (
        "gates add weights (column weights), and the models are not made smaller elsewhere",
        (
            "largest activations and losses are those of models a hundred thousand times smaller"
            " than the published ones"
        ),
    ),
)

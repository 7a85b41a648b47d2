"""Self-attention localises when the QK eigenspectrum concentrates (arXiv 2402.02098).

Measured on heads of models, on a toy, and with a penalty in training.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ...display import numbered
from ...lab import NextBytes, TrainingSettings, Transformer, documents, split, train
from ...run.parts import Parts
from ...run.progress import Progress
from ..claims import Tables
from ..fits import rank_correlation, rank_correlation_interval
from ..paper import Paper
from .claims import claims_of
from .heads import head_rows
from .pictures import charts
from .toy import descend, toy_row

COLUMNS = ("concentration", "mean", "variance")
"""Of a head's spectrum: the mean's size over the standard deviation, mean and variance."""
LOOKS = ("distance", "profile entropy", "rho far")


@dataclass(frozen=True)
class Scale:
    """How large a run is.

    `sequences` are those of the toy, `models` are from the catalogue, run on `inputs`, and language
    models of `layers` are trained for `steps`.
    """

    sequences: int = 2000
    seeds: int = 5
    traces: tuple[float, ...] = (16.0, 0.0)
    variances: tuple[float, ...] = (0.0, 0.06, 0.25, 1.0)
    models: tuple[str, ...] = ("minilm", "distilbert-gec", "dinov2-small")
    inputs: int = 16
    length: int = 64
    text: str = "python-docs"
    penalties: tuple[float, ...] = (0.0, 0.001, 0.01, 0.1)
    steps: int = 300
    batch: int = 16
    layers: int = 2
    width: int = 64
    heads: int = 4
    training_seeds: int = 2
    characters: int = 400_000


FULL = Scale()
QUICK = Scale(
    sequences=500,
    seeds=2,
    models=("minilm",),
    inputs=4,
    length=32,
    penalties=(0.0, 0.01),
    steps=25,
    batch=8,
    characters=60_000,
)


def measure(scale: Scale, parts: Parts, seed: int, progress: Progress) -> Tables:
    seeds = [seed * 100 + start for start in range(scale.seeds)]
    toy, descent = parts.each(
        {"toy": partial(_toy, scale, seeds), "descent": partial(_descent, seeds)},
        progress,
        "measuring heads of known spectrum",
    )
    heads = []
    stage = f"computing spectra of heads of {numbered(len(scale.models), 'model')}"
    for done, name in enumerate(scale.models):
        progress(stage, done, len(scale.models))
        made = partial(head_rows, name, scale.inputs, scale.length, scale.text, seed)
        heads += parts.part(f"heads/{name}", made)
    makes = {
        (name := f"training/{at}-{start}"): partial(
            _train, scale, penalty, start, name, parts, progress
        )
        for at, penalty in enumerate(scale.penalties)
        for start in seeds[: scale.training_seeds]
    }
    trained = parts.each(makes, progress, f"training {numbered(len(makes), 'language model')}")
    return {
        "toy": _mean_rows(toy, ("trace", "variance")),
        "descent": descent,
        "heads": heads,
        "correlations": correlations(heads),
        "training": _mean_rows(trained, ("penalty",)),
        "runs": trained,
    }


def _toy(scale: Scale, seeds: Sequence[int]) -> list[dict[str, Any]]:
    return [
        toy_row(trace, variance, scale.sequences, seed)
        for trace in scale.traces
        for variance in scale.variances
        for seed in seeds
    ]


def _descent(seeds: Sequence[int]) -> list[dict[str, Any]]:
    return [descend(64, 100, 0.02, seed) for seed in seeds]


def correlations(heads: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rank correlations of the spectrum with where a head looks.

    Spearman's, over the heads of each model, of one number of the spectrum and one of where the
    head looks.
    """
    found = []
    for model in dict.fromkeys(row["model"] for row in heads):
        rows = [row for row in heads if row["model"] == model]
        for column in COLUMNS:
            for look in LOOKS:
                pair = [row[column] for row in rows], [row[look] for row in rows]
                low, high = rank_correlation_interval(*pair, draws=1000)
                found.append(
                    {
                        "model": model,
                        "spectrum": column,
                        "of": look,
                        "value": rank_correlation(*pair),
                        "low": low,
                        "high": high,
                    }
                )
    return found


def _train(
    scale: Scale,
    penalty: float,
    seed: int,
    name: str,
    parts: Parts,
    progress: Progress,
) -> dict[str, Any]:
    """A causal language model of bytes with the LocAteR-style penalty at this strength."""
    task = NextBytes(
        *split(documents(scale.text, scale.characters), 0.1, 0), length=scale.length, windows=64
    )
    torch.manual_seed(seed)
    model = Transformer(task.config(layers=scale.layers, width=scale.width, heads=scale.heads))
    settings = TrainingSettings(
        scale.steps, scale.batch, measure=scale.steps, seed=seed, penalty=penalty
    )
    label = f"training a language model with penalty {penalty:g}"
    done = train(
        model, task, settings, progress=progress, label=label, checkpoint=parts.checkpoint(name)
    )
    return {
        "penalty": penalty,
        "seed": seed,
        "loss": done.loss,
        "perplexity": math.exp(done.loss),
        **attention_numbers(model, task),
    }


@torch.no_grad()
def attention_numbers(model: Transformer, task: NextBytes) -> dict[str, float]:
    """Numbers over all heads and held-out inputs.

    Entropy of a query's row over that of uniform attention, distance looked back, and mean and
    standard deviation of the eigenvalues.
    """
    from ...attention.qk import spectrum

    inputs = next(iter(task.held_out())).inputs[:16]
    T = inputs.shape[1]
    back = (torch.arange(T)[:, None] - torch.arange(T)).clamp_min(0).double()
    seen = torch.arange(1, T + 1).double()
    entropies, distance, means, spreads = [], [], [], []
    for A, attention in zip(model.patterns(inputs), model.attentions):
        A = A.double()
        entropies.append(float((torch.special.entr(A).sum(3)[..., 1:] / seen[1:].log()).mean()))
        distance.append(float((A * back).sum(3).mean()))
        found = spectrum(attention.w_q, attention.w_k)
        means.append(float(found.mean.abs().mean()))
        spreads.append(float(found.variance.sqrt().mean()))
    mean = lambda values: sum(values) / len(values)  # noqa: E731
    return {
        "entropy": mean(entropies),
        "distance": mean(distance),
        "eigenvalue mean": mean(means),
        "eigenvalue spread": mean(spreads),
    }


def _mean_rows(rows: Sequence[dict[str, Any]], by: Sequence[str]) -> list[dict[str, Any]]:
    """Means over seeds of every number.

    The first number also has its least and its largest value (`… low`, `… high`).
    """
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in by), []).append(row)
    found = []
    for key, members in groups.items():
        row = dict(zip(by, key))
        for name in (name for name in members[0] if name not in (*by, "seed")):
            values = [member[name] for member in members]
            row |= {
                name: sum(values) / len(values),
                f"{name} low": min(values),
                f"{name} high": max(values),
            }
        found.append(row)
    return found


SHOWN = (
    ("AR(1) tokens: how far attention looks back, by trace and variance", "toy"),
    ("Rank correlation over heads of spectrum and distance looked back", "correlations"),
    ("Descent on the penalty alone: what becomes of the trace", "descent"),
    ("Language models of bytes trained with the penalty, mean of the seeds", "training"),
)
NOTES = (
    "the penalty is LocAteR-style: the paper's own equation was not at hand",
    "eigenvalues are those of W_Q W_Kᵀ without biases and without the gain of the norm before it",
)
MAIN_COLUMNS = {
    "toy": ("trace", "variance", "distance", "entropy", "rho near", "rho far"),
    "training": (
        "penalty",
        "loss",
        "perplexity",
        "entropy",
        "distance",
        "eigenvalue mean",
        "eigenvalue spread",
    ),
}
paper = Paper(
    "qk-eigenspectrum",
    "Self-attention localises when the QK eigenspectrum concentrates (arXiv 2402.02098)",
    FULL,
    QUICK,
    measure,
    claims_of,
    charts,
    SHOWN,
    NOTES,
    columns=MAIN_COLUMNS,
    models=("models",),
    kinds=("encoder", "decoder", "vision"),
)

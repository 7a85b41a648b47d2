"""Every method's order put to the test on labelled inputs.

Tokens are taken away, and the model is asked again.

What is explained is the log-odds of the class that the model chooses (the log-probability of the
token, of a language model). What is followed while tokens go is the probability of that choice, and
whether the model still gives the label.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ...display import numbered
from ...explanations.deletion import FRACTIONS, Deletion, deletion_curves
from ...explanations.methods import METHODS, attribute
from ...explanations.scores import Score, last_token, logits_of
from ...explanations.target import Target, target_of
from ...models.forward import forward_of
from ...models.load import Model
from ...run.progress import Progress
from .labelled import Labelled

RANDOM = "random"
TESTED = tuple(name for name in METHODS if name != RANDOM)


def compare_methods(
    model: Model,
    asked: Labelled,
    *,
    draws: int,
    seed: int,
    size: int = 16,
    methods: Sequence[str] = TESTED,
    progress: Progress,
    name: str,
) -> dict[str, Any]:
    """Curves and areas of every method, and of `draws` random orders.

    They are plain data, inputs in the order of `asked`.

    `areas[method][order]` and `right[method][order]` hold one number per input, the area under its
    probability and under whether it is right; `curves` are the means over inputs. Of random orders
    each number is the mean of the draws.
    """
    scores = scores_of(model, asked, methods, size, progress, name)
    T = asked.keep.shape[1]
    for draw in range(draws):
        generator = torch.Generator().manual_seed(1000 * seed + draw)
        scores[f"{RANDOM} {draw}"] = torch.rand(len(asked), T, generator=generator)
    both: dict[tuple[str, str], list[Tensor]] = {}  # (N, F) of every draw
    stage = f"deleting tokens of {len(asked)} {name}"
    progress(stage, 0, 1)
    for found in deletions_of(model, asked, scores):
        label = RANDOM if found.method.startswith(f"{RANDOM} ") else found.method
        both.setdefault((label, found.order), []).append(found.scores)
    progress(stage, 1, 1)
    return _plain(both, model, asked)


def scores_of(
    model: Model, asked: Labelled, methods: Sequence[str], size: int, progress: Progress, name: str
) -> dict[str, Tensor]:
    """Scores (N, T) of every method, some inputs at a time; what is beyond a shorter text is 0."""
    T, parts = asked.keep.shape[1], list(asked.parts(size))
    found: dict[str, list[Tensor]] = {}
    stage = f"attributing {len(asked)} {name} by {numbered(len(methods), 'method')}"
    for done, part in enumerate(parts):
        progress(stage, done, len(parts))
        for method, scores in attribute(
            model, part.batch, target_of(model, part.batch), methods
        ).items():
            found.setdefault(method, []).append(
                torch.nn.functional.pad(scores.cpu(), (0, T - scores.shape[1]))
            )
    return {method: torch.cat(rows) for method, rows in found.items()}


def deletions_of(model: Model, asked: Labelled, scores: Mapping[str, Tensor]) -> list[Deletion]:
    """Curves of `p + 2·right`.

    That is the probability p of the model's first choice, and 2 more while it gives the label.
    """
    with torch.no_grad():
        chosen = torch.cat([_last(model, part).argmax(1) for part in asked.parts(64)])
    labels = asked.labels

    def select(rows: Tensor, _position: Tensor | None) -> Score:
        def score(output: Any, batch: Mapping[str, Tensor]) -> Tensor:
            p = _logits(output, batch).double().softmax(1)  # (n, K)
            return p.gather(1, chosen[rows][:, None])[:, 0] + 2 * (p.argmax(1) == labels[rows])

        return score

    kind = "token" if model.kind == "decoder" else "class"
    target = Target(
        kind,  # type: ignore[arg-type]
        "p + 2·right",
        select(torch.arange(len(asked), device=labels.device), None),
        select=select,
    )
    return deletion_curves(model, asked.batch, target, scores, asked.keep, FRACTIONS, 64)


def _last(model: Model, part: Labelled) -> Tensor:
    """The logits (B, K) of a class, or of the next token."""
    return _logits(forward_of(model, with_head=True)(part.batch), part.batch)


def _logits(output: Any, batch: Mapping[str, Tensor]) -> Tensor:
    logits = logits_of(output, plain=True)
    assert logits is not None  # a classifier or a language model
    if logits.ndim == 2:
        return logits
    return logits[torch.arange(len(logits), device=logits.device), last_token(batch, logits)]


def _plain(
    both: Mapping[tuple[str, str], list[Tensor]], model: Model, asked: Labelled
) -> dict[str, Any]:
    areas: dict[str, dict[str, list[float]]] = {}
    right: dict[str, dict[str, list[float]]] = {}
    curves = []
    for (method, order), found in both.items():
        values = torch.stack(found)  # (draws, N, F)
        hit = (values > 1.5).double()  # p is at most 1
        p = values - 2 * hit
        at = values.new_tensor(FRACTIONS)
        areas.setdefault(method, {})[order] = torch.trapezoid(p, at).mean(0).tolist()
        right.setdefault(method, {})[order] = torch.trapezoid(hit, at).mean(0).tolist()
        means = zip(FRACTIONS, p.mean((0, 1)).tolist(), hit.mean((0, 1)).tolist())
        curves += [
            {"method": method, "order": order, "fraction": f, "probability": a, "accuracy": b}
            for f, a, b in means
        ]
    free = _free(asked)
    facts = {
        "model": model.name,
        "inputs": len(asked),
        "tokens that may go": float(free.double().mean()),
    }
    return {"facts": facts, "areas": areas, "right": right, "curves": curves}


def _free(asked: Labelled) -> Tensor:
    """How many tokens of each input may be taken away, (N,)."""
    mask = asked.batch.get("attention_mask")
    there = torch.ones_like(asked.keep) if mask is None else mask.bool()
    return (there & ~asked.keep).sum(1)

"""The measures of a model's own task: what its user would notice."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from ..data.inputs import Batch
from ..models.load import Model


class Task(Protocol):
    """Compares the outputs of the unchanged model and of the planned one on each batch.

    `result` has one row per measure. `merge` adds what another has seen of the inputs that follow,
    and does not change the other.
    """

    def add(self, batch: Batch, plain: Any, planned: Any) -> None: ...

    def merge(self, other: Self) -> None: ...

    def result(self) -> list[dict[str, Any]]: ...


def task_of(model: Model, output: Any) -> Task:
    """The measure of a model: perplexity, agreement of classes, or cosine of embeddings."""
    logits = getattr(output, "logits", None)
    if logits is None:
        return Embeddings(first_token=model.kind == "vision")
    if model.kind in {"decoder", "encoder-decoder"}:
        return Perplexity()
    return Classes()


class Perplexity:
    """The perplexity: `exp` of the mean loss of the next token, without padding."""

    def __init__(self) -> None:
        self.loss, self.same, self.number = [0.0, 0.0], 0, 0

    def add(self, batch: Batch, plain: Any, planned: Any) -> None:
        ids = batch.get("decoder_input_ids", batch["input_ids"])  # (B, T)
        mask = batch.get(
            "decoder_attention_mask",
            batch.get("attention_mask") if "decoder_input_ids" not in batch else None,
        )
        labels = ids[:, 1:] if mask is None else ids[:, 1:].masked_fill(mask[:, 1:] == 0, -100)
        for i, output in enumerate((plain, planned)):
            logits = output.logits[:, :-1].flatten(0, 1).float()
            self.loss[i] += float(F.cross_entropy(logits, labels.flatten(), reduction="sum"))
        seen = labels != -100
        self.same += int(
            ((plain.logits[:, :-1].argmax(-1) == planned.logits[:, :-1].argmax(-1)) & seen).sum()
        )
        self.number += int(seen.sum())

    def merge(self, other: Self) -> None:
        self.loss = [mine + theirs for mine, theirs in zip(self.loss, other.loss)]
        self.same, self.number = self.same + other.same, self.number + other.number

    def result(self) -> list[dict[str, Any]]:
        before, after = (math.exp(min(loss / max(self.number, 1), 700)) for loss in self.loss)
        return [
            {"measure": "perplexity", "plain": before, "planned": after},
            {
                "measure": "agreement of the likeliest next token",
                "plain": 1.0,
                "planned": self.same / max(self.number, 1),
            },
        ]


class Classes:
    """How often the likeliest class stays the same, and the overlap `Σ min(p, p̂)`.

    Over inputs or tokens; p and p̂ are the probabilities of the classes. If nearly all inputs get
    one class, the overlap shows a change that the agreement does not.
    """

    def __init__(self) -> None:
        self.same, self.overlap, self.number = 0, 0.0, 0

    def add(self, batch: Batch, plain: Any, planned: Any) -> None:
        same = plain.logits.argmax(-1) == planned.logits.argmax(-1)
        overlap = torch.minimum(
            plain.logits.float().softmax(-1), planned.logits.float().softmax(-1)
        ).sum(-1)
        if same.ndim == 2 and "attention_mask" in batch:
            tokens = batch["attention_mask"].bool()
            same, overlap = same[tokens], overlap[tokens]
        self.same, self.number = self.same + int(same.sum()), self.number + same.numel()
        self.overlap += float(overlap.sum())

    def merge(self, other: Self) -> None:
        self.same, self.number = self.same + other.same, self.number + other.number
        self.overlap += other.overlap

    def result(self) -> list[dict[str, Any]]:
        number = max(self.number, 1)
        return [
            {"measure": "top-1 agreement", "plain": 1.0, "planned": self.same / number},
            {
                "measure": "overlap of the class probabilities",
                "plain": 1.0,
                "planned": self.overlap / number,
            },
        ]


class Embeddings:
    """The cosine of the embeddings with and without the plan.

    It also tells how often the nearest other input stays the same. The embedding is the mean of the
    last hidden states over real tokens; for a vision model it is the first token.
    """

    def __init__(self, first_token: bool = False) -> None:
        self.first_token = first_token
        self.found: tuple[list[Tensor], list[Tensor]] = ([], [])

    def add(self, batch: Batch, plain: Any, planned: Any) -> None:
        for kept, output in zip(self.found, (plain, planned)):
            hidden = _hidden(output)
            kept.append(
                F.normalize(self._pooled(hidden, batch.get("attention_mask")).float(), dim=-1).cpu()
            )

    def merge(self, other: Self) -> None:
        for mine, theirs in zip(self.found, other.found):
            mine += theirs

    def _pooled(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        if hidden.ndim < 3:
            return hidden.reshape(len(hidden), -1)
        if self.first_token:
            return hidden[:, 0]
        if mask is None or mask.shape != hidden.shape[:2]:
            return hidden.mean(1)
        weights = mask[..., None].to(hidden)
        return (hidden * weights).sum(1) / weights.sum(1).clamp_min(1)

    def result(self) -> list[dict[str, Any]]:
        plain, planned = (torch.cat(kept) for kept in self.found)  # (N, E)
        cosine = (plain * planned).sum(1)
        rows = [
            {"measure": "cosine of the embeddings", "plain": 1.0, "planned": float(cosine.mean())},
            {"measure": "least cosine", "plain": 1.0, "planned": float(cosine.min())},
        ]
        if len(plain) > 1:
            nearest = [(a @ plain.T).fill_diagonal_(-2).argmax(1) for a in (plain, planned)]
            agreement = float((nearest[0] == nearest[1]).float().mean())
            what = "top-1" if self.first_token else "retrieval"
            rows.append(
                {
                    "measure": f"{what} agreement (nearest other input)",
                    "plain": 1.0,
                    "planned": agreement,
                }
            )
        return rows


def _hidden(output: Any) -> Tensor:
    if isinstance(output, Tensor):
        return output
    found = getattr(output, "last_hidden_state", None)
    return (
        found
        if found is not None
        else next(x for x in (output.values() if isinstance(output, Mapping) else output))
    )

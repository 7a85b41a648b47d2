"""The measures of a model's own task: what its user would notice."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from ..data.inputs import Batch
from ..models.forward import Prefilled
from ..models.load import Model

CHUNK = 1024
"""Tokens whose logits are compared at once."""


class Task(Protocol):
    """Compares the outputs of the unchanged model and of the planned one on each batch.

    `observe` keeps of an output what the comparison needs, one row per input. `add` takes what was
    observed of both models. `fresh` is a task of the same kind that has seen nothing. `result` has
    one row per measure. `merge` adds what another has seen of
    the inputs that follow, and does not change the other. `rises` says how much worse each input
    got: the relative rise of its perplexity, or 1 minus the agreement with the plain model.
    """

    rise: str
    """What rises, in words."""

    def observe(self, batch: Batch, output: Any) -> Any: ...

    def add(self, plain: Any, planned: Any) -> None: ...

    def fresh(self) -> Self: ...

    def merge(self, other: Self) -> None: ...

    def result(self) -> list[dict[str, Any]]: ...

    @property
    def rises(self) -> list[float]: ...


def task_of(model: Model, output: Any) -> Task:
    """The measure of a model: perplexity, agreement of classes, or cosine of embeddings."""
    if isinstance(output, Prefilled):
        return Perplexity()
    if getattr(output, "logits", None) is None:
        return Embeddings(first_token=model.kind == "vision")
    if model.kind in {"decoder", "encoder-decoder"}:
        return Perplexity()
    return Classes()


def _logits(output: Any) -> Iterator[Tensor]:
    """The logits of all tokens but the last, in parts `(B, t, V)`."""
    parts = output.logits(CHUNK) if isinstance(output, Prefilled) else output.logits.split(CHUNK, 1)
    waiting: Tensor | None = None
    for part in parts:
        if waiting is not None:
            yield waiting
        waiting = part
    if waiting is not None and waiting.shape[1] > 1:
        yield waiting[:, :-1]


class Perplexity:
    """The perplexity: `exp` of the mean loss of the next token, without padding."""

    rise = "rise of the perplexity"

    def __init__(self) -> None:
        self.inputs: list[tuple[float, float, int, int]] = []
        """Of each input the summed losses, plain and planned, the tokens, and how many agree."""

    def fresh(self) -> Self:
        return type(self)()

    @staticmethod
    def labels(batch: Batch) -> Tensor:
        """The next tokens `(B, T − 1)`, −100 at padding."""
        ids = batch.get("decoder_input_ids", batch["input_ids"])  # (B, T)
        mask = batch.get(
            "decoder_attention_mask",
            batch.get("attention_mask") if "decoder_input_ids" not in batch else None,
        )
        return ids[:, 1:] if mask is None else ids[:, 1:].masked_fill(mask[:, 1:] == 0, -100)

    def observe(self, batch: Batch, output: Any) -> tuple[Tensor, Tensor, Tensor]:
        """The loss of each input, `(B,)`, its likeliest tokens and which count, `(B, T − 1)`."""
        labels, losses, likeliest, done = self.labels(batch), [], [], 0
        for logits in _logits(output):
            some = labels[:, done : done + logits.shape[1]].to(logits.device)
            done += logits.shape[1]
            each = F.cross_entropy(logits.flatten(0, 1).float(), some.flatten(), reduction="none")
            losses.append(each.double().view(some.shape).sum(1))
            likeliest.append(logits.argmax(-1))
        return torch.stack(losses).sum(0), torch.cat(likeliest, 1), labels != -100

    def add(self, plain: Any, planned: Any) -> None:
        seen = plain[2].to(plain[1].device)
        same = ((plain[1] == planned[1]) & seen).sum(1)
        columns = (plain[0], planned[0], seen.sum(1), same)
        self.inputs = [*self.inputs, *zip(*(column.tolist() for column in columns))]

    def merge(self, other: Self) -> None:
        self.inputs = [*self.inputs, *other.inputs]

    @property
    def rises(self) -> list[float]:
        """The relative rise of each input's perplexity."""
        return [
            math.expm1(min((after - before) / n, 700)) for before, after, n, _ in self.inputs if n
        ]

    def result(self) -> list[dict[str, Any]]:
        *losses, numbers, same = zip(*self.inputs)
        number = max(sum(numbers), 1)
        before, after = (math.exp(min(sum(loss) / number, 700)) for loss in losses)
        return [
            {"measure": "perplexity", "plain": before, "planned": after},
            {
                "measure": "agreement of the likeliest next token",
                "plain": 1.0,
                "planned": sum(same) / number,
            },
        ]


class Classes:
    """How often the likeliest class stays the same, and the overlap `Σ min(p, p̂)`.

    Over inputs or tokens; p and p̂ are the probabilities of the classes. If nearly all inputs get
    one class, the overlap shows a change that the agreement does not.
    """

    rise = "part of the class probabilities that moves"

    def __init__(self) -> None:
        self.inputs: list[tuple[float, float, int]] = []
        """Of each input how often classes agree, the summed overlap, and the tokens."""

    def fresh(self) -> Self:
        return type(self)()

    def observe(self, batch: Batch, output: Any) -> tuple[Tensor, Tensor]:
        """The probabilities `(B, …, C)`, and which tokens count, `(B, T)` or `(B,)`."""
        pattern = output.logits.float().softmax(-1)
        tokens = torch.ones(pattern.shape[:-1], dtype=torch.bool, device=pattern.device)
        if tokens.ndim == 2 and "attention_mask" in batch:
            tokens = batch["attention_mask"].bool()
        return pattern, tokens

    def add(self, plain: Any, planned: Any) -> None:
        tokens = plain[1]
        same = (plain[0].argmax(-1) == planned[0].argmax(-1)) & tokens
        overlap = torch.minimum(plain[0], planned[0]).sum(-1) * tokens
        columns = (x.reshape(len(x), -1).sum(1).tolist() for x in (same, overlap, tokens))
        self.inputs = [*self.inputs, *zip(*columns)]

    def merge(self, other: Self) -> None:
        self.inputs = [*self.inputs, *other.inputs]

    @property
    def rises(self) -> list[float]:
        """1 minus the overlap of each input."""
        return [1 - overlap / n for _, overlap, n in self.inputs if n]

    def result(self) -> list[dict[str, Any]]:
        same, overlap, number = (sum(column) for column in zip(*self.inputs))
        return [
            {"measure": "top-1 agreement", "plain": 1.0, "planned": same / max(number, 1)},
            {
                "measure": "overlap of the class probabilities",
                "plain": 1.0,
                "planned": overlap / max(number, 1),
            },
        ]


class Embeddings:
    """The cosine of the embeddings with and without the plan.

    It also tells how often the nearest other input stays the same. The embedding is the mean of the
    last hidden states over real tokens; for a vision model it is the first token.
    """

    rise = "1 − cosine of the embeddings"

    def __init__(self, first_token: bool = False) -> None:
        self.first_token = first_token
        self.found: tuple[list[Tensor], list[Tensor]] = ([], [])

    def fresh(self) -> Self:
        return type(self)(self.first_token)

    def observe(self, batch: Batch, output: Any) -> Tensor:
        """The embeddings of a batch, of length 1, `(B, E)`."""
        pooled = self._pooled(_hidden(output), batch.get("attention_mask"))
        return F.normalize(pooled.float(), dim=-1)

    def add(self, plain: Any, planned: Any) -> None:
        for kept, embedding in zip(self.found, (plain, planned)):
            kept.append(embedding.cpu())

    def merge(self, other: Self) -> None:
        for mine, theirs in zip(self.found, other.found):
            mine += theirs

    @property
    def rises(self) -> list[float]:
        """1 minus the cosine of each input's embeddings."""
        plain, planned = (torch.cat(kept).double() for kept in self.found)
        return (1 - F.cosine_similarity(plain, planned)).tolist()

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

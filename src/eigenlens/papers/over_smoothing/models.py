"""What is measured of over-smoothing.

These are encoders along depth, and read-outs of all their layers compared with the last alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...data.datasets import reviews
from ...lab import Digits, TrainingSettings, Transformer, train
from ...lab.fusion import FUSIONS, Fusion
from ...models.load import Model, load
from ...run.progress import Progress
from ...stats.geometry import mean_cosine
from ..inputs import token_ids
from .blocks import block_steps

if TYPE_CHECKING:
    from . import Scale

BATCH = 8
READ_OUTS = ("last layer", *FUSIONS)


@torch.no_grad()
def pretrained(name: str, scale: Scale, seed: int) -> list[dict[str, Any]]:
    """Every block of a catalogue model of BERT's family on real text."""
    model = load(name)
    ids = token_ids(model, scale.text, scale.length, scale.inputs, seed)
    steps = block_steps(model, [{"input_ids": some} for some in ids.split(BATCH)])
    return [{"model": name, "state": "pretrained", "seed": seed, **step.row()} for step in steps]


def encoder(scale: Scale, fusion: str | None, seed: int) -> Transformer:
    """A post-norm ReLU encoder of digits at its random start."""
    torch.manual_seed(seed)
    shape = {"layers": scale.layers, "width": scale.width, "heads": 4}
    config = Digits(scale.tokens).config(
        norm_position="post", activation="relu", fusion=fusion, **shape
    )
    return Transformer(config)


def digits_run(read_out: str, scale: Scale, seed: int, progress: Progress) -> dict[str, Any]:
    """A lab encoder trained on digits with one read-out: accuracy, token similarity, blocks."""
    task = Digits(scale.tokens)
    model = encoder(scale, None if read_out == "last layer" else read_out, seed)
    plain = read_out == "last layer"
    steps = _lab_steps(model, task, "random start", seed) if plain else []
    settings = TrainingSettings(scale.steps, batch=32, rate=1e-3, measure=scale.steps, seed=seed)
    done = train(
        model,
        task,
        settings,
        progress=progress,
        label=f"learning digits by the read-out {read_out}",
    )
    steps += _lab_steps(model, task, "trained", seed) if plain else []
    with torch.no_grad():
        read = _read_stream(model, next(iter(task.held_out())).inputs)
    row = {
        "model": "digits",
        "read-out": read_out,
        "seed": seed,
        "accuracy": done.accuracy,
        "loss": done.loss,
    }
    return {"row": {**row, "similarity": float(mean_cosine(read).mean())}, "steps": steps}


def _lab_steps(model: Transformer, task: Digits, state: str, seed: int) -> list[dict[str, Any]]:
    inputs = next(iter(task.held_out())).inputs[:32]
    return [
        {"model": "digits", "state": state, "seed": seed, **step.row()}
        for step in block_steps(model, [{"inputs": inputs}])
    ]


def _read_stream(model: Transformer, inputs: Tensor) -> Tensor:
    """What is read out, (B, T, C): the stream behind the last block, or the fusion of all."""
    kept: list[Tensor] = []
    hook = model.norm.register_forward_pre_hook(lambda _, given: kept.append(given[0]))
    try:
        model(inputs)
    finally:
        hook.remove()
    return kept[0]


class Reader(nn.Module):
    """A read-out of a frozen encoder: fused or last states, mean over tokens, one linear map."""

    def __init__(self, read_out: str, layers: int, width: int, classes: int = 2) -> None:
        super().__init__()
        self.fusion = None if read_out == "last layer" else Fusion(read_out, layers, width)
        self.out = nn.Linear(width, classes)

    def fused(self, states: Tensor) -> Tensor:
        """(B, L, T, C) → (B, T, C)."""
        return states[:, -1] if self.fusion is None else self.fusion(list(states.unbind(1)))

    def forward(self, states: Tensor, tokens: Tensor) -> Tensor:
        # padding counts nothing in the mean
        x, weight = self.fused(states), tokens[..., None].to(states.dtype)
        return self.out((x * weight).sum(1) / weight.sum(1))


@lru_cache(maxsize=1)
def states_of(name: str, number: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """States (N, L, T, C), tokens (N, T) and labels (N,) of clearly positive or negative reviews.

    The states are those behind every block, those of each layer over their standard deviation, so
    that no layer is a larger vote than another.
    """
    model = load(name)
    texts, labels = clear_reviews(number)
    states, masks = [], []
    for start in range(0, len(texts), 50):
        found, mask = _encoded(model, texts[start : start + 50], length)
        states.append(found)
        masks.append(mask)
    whole = torch.cat(states)
    return whole.div_(whole.std((0, 2, 3), keepdim=True)), torch.cat(masks), labels


def clear_reviews(number: int) -> tuple[list[str], Tensor]:
    """Texts and labels (N,): 1 for a rating of 1 or more, 0 for one of −1 or less."""
    chosen = list(islice((r for r in _spread(list(reviews())) if abs(r.score) >= 1), number))
    return [r.text for r in chosen], torch.tensor([int(r.score > 0) for r in chosen])


def quarters(number: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The places of three quarters to learn from, and of the quarter that is asked for."""
    order = torch.randperm(number, generator=generator)
    cut = 3 * number // 4
    return order[:cut], order[cut:]


def _spread(found: list[Any]) -> list[Any]:
    """The snippets in another order, always the same: they come sorted by kind and film."""
    order = torch.randperm(len(found), generator=torch.Generator().manual_seed(0))
    return [found[i] for i in order.tolist()]


@torch.no_grad()
def _encoded(model: Model, texts: Sequence[str], length: int) -> tuple[Tensor, Tensor]:
    batch = model.tokenizer(
        list(texts), return_tensors="pt", truncation=True, max_length=length, padding="max_length"
    )
    ids, mask = batch["input_ids"], batch["attention_mask"]
    hidden = model.backbone(
        input_ids=ids, attention_mask=mask, output_hidden_states=True
    ).hidden_states
    return torch.stack(hidden[1:], 1), mask.bool()  # (B, L, T, C), without the embedding


def reviews_run(read_out: str, scale: Scale, seed: int, progress: Progress) -> dict[str, Any]:
    """Sentiment of reviews from a frozen encoder's states.

    Accuracy is measured on the quarter that was not learned from.
    """
    states, tokens, labels = states_of(scale.models[0], scale.reviews, 32)
    generator = torch.Generator().manual_seed(seed)
    learned, asked = quarters(len(labels), generator)
    torch.manual_seed(seed)
    reader = Reader(read_out, states.shape[1], states.shape[3])
    optimiser = torch.optim.AdamW(reader.parameters(), lr=3e-3, weight_decay=1e-2)
    for epoch in range(scale.epochs):
        for rows in learned[torch.randperm(len(learned), generator=generator)].split(64):
            loss = F.cross_entropy(reader(states[rows], tokens[rows]), labels[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        progress(f"learning reviews by the read-out {read_out}", epoch + 1, scale.epochs)
    with torch.no_grad():
        logits = torch.cat([reader(states[rows], tokens[rows]) for rows in asked.split(64)])
        alike = torch.cat(
            [mean_cosine(reader.fused(states[rows]), tokens[rows]) for rows in asked.split(64)]
        )
    right, loss = logits.argmax(1) == labels[asked], F.cross_entropy(logits, labels[asked])
    row = {
        "model": f"{scale.models[0]} frozen",
        "read-out": read_out,
        "seed": seed,
        "accuracy": float(right.double().mean()),
    }
    return {**row, "loss": float(loss), "similarity": float(alike.mean())}

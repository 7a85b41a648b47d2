"""A whole encoder with the outlier of its attention removed.

It is measured trained, and at random starts of the same config.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from ...captures import capture
from ...models.load import load
from ...plans import use_attention
from ...stats.geometry import mean_cosine, relative_residual
from ..inputs import token_ids
from .models import stable_rank

BATCH = 16
ATTENTIONS = ("softmax", "spectral-gap-removal")


@torch.no_grad()
def encoder_rows(
    name: str, text: str, length: int, inputs: int, starts: int, seed: int
) -> dict[str, list[dict[str, Any]]]:
    """Rank, residual and cosine of the tokens along depth, and what becomes of the embeddings.

    Embeddings are means over the tokens of the last layer.
    """
    trained = load(name)
    ids = token_ids(trained, text, length, inputs, seed)
    models: list[tuple[str, int | None, Any]] = [("trained", None, trained.backbone)]
    for start in range(starts):
        torch.manual_seed(seed + start)
        models.append(
            (
                "random start",
                start,
                type(trained.backbone)(copy.deepcopy(trained.config)).eval(),
            )
        )
    rows, embeddings = [], []
    for weights, number, model in models:
        found = {}
        for attention in ATTENTIONS:
            with use_attention(model, attention):  # softmax is what it has
                streams = [_streams(model, batch) for batch in ids.split(BATCH)]
            for depth in range(len(streams[0])):
                X = torch.cat([stream[depth] for stream in streams])  # (N, T, C)
                rows.append(
                    {
                        "weights": weights,
                        "start": number,
                        "attention": attention,
                        "depth": depth,
                        "inputs": len(X),
                        "stable rank": sum(stable_rank(tokens.double()) for tokens in X) / len(X),
                        "residual": float(relative_residual(X).mean()),
                        "cosine": float(mean_cosine(X).mean()),
                    }
                )
            found[attention] = torch.nn.functional.normalize(
                torch.cat([stream[-1] for stream in streams]).mean(1), dim=1
            )
        row = {"weights": weights, "start": number, "left of patterns": _left(model, ids[:BATCH])}
        embeddings.append({**row, **_moved(found["softmax"], found["spectral-gap-removal"])})
    return {"encoder": rows, "embeddings": embeddings}


def _streams(model: Any, ids: Tensor) -> tuple[Tensor, ...]:
    """What goes into the first block and comes out of every one, each (B, T, C)."""
    streams: tuple[Tensor, ...] = model(input_ids=ids, output_hidden_states=True).hidden_states
    return streams


def _left(model: Any, ids: Tensor) -> float:
    """What the remedy leaves of the patterns: mean `‖A − 11ᵀ/T‖² / ‖A‖²` over heads and inputs."""
    shares = []
    with capture(model) as calls:
        model(input_ids=ids)
    for call in calls:
        A = call.pattern()  # (B, H, T, T)
        shares.append((A - 1 / A.shape[3]).square().sum((2, 3)) / A.square().sum((2, 3)))
    return float(torch.stack(shares).mean())


def _moved(own: Tensor, other: Tensor) -> dict[str, Any]:
    """How far unit embeddings (N, C) move.

    Returns their cosine with themselves, the cosine between texts, and how often the nearest text
    stays.
    """
    apart = ~torch.eye(len(own), dtype=torch.bool)
    own_pairs, other_pairs = own @ own.T, other @ other.T
    nearest = [pairs.masked_fill(~apart, -2.0).argmax(1) for pairs in (own_pairs, other_pairs)]
    return {
        "cosine with its own": float((own * other).sum(1).mean()),
        "between texts, softmax": float(own_pairs[apart].mean()),
        "between texts, spectral-gap-removal": float(other_pairs[apart].mean()),
        "nearest text stays": float((nearest[0] == nearest[1]).double().mean()),
    }

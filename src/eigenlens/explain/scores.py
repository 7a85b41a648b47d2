"""Scores (B,) of what a model gave: log-probability of a token, log-odds of a class, cosine, squared norm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..errors import EigenlensError

Score = Callable[[Any, Mapping[str, Tensor]], Tensor]
"""(what the model's forward gave, the batch) → (B,)."""


def logits_of(output: Any, plain: bool = False) -> Tensor | None:
    """The logits (B, K) or (B, T, K) of a model's output; a `plain` module's tensor is taken for them; else None."""
    found = getattr(output, "logits", None)
    if found is None and plain and isinstance(output, Tensor):
        found = output
    return found if isinstance(found, Tensor) and found.ndim in (2, 3) else None


def hidden_of(output: Any) -> Tensor:
    """The last hidden states, or the first tensor of an output."""
    if isinstance(output, Tensor):
        return output
    found = getattr(output, "last_hidden_state", None)
    if found is None and isinstance(output, Mapping | tuple | list):
        values = output.values() if isinstance(output, Mapping) else output
        found = next((x for x in values if isinstance(x, Tensor)), None)
    if not isinstance(found, Tensor):
        raise EigenlensError(f"the model gave no tensor that could be explained, but {type(output).__name__}")
    return found


def pooled(output: Any, batch: Mapping[str, Tensor], first: bool = False) -> Tensor:
    """The embedding (B, C): the mean over tokens that are no padding, or the `first` token."""
    hidden = hidden_of(output)
    if hidden.ndim < 3:
        return hidden.reshape(len(hidden), -1)
    if first:
        return hidden[:, 0]
    mask = batch.get("attention_mask")
    if mask is None or mask.shape != hidden.shape[:2]:
        return hidden.flatten(1, -2).mean(1)
    weights = mask[..., None].to(hidden)
    return (hidden * weights).sum(1) / weights.sum(1).clamp_min(1)


def last_token(batch: Mapping[str, Tensor], logits: Tensor) -> Tensor:
    """The position of the last token that is no padding, (B,), on the side that the logits (B, T, V) belong to."""
    B, T = logits.shape[:2]
    mask = batch.get("decoder_attention_mask" if "decoder_input_ids" in batch else "attention_mask")
    if mask is None or mask.shape != (B, T):
        return torch.full((B,), T - 1, device=logits.device)
    places = torch.arange(T, device=logits.device)
    return (places * mask.bool()).argmax(1)


def token_score(chosen: Tensor) -> Score:
    """`log p` of the tokens `chosen` (B,) at the last token."""

    def score(output: Any, batch: Mapping[str, Tensor]) -> Tensor:
        logits = logits_of(output)
        assert logits is not None
        rows = torch.arange(len(logits), device=logits.device)
        return logits[rows, last_token(batch, logits)].log_softmax(-1)[rows, chosen]

    return score


def class_score(chosen: Tensor, position: Tensor | None = None) -> Score:
    """`log p/(1 − p) = z_c − log Σ_{k≠c} exp z_k` of the classes `chosen` (B,), of the token at `position` (B,) if given.

    With one class alone it is the logit z.
    """

    def score(output: Any, batch: Mapping[str, Tensor]) -> Tensor:
        z = logits_of(output, plain=True)
        assert z is not None
        rows = torch.arange(len(z), device=z.device)
        z = z if position is None else z[rows, position]  # (B, K)
        own = z[rows, chosen]
        if z.shape[1] == 1:
            return own
        return own - z.scatter(1, chosen[:, None], -torch.inf).logsumexp(1)

    return score


def similarity_score(other: Tensor, first: bool = False) -> Score:
    """The cosine of the embedding with the fixed one in `other` (B, C)."""

    def score(output: Any, batch: Mapping[str, Tensor]) -> Tensor:
        return F.cosine_similarity(pooled(output, batch, first), other.to(hidden_of(output)), dim=-1)

    return score


def output_score(first: bool = False) -> Score:
    """The squared norm of the embedding."""

    def score(output: Any, batch: Mapping[str, Tensor]) -> Tensor:
        return pooled(output, batch, first).square().sum(-1)

    return score

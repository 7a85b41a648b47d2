"""Scores (B,) of a model's output.

They are the log-probability of a token, the log-odds of a class, a cosine, or a squared norm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..errors import EigenlensError, first_line
from ..models.forward import forward_of
from ..models.load import Model

Score = Callable[[Any, Mapping[str, Tensor]], Tensor]
"""A score: (output of the model, batch) → (B,)."""
FAILS = (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError, AssertionError)
"""Errors of a model's own code for inputs that it does not take."""
OTHER_HEADS = ("ForPreTraining", "ForMultipleChoice")
"""Heads whose logits (B, n) are not classes of the input."""


def run_model(model: Model, batch: Mapping[str, Tensor]) -> Any:
    """Run the whole model on a batch; an error of its code becomes one sentence."""
    try:
        return forward_of(model, with_head=True)(batch)
    except FAILS as error:
        raise EigenlensError(
            f"{model.name} cannot be run on this input: {first_line(error)}"
        ) from error


def logits_of(output: Any, plain: bool = False) -> Tensor | None:
    """The logits (B, K) or (B, T, K) of a model's output, or None.

    For a `plain` module, its tensor is taken as the logits.
    """
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
        raise EigenlensError(
            f"the model must return a tensor to be explained, not {type(output).__name__}"
        )
    return found


def head_logits(model: Model, batch: Mapping[str, Tensor], output: Any) -> Tensor | None:
    """The logits of a head over classes (B, K), tokens' labels (B, T, K) or a vocabulary (B, T, V).

    None without a head. A head of another kind is an error, as its output could be mistaken for
    these.
    """
    logits = logits_of(output, model.kind == "module")
    if model.kind == "module":
        return logits
    given = [name for name in (output if isinstance(output, Mapping) else ()) if "logit" in name]
    if not given and logits is None:
        return None
    head, fits = type(model.module).__name__, False
    if logits is not None and logits.ndim == 2:
        fits = logits.shape[1] == getattr(model.config, "num_labels", None) and not head.endswith(
            OTHER_HEADS
        )
    elif logits is not None:
        tokens = batch.get("decoder_input_ids", batch.get("input_ids"))
        fits = model.kind != "vision" and (tokens is None or tokens.shape[1] == logits.shape[1])
    if not fits:
        raise EigenlensError(
            f"{model.name} has a head that is not understood ({head} gives"
            f" {', '.join(given) or 'logits'}); give a model with a head over classes, labels of"
            " tokens or a vocabulary, or the model without its head"
        )
    return logits


def class_token(model: Model, batch: Mapping[str, Tensor], hidden: Tensor) -> bool:
    """Whether the first token (B, T, C) is the embedding of a picture.

    It is if there are more tokens than patches.
    """
    pixels = batch.get("pixel_values")
    if model.kind != "vision" or pixels is None or hidden.ndim != 3:
        return False
    patch = getattr(model.config, "patch_size", 16)
    sides = patch if isinstance(patch, tuple | list) else (patch, patch)
    h, w = (size // side for size, side in zip(pixels.shape[-2:], sides))
    return hidden.shape[1] > h * w


def pool_tokens(output: Any, batch: Mapping[str, Tensor], first: bool = False) -> Tensor:
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
    """The position of the last token that is no padding, (B,).

    It is a position in the stream that the logits (B, T, V) belong to.
    """
    B, T = logits.shape[:2]
    mask = batch.get("decoder_attention_mask" if "decoder_input_ids" in batch else "attention_mask")
    if mask is None or mask.shape != (B, T):
        return torch.full((B,), T - 1, device=logits.device)
    places = torch.arange(T, device=logits.device)
    return (places * mask.bool()).argmax(1)


def token_score(chosen: Tensor) -> Score:
    """The score `log p` of the tokens `chosen` (B,), at the last token."""

    def score(output: Any, batch: Mapping[str, Tensor]) -> Tensor:
        logits = logits_of(output)
        assert logits is not None
        rows = torch.arange(len(logits), device=logits.device)
        return logits[rows, last_token(batch, logits)].log_softmax(-1)[rows, chosen]

    return score


def class_score(chosen: Tensor, position: Tensor | None = None, alone: bool = False) -> Score:
    """The log-odds `log p/(1 − p) = z_c − log Σ_{k≠c} exp z_k` of the classes `chosen` (B,).

    They are of the token at `position` (B,), if given. With one class, or if classes are decided
    `alone` (several may hold, `p = sigmoid(z)`), they are the logit z_c.
    """

    def score(output: Any, batch: Mapping[str, Tensor]) -> Tensor:
        z = logits_of(output, plain=True)
        assert z is not None
        rows = torch.arange(len(z), device=z.device)
        z = z if position is None else z[rows, position]  # (B, K)
        own = z[rows, chosen]
        if alone or z.shape[1] == 1:
            return own
        return own - z.scatter(1, chosen[:, None], -torch.inf).logsumexp(1)

    return score


def similarity_score(other: Tensor, first: bool = False) -> Score:
    """The score: the cosine of the embedding with the fixed one in `other` (B, C)."""

    def score(output: Any, batch: Mapping[str, Tensor]) -> Tensor:
        return F.cosine_similarity(
            pool_tokens(output, batch, first), other.to(hidden_of(output)), dim=-1
        )

    return score


def output_score(first: bool = False) -> Score:
    """The score: the squared norm of the embedding."""

    def score(output: Any, batch: Mapping[str, Tensor]) -> Tensor:
        return pool_tokens(output, batch, first).square().sum(-1)

    return score

"""Relevance of tokens through all attentions of a model: self-, cross- and co-attention.

R^sq (B, T_s, T_q) says how much of what is now at token i of stream s comes from token j of stream
q at the start. With `Ā = mean_h((∇A ⊙ A)⁺)` of each attention in turn, from R^ss = I and R^sq = 0:

    self    R^sq += Ā R^sq                      for every q, also s
    cross   R^sq += (R̄^ss)ᵀ Ā R̄^qq,            R^sp += Ā R^qp for every other p, also s
            R̄ = R̂ / rowsum(R̂) + I, R̂ = R − I

Where two streams attend to each other in one layer, both directions are computed from the old R and
then added.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .observed import Observed
from .steps import Step, read_weights, source_name, steps_of, stream_sizes

Maps = dict[tuple[str, str], Tensor]
"""R by streams (s, q), (B, T_s, T_q); a missing pair is 0."""


def mean_positive(weights: Tensor, gradient: Tensor) -> Tensor:
    """The mean over heads `Ā = mean_h((∇A ⊙ A)⁺)`, (B, H, T, S) → (B, T, S)."""
    return (weights * gradient).clamp_min(0).mean(1)


def self_update(R: Maps, s: str, A: Tensor) -> Maps:
    """What a self-attention of stream s with Ā (B, T, T) adds."""
    return {(s, q): A @ relevant for (p, q), relevant in R.items() if p == s}


def cross_update(R: Maps, s: str, q: str, A: Tensor) -> Maps:
    """What a cross-attention Ā (B, T_s, T_q) adds.

    Its queries are tokens of s, its keys those of q.
    """
    added = {(s, p): A @ relevant for (own, p), relevant in R.items() if own == q and p != q}
    return {**added, (s, q): normalised(R[s, s]).transpose(1, 2) @ A @ normalised(R[q, q])}


def normalised(R: Tensor) -> Tensor:
    """The normalised `R̄ = R̂ / rowsum(R̂) + I` with `R̂ = R − I`, (B, T, T).

    A row of R̂ that is 0 becomes a row of I.
    """
    hat = without_start(R)
    mass = hat.sum(-1, keepdim=True)
    share = torch.where(mass > 0, hat / torch.where(mass > 0, mass, 1), 0)
    return share + torch.eye(R.shape[-1], dtype=R.dtype, device=R.device)


def propagate(steps: Sequence[Step]) -> Maps:
    """R of all pairs of streams after the attentions `steps`, in the order in which they run."""
    R: Maps = {}
    for name, T in stream_sizes(steps).items():
        like = steps[0].weights
        R[name, name] = torch.eye(T, dtype=like.dtype, device=like.device).expand(len(like), T, T)
    waiting = list(steps)
    while waiting:
        layer = [waiting.pop(0)]
        if waiting and _turned(layer[0], waiting[0]):
            layer.append(waiting.pop(0))
        added = [_update(R, step) for step in layer]  # both directions from the old R
        for update in added:
            for pair, more in update.items():
                R[pair] = R[pair] + more if pair in R else more
    return R


def _update(R: Maps, step: Step) -> Maps:
    A = mean_positive(step.weights, step.gradient)
    return (
        self_update(R, step.queries, A)
        if step.is_self
        else cross_update(R, step.queries, step.keys, A)
    )


def _turned(one: Step, other: Step) -> bool:
    """Whether two attentions are the two directions of one co-attention layer."""
    return not one.is_self and (one.queries, one.keys) == (other.keys, other.queries)


def relevance_by_stream(observed: Observed, start: bool = True) -> dict[str, Tensor]:
    """The relevance (B, T_q) of the tokens of every stream q: `Σ_s Σ_i w_si R^sq_ij`.

    w is how much the target reads each token. A target that reads one token, such as the last one
    of a decoder or a class token, has the row of this token. Without the `start` it is `R − I` in
    place of R: only what attention adds. The I gives a token the weight with which it is read
    itself, which is far larger than the rest, as that has the size of gradients.
    """
    steps = steps_of(observed)
    R, reads = propagate(steps), read_weights(observed, steps)
    found: dict[str, Tensor] = {}
    for (s, q), relevant in R.items():
        if s in reads:
            row = (reads[s][:, None] @ (relevant if start or s != q else without_start(relevant)))[
                :, 0
            ]
            found[q] = found[q] + row if q in found else row
    for q, scores in found.items():
        stream = observed.stream(q)
        found[q] = scores if stream is None else scores * stream.valid
    return found


def relevance(observed: Observed, start: bool = True) -> Tensor:
    """The relevance of the source tokens, (B, T).

    These are the tokens of the encoder of an encoder-decoder, or of the only stream. The decoder's
    own part, and the second stream of a model with two, are in `relevance_by_stream`.
    """
    return relevance_by_stream(observed, start)[source_name(steps_of(observed))]


def without_start(R: Tensor) -> Tensor:
    """What attention adds: `R̂ = R − I`, (B, T, T)."""
    return R - torch.eye(R.shape[-1], dtype=R.dtype, device=R.device)

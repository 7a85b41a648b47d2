"""Simpler methods to compare with: attention, rollout, gradients, and random scores.

Each gives the source tokens a score, (B, T). `w_i` is what the target reads of output token i
(`Observed.reads`). In an encoder-decoder the last attention is the last cross-attention, whose keys
are the source tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .observed import Observed
from .propagation import mean_positive
from .steps import (
    Step,
    read_streams,
    read_weights,
    source_name,
    source_stream,
    steps_of,
    stream_sizes,
)


def attention(observed: Observed) -> Tensor:
    """Scores by the last attention: `Σ_i w_i mean_h A_hij`."""
    step, w = _last(observed)
    return _masked(observed, _row(w, step.weights.mean(1)))


def attention_gradient(observed: Observed) -> Tensor:
    """Scores by the last attention and its gradient: `Σ_i w_i mean_h (∇A ⊙ A)⁺_hij`."""
    step, w = _last(observed)
    return _masked(observed, _row(w, mean_positive(step.weights, step.gradient)))


def grad_cam(observed: Observed) -> Tensor:
    """Scores `(mean_h g_h Σ_i w_i A_hij)⁺` of the last attention, `g_h = mean_j Σ_i w_i ∇A_hij`."""
    step, w = _last(observed)
    rows = torch.einsum("bi,bhij->bhj", w, step.weights)
    slopes = torch.einsum("bi,bhij->bhj", w, step.gradient)
    seen = _seen(observed, slopes)  # (B, S)
    # (B, H, 1)
    gain = (slopes * seen[:, None]).sum(-1, keepdim=True) / seen.sum(-1)[:, None, None].clamp_min(1)
    return _masked(observed, (gain * rows).mean(1).clamp_min(0))


def rollout(observed: Observed) -> Tensor:
    """Scores by attention rollout: `Σ_i w_i (Π_l (½ A_l + ½ I))_ij`, heads averaged.

    A cross-attention mixes in half of the source's rollout.
    """
    steps = steps_of(observed)
    reads, length = read_weights(observed, steps), stream_sizes(steps)
    like = steps[0].weights
    F = {
        (name, name): torch.eye(T, dtype=like.dtype, device=like.device).expand(len(like), T, T)
        for name, T in length.items()
    }
    for step in steps:
        A, s, q = step.weights.mean(1), step.queries, step.keys
        mixed = {p: A @ F[q, p] for p in length if (q, p) in F}
        F |= {(s, p): (F[s, p] + mixed[p] if (s, p) in F else mixed[p]) / 2 for p in mixed}
        F |= {(s, p): F[s, p] / 2 for p in length if (s, p) in F and p not in mixed}
    source = source_name(steps)
    rows = [_row(reads[s], F[s, source]) for s in reads if (s, source) in F]
    return _masked(observed, torch.stack(rows).sum(0))


def gradient_input(observed: Observed) -> Tensor:
    """Signed scores by gradient × input: `Σ_c x_jc ∂score/∂x_jc`, where the source begins."""
    stream = source_stream(observed)
    return (stream.inputs * stream.gradient).sum(-1) * stream.valid


def random_scores(observed: Observed, seed: int = 0) -> Tensor:
    """Uniform random scores as a control, the same in every run with the same seed.

    Each input draws only for its own tokens.
    """
    seen = _seen(observed, observed.score)  # (B, S)
    scores = torch.zeros(seen.shape, dtype=seen.dtype)
    for row, real in zip(scores, seen.bool().cpu()):
        row[real] = torch.rand(
            int(real.sum()), generator=torch.Generator().manual_seed(seed), dtype=seen.dtype
        )
    return scores.to(seen.device)


def _last(observed: Observed) -> tuple[Step, Tensor]:
    """The last attention that reads the source, and the weights w (B, T) of its queries."""
    steps = steps_of(observed)
    source, weights = source_name(steps), read_weights(observed, steps)
    step = next(
        step
        for step in reversed(steps)
        if step.keys == source and step.queries in read_streams(steps)
    )
    w = weights[step.queries]
    return step, w / w.sum(1, keepdim=True).clamp_min(torch.finfo(w.dtype).tiny)


def _row(w: Tensor, A: Tensor) -> Tensor:
    """The weighted sum `Σ_i w_i A_ij`: (B, T), (B, T, S) → (B, S)."""
    return (w[:, None] @ A)[:, 0]


def _seen(observed: Observed, like: Tensor) -> Tensor:
    """Which source tokens are no padding, (B, S)."""
    steps = steps_of(observed)
    name = source_name(steps)
    stream = observed.streams[0] if len(stream_sizes(steps)) == 1 else observed.stream(name)
    return (
        like.new_ones(len(like), stream_sizes(steps)[name])
        if stream is None
        else stream.valid.to(like)
    )


def _masked(observed: Observed, scores: Tensor) -> Tensor:
    return scores * _seen(observed, scores)

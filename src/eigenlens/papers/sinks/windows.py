"""A window of keys with and without the first ones, as StreamingLLM keeps them (arXiv 2309.17453).

StreamingLLM counts positions within its cache: of w keys the newest has position w − 1 and the
first ones keep theirs, so that a first key is never farther than w. That is measured beside
positions that stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from ...attention.window import Window, WindowSettings
from ...captures import AttentionCall, replace_attention
from ...models.forward import forward_of
from ...models.load import Model
from ..inputs import token_ids
from ..samples import sample_ids

FIRST = 4
"""Tokens that StreamingLLM keeps."""
OWN = "sampled by the model"
ALL, KEPT, CACHE, ALONE = (
    "all keys",
    "first and latest",
    "first and latest, positions of the cache",
    "latest alone",
)
Attend = Callable[[AttentionCall], Tensor]


@torch.no_grad()
def window_rows(
    model: Model, text: str, length: int, inputs: int, window: int, seed: int
) -> list[dict[str, Any]]:
    """Loss of the next token with all keys and with `window` keys, on `text` and on its own.

    With a window, either 4 of its keys are the first ones, or all of them are the latest. Counted
    are targets whose query sees less than all, those from `window` on; one row per way and input.
    """
    texts = {
        text: token_ids(model, text, length, inputs, seed),
        OWN: sample_ids(model, inputs, length, seed),
    }
    rows = []
    for kind, ids in texts.items():
        for way, attend in ways(model, window).items():
            for at, one in enumerate(ids[:, None]):
                loss = next_losses(model, one, attend)[window:]
                row = {"model": model.name, "text": kind, "keys": way, "window": window}
                rows.append({**row, "tokens": length, "input": at, "loss": float(loss.mean())})
    return rows


def ways(model: Model, window: int) -> dict[str, Attend | None]:
    """What attends in each way; positions of the cache need rotary positions."""

    def by(mechanism: Window) -> Attend:
        return lambda call: mechanism(call.q, call.keys, call.values, causal=True, scale=call.scale)

    rates = getattr(getattr(model.backbone, "rotary_emb", None), "inv_freq", None)
    cached: dict[str, Attend | None] = (
        {} if rates is None else {CACHE: lambda call: attend_as_cached(call, window, rates)}
    )
    return {
        ALL: None,
        KEPT: by(Window(WindowSettings(window - FIRST, FIRST))),
        **cached,
        ALONE: by(Window(WindowSettings(window, 0))),
    }


def attend_as_cached(call: AttentionCall, window: int, rates: Tensor) -> Tensor:
    """Attention of each query to the first 4 and the latest keys, `window` in all, as in a cache.

    Query i stands at position `min(i, window − 1)` for the first keys: its own rotation is turned
    back by the rest, at the rates (E/2,) of the model. Distances to the latest keys are the same.
    """
    q, k, v = call.q, call.keys, call.values
    at = torch.arange(q.shape[2], device=q.device)
    back = (at - (window - 1)).clamp_min(0)
    scores = q @ k.transpose(2, 3)  # (B, H, T, T)
    scores[..., :FIRST] = turned_back(q, back, rates) @ k[:, :, :FIRST].transpose(2, 3)
    before = at[:, None] - at  # (T, T): i − j
    seen = (before >= 0) & ((before < window - FIRST) | (at < FIRST))
    return (call.scale * scores).masked_fill(~seen, -torch.inf).softmax(3) @ v


def turned_back(q: Tensor, back: Tensor, rates: Tensor) -> Tensor:
    """Rotated queries (B, H, T, E) as they were `back` (T,) positions earlier."""
    angle = back[:, None] * rates.to(q)  # (T, E/2)
    cos, sin = angle.cos(), angle.sin()
    a, b = q.chunk(2, 3)
    return torch.cat([a * cos + b * sin, b * cos - a * sin], 3)


def next_losses(model: Model, ids: Tensor, attend: Attend | None) -> Tensor:
    """Nats of every next token of ids (1, T), (T − 1,): entry i is that of query i."""
    with replace_attention(model.module, attend) if attend is not None else ExitStack():
        logits = forward_of(model, with_head=True)({"input_ids": ids}).logits[0, :-1]
    return torch.nn.functional.cross_entropy(logits.float(), ids[0, 1:], reduction="none")


def window_means(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row per model, text and way: the mean loss, and its exponential, the perplexity."""
    places = dict.fromkeys((row["model"], row["text"], row["keys"]) for row in rows)
    made = []
    for place in places:
        own = [r["loss"] for r in rows if (r["model"], r["text"], r["keys"]) == place]
        loss = mean(own)
        names = dict(zip(("model", "text", "keys"), place))
        perplexity = torch.tensor(loss, dtype=torch.float64).exp().item()
        made.append({**names, "texts": len(own), "loss": loss, "perplexity": perplexity})
    return made

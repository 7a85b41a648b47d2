"""Pretrained models with the rank of their heads cut: what they keep of their output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...anatomy.truncation import query_weights, truncated
from ...models.load import Model, load
from ...run.progress import Progress
from ..inputs import make_batches

if TYPE_CHECKING:
    from . import Scale


@torch.no_grad()
def cut_model(
    name: str, scale: Scale, seed: int, progress: Progress
) -> dict[str, list[dict[str, Any]]]:
    """Quality of a loaded model with all heads, or one head at a time, cut to a rank."""
    model = load(name)
    batches = make_batches(model, scale.text, scale.length, scale.inputs, seed)
    attentions = query_weights(model.module)
    width = attentions[0].weight.shape[1]
    own = outputs(model, batches)
    cut = []
    for done, rank in enumerate(
        ranks := sorted({min(rank, width) for rank in scale.ranks} | {width})
    ):
        progress(f"lowering the rank of all heads of {name}", done, len(ranks))
        with truncated(model.module, rank):
            cut.append(
                {
                    "model": name,
                    "rank": rank,
                    "share": rank / width,
                    **quality(model, own, outputs(model, batches), batches),
                }
            )
    heads = [(at, head) for at, queries in enumerate(attentions) for head in range(queries.heads)]
    alone = []
    some = batches[: max(1, len(batches) // 4)]
    own = outputs(model, some)
    for done, (at, head) in enumerate(heads):
        progress(f"lowering the rank of one head of {name} at a time", done, len(heads))
        for rank in scale.alone:
            with truncated(model.module, rank, [(at, head)]):
                found = quality(model, own, outputs(model, some), some)
            alone.append({"model": name, "layer": at, "head": head, "rank": rank, **found})
    return {"all heads": cut, "one head": alone}


def outputs(model: Model, batches: Sequence[Any]) -> list[Tensor]:
    """Embeddings (B, C) of an encoder (means over its tokens), or logits of a decoder.

    Logits are (B, T, vocabulary).
    """
    if model.kind == "decoder":
        return [model.module(**batch).logits for batch in batches]
    # windows of one length: no padding
    return [model.backbone(**batch).last_hidden_state.mean(1) for batch in batches]


def quality(
    model: Model, own: Sequence[Tensor], cut: Sequence[Tensor], batches: Sequence[Any]
) -> dict[str, float]:
    """`kept`: mean cosine of embeddings, or share of likeliest next tokens, that stay.

    Decoders have their `loss` too, in nats.
    """
    if model.kind != "decoder":
        near = torch.cat([F.cosine_similarity(a, b, dim=1) for a, b in zip(own, cut)])
        return {"kept": float(near.mean())}
    same = torch.cat([(a.argmax(2) == b.argmax(2)).flatten() for a, b in zip(own, cut)])
    losses = [
        F.cross_entropy(logits[:, :-1].flatten(0, 1), batch["input_ids"][:, 1:].flatten())
        for logits, batch in zip(cut, batches)
    ]
    return {"kept": float(same.double().mean()), "loss": float(torch.stack(losses).mean())}

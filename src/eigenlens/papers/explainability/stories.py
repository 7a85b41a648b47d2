"""Texts for a small language model: stories that it tells itself.

They are cut where it is sure of the next token.
"""

from __future__ import annotations

from typing import Any

import torch

from ...errors import EigenlensError
from ...models.load import Model
from ..samples import sample_ids
from .labelled import Labelled

SURE = 0.5
"""The probability from which there is a prediction to explain."""


@torch.no_grad()
def own_stories(model: Model, number: int, length: int, seed: int) -> Labelled:
    """`number` stories of `length` tokens that the model samples from its start token.

    Their labels are the likeliest next tokens.

    Of four times as many it keeps the first whose next token has a probability of at least `SURE`.
    The start token stays, and so does the last token, at which the model is asked what comes next.
    """
    module: Any = model.module
    ids = sample_ids(model, 4 * number, length, seed)
    last = torch.cat(
        [module(input_ids=part, use_cache=False).logits[:, -1] for part in ids.split(32)]
    ).softmax(-1)
    sure = (last.amax(1) >= SURE).nonzero()[:number, 0]
    if len(sure) < number:
        raise EigenlensError(
            f"{model.name} was sure of the next token of {len(sure)} of {len(ids)} stories, not of"
            f" {number}"
        )
    keep = torch.zeros(number, length, dtype=torch.bool, device=model.device)
    keep[:, [0, -1]] = True
    texts = tuple(model.tokenizer.batch_decode(ids[sure]))
    batch = {"input_ids": ids[sure], "attention_mask": torch.ones_like(ids[sure])}
    return Labelled(batch, last[sure].argmax(1), keep, texts)

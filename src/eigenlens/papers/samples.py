"""Text of a decoder's own kind: what it samples from its start token."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import EigenlensError
from ..models.load import Model


@torch.no_grad()
def sample_ids(model: Model, number: int, length: int, seed: int) -> Tensor:
    """`number` texts of `length` tokens, (number, length), each token drawn from the model.

    They begin with its start token, or where its tokenizer has none with the token that ends
    documents. No other special token is drawn, so the texts go on.
    """
    module: Any = model.module
    known = (model.tokenizer.bos_token_id, model.tokenizer.eos_token_id)
    start = next((token for token in known if token is not None), None)
    if start is None:
        raise EigenlensError(
            f"{model.name} cannot sample a text: its tokenizer has no token that starts or ends one"
        )
    ids = torch.full((number, 1), start, device=model.device)
    generator = torch.Generator(device=model.device).manual_seed(seed)
    cache = None
    for _ in range(length - 1):
        out = module(
            input_ids=ids if cache is None else ids[:, -1:], past_key_values=cache, use_cache=True
        )
        cache = out.past_key_values
        p = out.logits[:, -1].softmax(-1)  # (number, V)
        p[:, model.tokenizer.all_special_ids] = 0
        ids = torch.cat([ids, torch.multinomial(p, 1, generator=generator)], 1)
    return ids

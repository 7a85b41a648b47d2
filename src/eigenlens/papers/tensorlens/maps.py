"""Maps of tokens of one sentence, for a picture.

In+Out, norm and attention rollout side by side.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...display import visible
from ...explanations import Operator, in_out, linearize, norms_of
from ...models.load import load

SENTENCE = "The film is far too long, but its music is wonderful."
MAPS = ("In+Out", "norm", "rollout")


def map_rows(name: str, sentence: str = SENTENCE, probes: int = 16) -> list[dict[str, Any]]:
    """A row for each map and pair of tokens.

    The share of input token j in output token i, 1 over all j.
    """
    model = load(name)
    ids = model.tokenizer(sentence, return_tensors="pt")["input_ids"]
    (op,) = linearize(model, {"input_ids": ids})
    words = [visible(piece) for piece in model.tokenizer.convert_ids_to_tokens(ids[0].tolist())]
    a = in_out(op)[0]
    n = len(words)
    one = torch.eye(n)
    # (n, n), a row for each output token
    sizes = torch.cat([norms_of(op, row[None], probes) for row in one])
    made = {
        "In+Out": a / a.sum(1, keepdim=True),
        "norm": sizes / sizes.sum(1, keepdim=True),
        "rollout": rollout(op)[0],
    }
    return [
        {
            "model": name,
            "map": kind,
            "output": i,
            "input": j,
            "output token": words[i],
            "input token": words[j],
            "share": float(values[i, j]),
        }
        for kind, values in made.items()
        for i in range(n)
        for j in range(n)
    ]


def rollout(op: Operator) -> Tensor:
    """`Π_l (½ A_l + ½ I)` with the patterns' mean over heads, (B, n, n)."""
    eye = torch.eye(op.shape[1]).to(op.inputs)
    total = eye.expand(op.shape[0], -1, -1)
    for branch in op.stack.branches("attention"):
        total = (branch.attention.pattern.mean(1) + eye) / 2 @ total
    return total

"""What a row of the operator costs beside a forward pass, in time and memory.

Also what the complete tensor would take.
"""

from __future__ import annotations

from typing import Any

import torch

from ...bench.timing import Pace, in_rounds, medians, peak_bytes
from ...explanations import in_out_of, linearize, norms_of
from ...explanations.linear_operator import Operator
from ...models.load import load
from ..inputs import make_batches


@torch.no_grad()
def length_row(name: str, text: str, length: int, seconds: float, seed: int) -> dict[str, Any]:
    """One input of a catalogue model in float32.

    Times are relative to a forward pass and taken in turns; peaks of memory stand beside them.
    """
    model = load(name)
    backbone: Any = model.backbone
    batch = make_batches(model, text, length, 3, seed, 1)[0]
    (op,) = linearize(model, batch)
    weights = torch.full(op.shape[:2], 1 / length)
    calls = {
        "forward": lambda: backbone(**batch),
        "freeze": lambda: linearize(model, batch),
        "column": lambda: op.apply(op.inputs),
        "row": lambda: op.adjoint(op.output),
        "In+Out of all tokens": lambda: in_out_of(op, weights),
        "norms by 8 probes": lambda: norms_of(op, weights, probes=8),
    }
    # their first pass, too
    memory = {what: peak_bytes(call, torch.device("cpu")) for what, call in calls.items()}
    times = medians(in_rounds(calls, Pace(seconds, 3, 30, seconds)))
    return {
        "model": name,
        "tokens": length,
        "channels": op.shape[2],
        "forward ms": 1e3 * times["forward"],
        **{
            f"{what} / forward": times[what] / times["forward"]
            for what in calls
            if what != "forward"
        },
        **_memory(op, memory),
    }


@torch.no_grad()
def width_row(width: int, length: int, seed: int) -> dict[str, Any]:
    """Memory of a random BERT of two blocks and so many channels."""
    import transformers as tf

    torch.manual_seed(seed)
    shape = {
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "hidden_size": width,
        "intermediate_size": 4 * width,
    }
    model = tf.BertModel(tf.BertConfig(vocab_size=97, **shape), add_pooling_layer=False).eval()
    batch = {"input_ids": torch.randint(0, 97, (1, length))}
    (op,) = linearize(model, batch)
    calls = {"freeze": lambda: linearize(model, batch), "row": lambda: op.adjoint(op.output)}
    memory = {what: peak_bytes(call, torch.device("cpu")) for what, call in calls.items()}
    return {"model": "random BERT", "tokens": length, "channels": width, **_memory(op, memory)}


def _memory(op: Operator, memory: dict[str, int]) -> dict[str, float]:
    B, n, d = op.shape
    whole = B * (n * d) ** 2 * op.inputs.element_size()
    held = memory["freeze"] + memory["row"]
    return {
        **({"forward MB": memory["forward"] / 1e6} if "forward" in memory else {}),
        "graph MB": memory["freeze"] / 1e6,
        "row MB": memory["row"] / 1e6,
        "whole MB": whole / 1e6,
        "graph and row / whole": held / whole,
    }

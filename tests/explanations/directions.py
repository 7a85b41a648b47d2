"""Targets that ask one direction of the last hidden states."""

import torch

from eigenlens.explanations.target import Target


def toward(direction):
    """A target that is linear in the last hidden states: what direction (B, T, C) asks of them."""
    return Target(
        "output", "a direction", lambda out, _: (out.last_hidden_state * direction).sum((1, 2))
    )


def asked(name, given, model):
    """A direction of the last hidden states, zero at padding."""
    mask = given.get(
        "decoder_attention_mask",
        given.get("attention_mask") if "decoder_input_ids" not in given else None,
    )
    with torch.no_grad():
        out = model(**given).last_hidden_state
    direction = torch.randn(out.shape)
    return direction if mask is None else direction * mask[..., None]

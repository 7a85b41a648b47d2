"""A small transformer whose weights have left their start."""

import torch

from eigenlens.lab import Config, Transformer

SHAPE = {"vocabulary": 20, "length": 12, "width": 16, "layers": 2, "heads": 2}
IDS = torch.arange(24).reshape(2, 12) * 7 % 20


def moved(**config):
    """A model in double precision whose weights have left their start."""
    torch.manual_seed(0)
    model = Transformer(Config(**{**SHAPE, **config})).double()
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.3 * torch.randn_like(weight)
    return model

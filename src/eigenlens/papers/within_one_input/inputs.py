"""Real inputs, and two controls of each: the same tokens in another order, and random ones."""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from torch import Tensor

from ...models.load import Model

Kind = Literal["real", "shuffled", "random"]
KINDS = get_args(Kind)


def controlled(
    model: Model, batch: dict[str, Any], kind: Kind, generator: torch.Generator
) -> dict[str, Any]:
    """A batch with its tokens or patches shuffled, or random ones in their place.

    The first and the last token stay: special tokens stand there. Random tokens are uniform over
    the vocabulary, random pixels normal with mean and deviation of the real ones.
    """
    if kind == "real":
        return batch
    made = dict(batch)
    for name, x in batch.items():
        if name == "pixel_values":
            size = int(model.config.patch_size)
            made[name] = (
                _patches(x, size, generator) if kind == "shuffled" else _noise(x, generator)
            )
        elif name in ("input_ids", "decoder_input_ids"):
            some = x[:, 1:-1]
            if kind == "shuffled":
                order = torch.rand(some.shape, generator=generator).argsort(1)
                some = some.gather(1, order.to(some.device))
            else:
                most = int(model.config.vocab_size)
                some = torch.randint(most, some.shape, generator=generator).to(some.device)
            made[name] = torch.cat([x[:, :1], some, x[:, -1:]], 1)
    return made


def _patches(x: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Pictures (B, 3, h·size, w·size) with their patches in another order."""
    rows, columns = x.shape[2] // size, x.shape[3] // size
    cut = x.unflatten(3, (columns, size)).unflatten(2, (rows, size))  # (B, 3, h, size, w, size)
    cut = cut.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)  # (B, h·w, 3, size, size)
    order = torch.rand(cut.shape[:2], generator=generator).argsort(1).to(x.device)
    cut = torch.stack([one[places] for one, places in zip(cut, order)])
    cut = cut.unflatten(1, (rows, columns)).permute(0, 3, 1, 4, 2, 5)
    return cut.flatten(4, 5).flatten(2, 3)


def _noise(x: Tensor, generator: torch.Generator) -> Tensor:
    """Pixels without any picture: normal, each channel with its mean and deviation."""
    mean, deviation = x.mean((0, 2, 3), keepdim=True), x.std((0, 2, 3), keepdim=True)
    return mean + deviation * torch.randn(x.shape, generator=generator).to(x)

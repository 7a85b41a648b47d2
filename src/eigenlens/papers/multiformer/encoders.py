"""The paper's encoders, and exact checks of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ...attention.relevance import head_relevance, head_terms
from ...lab import Config, Transformer


def heads(local: int, conv: int) -> tuple[tuple[str, int], ...]:
    return ("local", local), ("conv", conv)


CONFIGURATIONS: dict[str, tuple[Any, ...]] = {
    "lc": (heads(2, 2),) * 12,
    "v1": (heads(1, 3),) * 6 + (heads(2, 2),) * 6,
    "v2": (heads(1, 3),) * 3 + (heads(3, 1),) * 5 + (heads(2, 2),) * 4,
}
"""The paper's encoders: the heads of each of 12 layers of 4."""


SETTINGS = {"local": {"window": 33}, "conv": {"kernel": 5, "stride": 2}}
"""A window of 64 tokens: 32 to either side."""


KINDS: dict[str, Any] = {
    "all full": "full",
    "all local": "local",
    "all conv": "conv",
    "1 local, 3 conv": heads(1, 3),
    "2 local, 2 conv": heads(2, 2),
    "3 local, 1 conv": heads(3, 1),
}
"""The heads of every layer in the miniature."""


def encoder(name: str, seed: int, width: int = 64) -> Transformer:
    """An encoder of 80 filter banks per frame with the heads of a configuration of the paper."""
    torch.manual_seed(seed)
    return Transformer(
        Config(
            features=80,
            classes=width,
            length=1024,
            width=width,
            layers=12,
            heads=4,
            neighbourly=False,
            mechanism=CONFIGURATIONS[name],
            mechanism_settings=SETTINGS,
        )
    )


@torch.no_grad()
def configurations(seed: int) -> list[dict[str, Any]]:
    """What each configuration costs beside full attention.

    Also whether it gives numbers at 1, 2 and 100 frames.
    """
    rows = []
    for name in CONFIGURATIONS:
        model = encoder(name, seed)
        whole = [bool(torch.isfinite(model(torch.randn(1, T, 80))).all()) for T in (1, 2, 100)]
        counts = {
            kind: sum(dict(layer).get(kind, 0) for layer in CONFIGURATIONS[name])
            for kind in ("local", "conv")
        }
        full = Transformer(
            Config(features=80, classes=64, length=1024, width=64, layers=12, heads=4)
        )
        shares = {
            f"cost at {n}": model.attention_cost(n) / full.attention_cost(n) for n in (256, 1024)
        }
        rows.append({"configuration": name, **counts, **shares, "runs": all(whole)})
    return rows


@torch.no_grad()
def checks(seed: int) -> list[dict[str, Any]]:
    """Checks of heads that differ in their mechanism.

    Each row is the size of what should be zero, or the number itself.
    """
    torch.manual_seed(seed)
    width, T = 32, 100
    theirs = nn.MultiheadAttention(width, 4, batch_first=True)
    nn.init.normal_(theirs.in_proj_bias)
    nn.init.normal_(theirs.out_proj.bias)
    x = torch.randn(2, T, width)
    full = _layer(width, (("full", 1), ("full", 3)))
    full.project.load_state_dict({"weight": theirs.in_proj_weight, "bias": theirs.in_proj_bias})
    full.out.load_state_dict(theirs.out_proj.state_dict())
    apart = (full(x) - theirs(x, x, x)[0]).abs().max()
    mixed = _layer(width, heads(2, 2))
    z = mixed.head_outputs(x)
    terms = (head_terms(z, mixed.w_o).sum(1) + mixed.out.bias - mixed(x)).abs().max()
    sums = (head_relevance(z, mixed.w_o).sum(1) - 1).abs().max()
    place = torch.arange(T)
    far = (place[:, None] - place).abs() > 32
    outside = mixed.pattern(x)[:, :2, far].abs().max()
    keys = torch.linalg.matrix_rank(
        _layer(4 * 64, heads(2, 2)).double().pattern(torch.randn(1, T, 256).double())[0, 2]
    )
    numbers = all(bool(torch.isfinite(mixed(x[:, :t])).all()) for t in (1, 2, T))
    return [
        {
            "check": "all full heads: farthest from torch's MultiheadAttention",
            "value": float(apart),
        },
        {"check": "terms of the heads and bias: farthest from the output", "value": float(terms)},
        {
            "check": "relevance of the heads of a token: farthest from a sum of 1",
            "value": float(sums),
        },
        {"check": "local heads: largest weight outside the window", "value": float(outside)},
        {"check": "keys of 100 tokens under kernel 5, stride 2", "value": float(keys)},
        {"check": "finite without a mask, also for one token", "value": float(numbers)},
    ]


def _layer(width: int, chosen: Any) -> Any:
    """The attention of a lab layer of four heads."""
    settings = {name: SETTINGS[name] for name in SETTINGS}
    config = Config(
        features=1,
        classes=1,
        width=width,
        layers=1,
        heads=4,
        mechanism=(chosen,),
        mechanism_settings=settings,
    )
    return Transformer(config).attentions[0]

"""What holds of sinks and amplifiers without any model.

It is checked on patterns whose sinks are known, and on a planted neuron.
"""

from __future__ import annotations

from typing import Any

import torch

from ...captures import AttentionCall, Site
from ...diagnostics import CallView
from ...diagnostics.amplifier import channel_norms, eigenpairs
from ...diagnostics.sinks import Sinks


def pattern_checks(T: int) -> list[dict[str, Any]]:
    """α₁ of two attentions whose value is known, through the diagnostic.

    Uniform causal attention has H_T/T; all mass on the first token has 1.
    """
    k = torch.eye(T, dtype=torch.float64)[None, None]  # scores are the queries
    uniform, first = torch.zeros(2, 1, 1, T, T, dtype=torch.float64)
    first[..., 0] = 1e4
    rows = []
    for name, q, expected in (
        ("uniform", uniform, sum(1 / i for i in range(1, T + 1)) / T),
        ("all on the first", first, 1.0),
    ):
        sinks = Sinks()
        sinks.update(
            CallView(AttentionCall(Site("self", 0), "self", "attention", q, k, k, 1.0, causal=True))
        )
        found = sinks.result()
        rows.append(
            {
                "pattern": name,
                "tokens": T,
                "α₁": found.value("strength", "self", 0, 0),
                "expected": expected,
                "sink rate": found.value("rate", "self", 0, 0),
            }
        )
    return rows


def planted(
    seed: int, d: int = 64, M: int = 256, channels: tuple[int, int] = (7, 31), size: float = 100.0
) -> dict[str, Any]:
    """One strong neuron among M weak random ones.

    It reads one direction by gate and up, and writes into two channels.
    """
    draw = torch.Generator().manual_seed(seed)
    G, U, W = (
        0.01 * torch.randn(*shape, generator=draw, dtype=torch.float64)
        for shape in ((M, d), (M, d), (d, M))
    )
    s = torch.nn.functional.normalize(torch.randn(d, generator=draw, dtype=torch.float64), dim=0)
    G[0], U[0], W[:, 0] = s, s, 0.0
    W[channels[0], 0], W[channels[1], 0] = size, -0.7 * size
    top = channel_norms(G, U, W).topk(2).indices
    values, vectors, _ = eigenpairs(G, U, W[top], 64)
    return {
        "seed": seed,
        "d": d,
        "planted": list(channels),
        "found": top.tolist(),
        "λ₁/λ₂": float((values[:, 0] / values[:, 1]).abs().min()),
        "|cos(s*, planted)|": float((vectors @ s).abs().min()),
    }

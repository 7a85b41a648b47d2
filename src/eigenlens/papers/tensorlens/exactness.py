"""Whether the operator is exact: `T·X + B` is the model's output.

Also whether the maps are complete, and whether causal models see no future.
"""

from __future__ import annotations

import contextlib
from math import isqrt
from typing import Any

import torch
from torch import Tensor

from ...captures.precision import stays_double
from ...explanations import in_out, linearize
from ...models.forward import forward_of
from ...models.load import Model, load
from ..inputs import make_batches
from .small import CAUSAL, small_batch, small_model


@torch.no_grad()
def family_rows(family: str, seeds: int, seed: int) -> list[dict[str, Any]]:
    """A small random model of a family, in float64 and float32, with padding.

    A row for each start and precision.
    """
    rows = []
    for s in range(seeds):
        module, batch = small_model(family, seed + s), small_batch(family, seed + s)
        for dtype in (torch.float64, torch.float32):
            given = {key: x.to(dtype) if x.is_floating_point() else x for key, x in batch.items()}
            loaded = load(module.to(dtype), device=None)
            rows.append(
                {
                    "weights": "random",
                    "model": family,
                    "seed": s,
                    **exactness_row(loaded, given, family in CAUSAL),
                }
            )
    return rows


@torch.no_grad()
def catalogue_rows(
    name: str, text: str, length: int, inputs: int, seed: int, double: bool = True
) -> list[dict[str, Any]]:
    """Real weights on real inputs of about so many tokens, pictures for vision models.

    A row for each precision.
    """
    model = load(name)
    vision = model.kind == "vision"
    batch = make_batches(
        model,
        "photos" if vision else text,
        isqrt(length) ** 2 + 1 if vision else length,
        inputs,
        seed,
    )[0]
    rows = []
    for dtype in (torch.float32, torch.float64)[: 2 if double else 1]:
        model.module.to(dtype)
        given = {key: x.to(dtype) if x.is_floating_point() else x for key, x in batch.items()}
        row = exactness_row(model, given, model.kind == "decoder")
        rows.append({"weights": "catalogue", "model": name, "seed": seed, **row})
    return rows


@torch.no_grad()
def exactness_row(model: Model, batch: dict[str, Tensor], causal: bool) -> dict[str, Any]:
    """How far the operator of a one-stack model is off.

    Its output is compared with that of another run, and the map In+Out with its sums.
    """
    (op,) = linearize(model, batch)
    own = own_output(model, batch)
    valid = (
        torch.ones(own.shape[:2], dtype=torch.bool) if op.stack.valid is None else op.stack.valid
    )
    off = (op.apply(op.inputs) + op.bias - own)[valid]
    a = in_out(op)
    complete = (own * (own - op.bias)).sum(-1)[valid]
    lost = (a.sum(-1)[valid] - complete).abs().max()
    n = own.shape[1]
    future = a[:, torch.ones(n, n).triu(1).bool()].abs().max() if causal and n > 1 else None
    return {
        "precision": str(own.dtype).removeprefix("torch."),
        "tokens": n,
        "channels": own.shape[2],
        "relative error": float(off.norm() / own[valid].norm()),
        "largest error": float(off.abs().max()),
        "completeness": float(lost),
        "relative completeness": float(lost / complete.abs().max()),
        "largest a_ij of a later token": None if future is None else float(future),
    }


def own_output(model: Model, batch: dict[str, Tensor]) -> Tensor:
    """The model's last hidden state by itself, (B, n, d)."""
    double = next(model.module.parameters()).dtype == torch.float64
    with stays_double() if double else contextlib.nullcontext():
        out: Tensor = forward_of(model)(batch).last_hidden_state
    return out

"""The bounds of a model's own heads, on its own inputs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ..explain.frozen import FrozenStack
from ..explain.frozen_parts import FrozenAttention
from ..stats.geometry import composite_norm, residual
from .bounds_depth import depth_bound, layer_norms
from .bounds_layers import LayerBound, layer_bound


def model_bounds(frozen: FrozenStack) -> Iterator[tuple[int, int, LayerBound]]:
    """Input, layer and bounds of every attention of a frozen stack, padding left out."""
    for layer, branch in enumerate(frozen.branches("attention")):
        attention = branch.attention
        scores = attention.call.scores()  # (B, H, T, T)
        for index in range(len(frozen.inputs)):
            kept = _kept(frozen, index)
            x, p, s = (
                attention.reads[index][kept],
                attention.pattern[index][:, kept][:, :, kept],
                scores[index][:, kept][:, :, kept],
            )
            w, heads = attention.weights, range(attention.heads)
            plain = is_plain(attention, x, s)
            yield index, layer, layer_bound(
                x, p, (w.qk(h) for h in heads) if plain else None, (w.vo(h) for h in heads), attention.call.scale,
                applicable=plain, scores=s,
            )  # fmt: skip


def is_plain(attention: FrozenAttention, x: Tensor, scores: Tensor) -> bool:
    """Whether scores (H, T, T) are `scale · x W_QK xᵀ` up to terms of the query or of the key alone.

    A mask, a position bias, a cap or a rotary embedding makes them something else, and the cubic bound void.
    """
    if not bool(scores.isfinite().all()):
        return False
    made = attention.call.scale * x.double() @ attention.weights.qk(0).double() @ x.double().T
    want, made = _centred(scores[0].double()), _centred(made)
    return float((want - made).norm()) <= 1e-3 * float(want.norm()) + 1e-12


def _centred(s: Tensor) -> Tensor:
    """Less the means of rows and columns."""
    return s - s.mean(0, keepdim=True) - s.mean(1, keepdim=True) + s.mean()


def _kept(frozen: FrozenStack, index: int) -> Tensor:
    length = frozen.inputs.shape[1]
    return torch.arange(length, device=frozen.inputs.device) if frozen.valid is None else frozen.valid[index].nonzero()[:, 0]


def bound_rows(stack: str, found: Sequence[tuple[int, int, LayerBound]]) -> list[dict[str, Any]]:
    """One row a head: means over inputs; a bound is None where an input has none, `holds` the share of inputs."""
    heads: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for _, layer, bound in found:
        for head, one in enumerate(bound.heads):
            heads.setdefault((layer, head), []).append({**one.row(), "violated": len(one.violated)})
    return [{"stack": stack, "layer": layer, "head": head, **_mean(rows)} for (layer, head), rows in heads.items()]


def _mean(rows: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for key in rows[0]:
        values = [row[key] for row in rows]
        found[key] = None if None in values else sum(map(float, values)) / len(values)
    found["violated"] = sum(row["violated"] for row in rows)
    return found


def depth_rows(frozen: FrozenStack, found: Sequence[tuple[int, int, LayerBound]]) -> list[dict[str, Any]]:
    """The bounds composed over depth, in base-ten logarithms, for pure attention from the first input's residual.

    Empty where a layer's scores are not plain products: nothing cubic holds there.
    """
    first = [bound for index, _, bound in found if index == 0]
    if any(head.beta is None for bound in first for head in bound.heads):
        return []
    norms = []
    for branch, bound in zip(frozen.branches("attention"), first):
        attention = branch.attention
        w, heads = attention.weights, range(attention.heads)
        gammas = tuple(head.gamma for head in bound.heads)
        norms.append(layer_norms((w.qk(h) for h in heads), (w.vo(h) for h in heads), attention.call.scale, gammas=gammas))
    kept = _kept(frozen, 0)
    start = float(composite_norm(residual(frozen.inputs[:1, kept]))[0])
    rows = depth_bound(start, norms, len(kept)).rows()
    return [
        {
            "depth": row["depth"],
            "log10_cubic": _ten(row["log_published"]),
            "log10_sharp": _ten(row["log_sharp"]),
            "holds": row["holds"],
        }
        for row in rows
    ]


def _ten(log: Any) -> float | None:
    return None if log is None else log / math.log(10)

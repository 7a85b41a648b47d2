"""The bounds of a model's own heads, on its own inputs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ..anatomy.frozen import FrozenStack
from ..anatomy.frozen_parts import FrozenAttention
from ..stats.geometry import composite_norm, residual
from .bounds_depth import depth_bound, layer_norms
from .bounds_layers import LayerBound, layer_bound


def model_bounds(frozen: FrozenStack) -> Iterator[tuple[int, int, LayerBound]]:
    """The input, layer and bounds of every attention of a frozen stack, without padding."""
    for layer, branch in enumerate(frozen.branches("attention")):
        attention = branch.attention
        scores = attention.call.scores()  # (B, H, T, T)
        for index in range(len(frozen.inputs)):
            kept = _kept(frozen, index)
            if not len(kept):
                continue  # an input of padding alone
            x, p, s = (
                attention.reads[index][kept],
                *(a[index][:, kept][:, :, kept] for a in (attention.pattern, scores)),
            )
            w, heads = attention.weights, range(attention.heads)
            products = are_products(attention, index, kept)
            yield (
                index,
                layer,
                layer_bound(
                    x,
                    p,
                    (w.qk(h) for h in heads) if products else None,
                    (w.vo(h) for h in heads),
                    attention.call.scale,
                    applicable=products and is_bare(attention, s),
                    scores=s,
                ),
            )


def is_bare(attention: FrozenAttention, scores: Tensor) -> bool:
    """Whether nothing is added to the products of these tokens.

    That is no position bias, no cap and no mask.
    """
    return attention.call.linear and bool(scores.isfinite().all())


def are_products(attention: FrozenAttention, index: int, kept: Tensor) -> bool:
    """Whether `q kᵀ` is `x W_QK xᵀ` in every head, up to terms of the query or of the key alone.

    A rotary embedding, or a norm of queries and keys, makes it something else: there is no W_QK
    then. A mask, a position bias or a cap comes on top of the products and makes the cubic bound
    void, but leaves W_QK.
    """
    call, x = attention.call, attention.reads[index][kept].double()
    for head in range(attention.heads):
        q, k = call.scaled_q[index, head, kept].double(), call.keys[index, head, kept].double()
        want, made = (
            _centred(q @ k.T),
            _centred(call.scale * x @ attention.weights.qk(head).double() @ x.T),
        )
        if float((want - made).norm()) > 1e-3 * float(want.norm()) + 1e-9:
            return False
    return True


def _centred(s: Tensor) -> Tensor:
    """The matrix minus the means of its rows and columns."""
    return s - s.mean(0, keepdim=True) - s.mean(1, keepdim=True) + s.mean()


def _kept(frozen: FrozenStack, index: int) -> Tensor:
    length = frozen.inputs.shape[1]
    return (
        torch.arange(length, device=frozen.inputs.device)
        if frozen.valid is None
        else frozen.valid[index].nonzero()[:, 0]
    )


def bound_rows(stack: str, found: Sequence[tuple[int, int, LayerBound]]) -> list[dict[str, Any]]:
    """One row per head: means over inputs.

    A bound is None if an input has none; `holds` is the share of inputs where it holds.
    """
    heads: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for _, layer, bound in found:
        for head, one in enumerate(bound.heads):
            heads.setdefault((layer, head), []).append({**one.row(), "violated": len(one.violated)})
    return [
        {"stack": stack, "layer": layer, "head": head, **_mean(rows)}
        for (layer, head), rows in heads.items()
    ]


def _mean(rows: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for key in rows[0]:
        values = [row[key] for row in rows]
        found[key] = None if None in values else sum(map(float, values)) / len(values)
    found["violated"] = sum(row["violated"] for row in rows)
    return found


def depth_rows(
    frozen: FrozenStack, found: Sequence[tuple[int, int, LayerBound]]
) -> list[dict[str, Any]]:
    """The bounds composed over depth, in base-ten logarithms.

    They are for the same attention without norms, skips and MLPs, from the residual of the first
    input, with the worst case γ = √T. Empty if the scores of a layer are not plain products, as the
    cubic bound does not hold then.
    """
    kept, norms = _kept(frozen, 0), []
    for branch, bound in zip(
        frozen.branches("attention"), [bound for index, _, bound in found if index == 0]
    ):
        attention = branch.attention
        if bound.heads[0].beta is None or not is_bare(
            attention, attention.call.scores()[0][:, kept][:, :, kept]
        ):
            return []
        w, heads = attention.weights, range(attention.heads)
        norms.append(
            layer_norms((w.qk(h) for h in heads), (w.vo(h) for h in heads), attention.call.scale)
        )
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

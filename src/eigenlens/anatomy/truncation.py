"""Cut the query-key matrices of a loaded model's heads to a low rank, and restore them later.

The scores of a head are `[x_i 1] W [x_j 1]ᵀ` with `W = [W_Q; b_Q] [W_K; b_K]ᵀ`. The matrix of rank
r nearest to W is `U_r U_rᵀ W`, which is W with other queries (`attention/qk.py`). Keys stay as they
are, so heads that share keys can be cut independently.

Rotary positions turn queries and keys by angles that grow with their distance Δ: there is one
matrix `W_Q R_Δ W_Kᵀ` for each distance. Queries of rank r give every one of them rank r. The
queries are chosen that have the least squared error, averaged over all angles: `E_Δ ‖(W_Q − W_Q′)
R_Δ W_Kᵀ‖² = tr((W_Q − W_Q′) S (W_Q − W_Q′)ᵀ)`, `S = E_Δ R_Δ W_KᵀW_K R_Δᵀ`. With a norm between the
projection and the score (Qwen 3) no such matrix exists: these models are refused.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..attention.qk import augmented, reduced
from ..errors import EigenlensError
from .blocks import Attend, read_stacks
from .head_weights import BY_HEAD, BY_PART, QUERY, HeadWeights, read_head_weights

NORMS = ("q_norm", "k_norm", "q_layernorm", "k_layernorm", "query_norm", "key_norm")
HEADS = (
    "num_attention_heads",
    "num_heads",
    "n_heads",
    "n_head",
    "heads",
    "encoder_attention_heads",
)
KEY_HEADS = ("num_key_value_heads", "num_kv_heads", "kv_heads")


@dataclass(frozen=True, eq=False)
class Queries:
    """An attention of a model: its weights by head, and where its queries can be written to.

    `weight` (H, D, C) and `bias` (H, D) are views of the model's own parameters.
    """

    path: str
    module: nn.Module
    weights: HeadWeights
    weight: Tensor
    bias: Tensor | None

    @property
    def heads(self) -> int:
        return len(self.weight)

    def metric(self, head: int) -> Tensor:
        """Return `S` of the head's keys, (D, D): `W_KᵀW_K` with the bias as one more row.

        If keys are rotated, its mean over angles.
        """
        w = self.weights
        keys = augmented(w.key, w.key_bias)[head // w.group].double()  # (C + 1, D)
        S = keys.T @ keys
        turned = quarter_turn(self.module, S)
        return S if turned is None else mean_over_angles(S, turned)

    def cut(self, head: int, rank: int) -> None:
        """Write the nearest queries of that rank into the model."""
        w = self.weights
        # (C + 1, D)
        found = reduced(augmented(w.query[head], w.query_bias[head]), self.metric(head), rank)
        self.weight[head] = found[:-1].T
        if self.bias is not None:
            self.bias[head] = found[-1]


def query_weights(model: nn.Module) -> tuple[Queries, ...]:
    """Return the attentions of a model in the order of its blocks.

    A block's self-attention comes before its cross-attention.
    """
    paths = {id(module): path for path, module in model.named_modules()}
    branches = [
        b
        for stack in read_stacks(model)
        for block in stack.blocks
        for stage in block.stages
        for b in stage.branches
    ]
    found = [
        _queries(b.linear, paths[id(b.linear.module)])
        for b in branches
        if isinstance(b.linear, Attend)
    ]
    if not found:
        raise EigenlensError(f"{type(model).__name__} has no attention whose queries could be cut")
    return tuple(found)


@contextmanager
def truncated(
    model: nn.Module, rank: int, heads: Collection[tuple[int, int]] | None = None
) -> Iterator[tuple[Queries, ...]]:
    """Cut the query-key matrix of each head of `model` to `rank` while the block runs.

    Afterwards the weights are as before.

    `heads` are pairs (attention, head), counted as `query_weights` does; None is all of them. A
    rank of the heads' width or more changes nothing.

    >>> with truncated(model, rank=4):
    ...     model(**batch)
    """
    if rank < 0:
        raise EigenlensError(f"rank must be at least 0, not {rank}")
    attentions = query_weights(model)
    everything = {
        (at, head) for at, queries in enumerate(attentions) for head in range(queries.heads)
    }
    chosen = everything if heads is None else set(heads)
    if unknown := sorted(chosen - everything):
        raise EigenlensError(
            f"no head {unknown[0]}; there are {len(attentions)} attentions, the first with"
            f" {attentions[0].heads} heads"
        )
    kept = [(q.weight.clone(), None if q.bias is None else q.bias.clone()) for q in attentions]
    try:
        with torch.no_grad():
            for at, head in sorted(chosen):
                if rank < attentions[at].weight.shape[1]:
                    attentions[at].cut(head, rank)
        yield attentions
    finally:
        with torch.no_grad():
            for queries, (weight, bias) in zip(attentions, kept):
                queries.weight.copy_(weight)
                if queries.bias is not None and bias is not None:
                    queries.bias.copy_(bias)


def quarter_turn(module: nn.Module, like: Tensor) -> Tensor | None:
    """Return J (D, D), the model's own rotation of all planes of a head by 90°.

    None without rotary positions.

    J shows which two numbers of a query form a plane; numbers that are not rotated have rows of
    zero.
    """
    rotate = getattr(sys.modules.get(type(module).__module__), "apply_rotary_pos_emb", None)
    if rotate is None or "Attention" not in type(module).__name__:
        return None
    D = len(like)
    # Phi and GPT-NeoX turn the leading part of a head only
    width = int(getattr(module, "rotary_ndims", D))
    # row i is the i-th unit vector
    basis = torch.eye(D, dtype=like.dtype, device=like.device)[:width, :width]
    sin = torch.ones(1, width, width, dtype=like.dtype, device=like.device)
    try:
        turned = rotate(basis[None, None], basis[None, None], torch.zeros_like(sin), sin)[0][0, 0]
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise EigenlensError(
            f"the rotary positions of {type(module).__name__} are not known: {error}"
        ) from error
    J = torch.zeros_like(like)
    J[:width, :width] = turned.T
    if not torch.equal(J[:width, :width] @ J[:width, :width], -basis):
        raise EigenlensError(
            f"the rotary positions of {type(module).__name__} do not rotate planes, so the rank of"
            " its heads cannot be cut"
        )
    return J


def mean_over_angles(S: Tensor, J: Tensor) -> Tensor:
    """Return `E R S Rᵀ` over planes with independent angles: `½(diag S + J diag S Jᵀ)`.

    S itself if nothing is rotated.
    """
    turns = J.abs().sum(1) > 0  # (D,)
    diagonal = torch.diag(torch.where(turns, S.diagonal(), 0))
    return (diagonal + J @ diagonal @ J.T) / 2 + torch.where(turns[:, None] | turns, 0, S)


def projection_norm(module: nn.Module) -> str | None:
    """Return the name of a norm between an attention's projections and its scores.

    None if there is none.
    """
    parts = {name: getattr(module, name, None) for name in NORMS}
    norms = (
        name
        for name, part in parts.items()
        if isinstance(part, nn.Module) and not isinstance(part, nn.Identity)
    )
    return next(norms, None)


def _queries(attend: Attend, path: str) -> Queries:
    module = attend.module
    if norm := projection_norm(module):
        raise EigenlensError(
            f"{path} has a norm after its projections ({norm}), so its heads have no query-key"
            " matrix to cut"
        )
    heads, kv_heads = _counts(module, path)
    weights = read_head_weights(module, heads, kv_heads, attend.output)
    weight, bias = _places(module, heads, path)
    if not torch.equal(weight.transpose(1, 2), weights.query):
        raise EigenlensError(
            f"the query weights of {path} ({type(module).__name__}) are not where eigenlens expects"
            " them"
        )
    return Queries(path, module, weights, weight, bias)


def _counts(module: Any, path: str) -> tuple[int, int]:
    """Return the number of query heads and of key heads."""
    owners = [module, getattr(module, "config", None)]
    heads = _first(owners, HEADS)
    if heads is None:
        raise EigenlensError(f"{path} ({type(module).__name__}) does not say how many heads it has")
    if isinstance(groups := getattr(module, "num_key_value_groups", None), int):
        return heads, heads // groups
    return heads, _first(owners, KEY_HEADS) or heads


def _first(owners: list[Any], names: Collection[str]) -> int | None:
    return next(
        (
            value
            for owner in owners
            for name in names
            if isinstance(value := getattr(owner, name, None), int)
        ),
        None,
    )


def _places(module: Any, heads: int, path: str) -> tuple[Tensor, Tensor | None]:
    """Return the query weights in the model's own memory, to be overwritten.

    Weight (H, D, C) and bias (H, D) or None.
    """
    # torch.nn.MultiheadAttention
    if isinstance(joined := getattr(module, "in_proj_weight", None), Tensor):
        bias = module.in_proj_bias
        parts = joined.detach().chunk(3)[0], None if bias is None else bias.detach().chunk(3)[0]
        return _by_head(*parts, heads)
    apart = getattr(module, "q_attn", None)  # GPT-2's cross-attention
    names = ("q_attn",) if isinstance(apart, nn.Module) else (*QUERY, *BY_PART, *BY_HEAD)
    for name in names:
        if not isinstance(getattr(module, name, None), nn.Module):
            continue
        part: Any = getattr(module, name)
        weight, bias = part.weight.detach(), None if part.bias is None else part.bias.detach()
        weight = weight.T if type(part).__name__ == "Conv1D" else weight  # (rows, C)
        if name in BY_HEAD:
            by_head = weight.view(heads, 3, -1, weight.shape[1])[:, 0]
            return by_head, None if bias is None else bias.view(heads, 3, -1)[:, 0]
        if name in BY_PART:
            # the lab's values may have another width
            rows = getattr(module, "sizes", (len(weight) // 3,))[0]
            weight, bias = weight[:rows], None if bias is None else bias[:rows]
        return _by_head(weight, bias, heads)
    raise EigenlensError(
        f"{path} ({type(module).__name__}) has none of the projections {', '.join(names)}"
    )


def _by_head(weight: Tensor, bias: Tensor | None, heads: int) -> tuple[Tensor, Tensor | None]:
    return weight.view(heads, -1, weight.shape[1]), None if bias is None else bias.view(heads, -1)

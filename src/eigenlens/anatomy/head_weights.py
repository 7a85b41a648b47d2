"""The weights of an attention module by head, however a family stores them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..errors import EigenlensError

QUERY = ("query", "q_proj", "q_lin", "q")
KEY = ("key", "k_proj", "k_lin", "k")
VALUE = ("value", "v_proj", "v_lin", "v")
OUTPUT = ("o_proj", "out_proj", "out_lin", "o", "c_proj", "Wo", "out", "dense")
BY_PART = ("c_attn", "Wqkv", "project")
"""Projections stored as one matrix, with rows ordered [query, key, value] × heads."""
BY_HEAD = ("query_key_value",)
"""Projections stored as one matrix, with rows ordered key-value heads × [queries, key, value]."""


@dataclass(frozen=True, eq=False)
class HeadWeights:
    """`q = x W_Q + b_Q`, likewise k and v, and `out = Σ_h z_h W_O,h + b_O`.

    Shapes: `query (H, C, D)`, `key (G, C, D)`, `value (G, C, E)` with G key-value heads, `output
    (H, E, C)`; biases `(H, D)`, `(G, D)`, `(G, E)`, `(C,)`, zero if the model has none.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor
    query_bias: Tensor
    key_bias: Tensor
    value_bias: Tensor
    output_bias: Tensor

    @property
    def group(self) -> int:
        """The number of query heads that share a key-value head."""
        return len(self.query) // len(self.key)

    def qk(self, head: int) -> Tensor:
        """Return `W_QK = W_Q W_Kᵀ` of a head, (C, C), without the scale of the scores."""
        return self.query[head] @ self.key[head // self.group].T

    def vo(self, head: int) -> Tensor:
        """Return `W_V W_O` of a head, (C, C)."""
        return self.value[head // self.group] @ self.output[head]


def read_head_weights(
    module: nn.Module, heads: int, kv_heads: int, output: nn.Module | None = None
) -> HeadWeights:
    """Return the weights of the attention `module` by head.

    `output` is its output projection, if that is not part of the module.
    """
    q, k, v = _fused(module, heads, kv_heads) or tuple(
        linear_map(_part(module, names)) for names in (QUERY, KEY, VALUE)
    )
    # (C, H·E), (C,)
    out, out_bias = linear_map(output if output is not None else _part(module, OUTPUT))
    if len(v[0]) * heads != out.shape[1] * kv_heads or len(q[0]) * kv_heads != len(k[0]) * heads:
        sizes = f"queries {len(q[0])}, keys {len(k[0])}, values {len(v[0])}, output {out.shape[1]}"
        raise EigenlensError(
            f"the weights of the heads of {type(module).__name__} cannot be read: its projections"
            f" do not fit {heads} query and {kv_heads} key-value heads ({sizes})"
        )
    return HeadWeights(
        query=_split(q[0], heads),
        key=_split(k[0], kv_heads),
        value=_split(v[0], kv_heads),
        output=out.T.reshape(heads, -1, len(out)),
        query_bias=q[1].view(heads, -1),
        key_bias=k[1].view(kv_heads, -1),
        value_bias=v[1].view(kv_heads, -1),
        output_bias=out_bias,
    )


def _split(weight: Tensor, heads: int) -> Tensor:
    """(H·D, C) → (H, C, D)."""
    return weight.view(heads, -1, weight.shape[1]).transpose(1, 2)


def _part(module: nn.Module, names: Iterable[str]) -> nn.Module:
    for name in names:
        if isinstance(found := getattr(module, name, None), nn.Module):
            return found
    names = ", ".join(names)
    raise EigenlensError(
        f"the weights of the heads of {type(module).__name__} cannot be read: it has none of the"
        f" projections {names}"
    )


def linear_map(module: nn.Module) -> tuple[Tensor, Tensor]:
    """Return weight (out, in) and bias (out,) of a linear map; GPT-2 stores the transpose."""
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2:
        raise EigenlensError(
            f"{type(module).__name__} has no weight matrix, but a linear map was expected"
        )
    weight = weight.detach().T if type(module).__name__ == "Conv1D" else weight.detach()
    return weight, weight.new_zeros(len(weight)) if bias is None else bias.detach()


def _by_part(x: Tensor, group: int, kv_heads: int, D: int) -> Tensor:
    """Reorder rows: key-value heads × [queries, key, value] → [queries, keys, values] × heads."""
    x = x.unflatten(0, (kv_heads, group + 2, D))
    return torch.cat(
        [x[:, :group].flatten(0, 2), x[:, group].flatten(0, 1), x[:, group + 1].flatten(0, 1)]
    )


def _fused(
    module: nn.Module, heads: int, kv_heads: int
) -> tuple[tuple[Tensor, Tensor], ...] | None:
    for name in (*BY_PART, *BY_HEAD):
        found = getattr(module, name, None)
        if not isinstance(found, nn.Module):
            continue
        weight, bias = linear_map(found)
        # GPT-2's cross-attention: keys and values only
        if isinstance(apart := getattr(module, "q_attn", None), nn.Module):
            return (linear_map(apart), *zip(weight.chunk(2), bias.chunk(2)))
        # the lab's, whose values may have another width
        sizes = getattr(module, "sizes", None) if name == "project" else None
        if sizes is None and len(weight) % (heads + 2 * kv_heads):
            raise EigenlensError(
                f"the weights of the heads of {type(module).__name__} cannot be read: {name} has"
                f" {len(weight)} rows, which does not fit {heads} query and {kv_heads} key-value"
                " heads"
            )
        D = len(weight) // (heads + 2 * kv_heads)
        # GPTBigCode, which has c_attn both ways
        if name in BY_HEAD or getattr(module, "multi_query", None) is False:
            weight, bias = (
                _by_part(part, heads // kv_heads, kv_heads, D) for part in (weight, bias)
            )
        return tuple(
            zip(
                *(
                    part.split(sizes or (heads * D, kv_heads * D, kv_heads * D))
                    for part in (weight, bias)
                )
            )
        )
    # torch.nn.MultiheadAttention
    if isinstance(joined := getattr(module, "in_proj_weight", None), Tensor):
        bias = (
            module.in_proj_bias
            if isinstance(module.in_proj_bias, Tensor)
            else torch.zeros_like(joined[:, 0])
        )
        return tuple(zip(joined.detach().chunk(3), bias.detach().chunk(3)))
    return None

"""Block-adaptive attention: exact on the keys that a block of queries looks at, skips the others.

    out_i = Σ_{j ∈ P(I) ∪ I≤i} softmax(q_i·k_j/√d) v_j

with the past keys `P(I)` chosen for the whole query block I by `block_selection`, and the block's
own keys up to i. The two parts are ordinary attentions, joined through their log-sum-exp:

    out = (1−w) o_own + w o_past,   w = σ(ℓ_past − ℓ_own).

There are three forms of this mechanism: `reference` (dense, masked, short), `plain` (gathers kept
keys and runs batches of equal counts through torch's own attention) and `flex` (compiled
`flex_attention`). All heads of a key-value head share a selection, so that gathered keys serve `R ·
query_block` rows.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from ..errors import EigenlensError
from .block_selection import (
    BlockBatch,
    BlockSettings,
    attended_pairs,
    block_mass,
    dense_mask,
    kept_pairs,
    select,
)

__all__ = [
    "BlockBatch",
    "BlockSettings",
    "block_attention",
    "choose_blocks",
    "cost",
    "flex",
    "gathered_attention",
    "kept_pairs",
    "reference",
]

# numbers gathered at once: larger fresh tensors cost more in page faults than they save in calls
GATHERED = 4_000_000


def block_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    settings: BlockSettings,
    scale: float | None = None,
    form: Literal["plain", "flex", "reference"] = "plain",
) -> Tensor:
    """Attend causally to the blocks of keys that get most of the attention.

    Inputs of at most four query blocks and decoding steps (fewer queries than keys) attend densely,
    since there is nothing to save. This function takes no mask, so do not give it padded inputs;
    `BlockPlan` passes calls with a mask to torch's attention. The plain form is the default because
    compiled `flex_attention` skips only tiles without a kept key, and few tiles have none.

    Parameters
    ----------
    q : Tensor
        Queries `(B, H, T, D)`.
    k : Tensor
        Keys `(B, G, T, D)`; H is a multiple of G.
    v : Tensor
        Values `(B, G, T, E)`.
    settings : BlockSettings
        Sizes of blocks, and one threshold per key-value head; a head with threshold 0 attends
        densely.
    scale : float, optional
        Factor of the scores. Default: `1/√D`.
    form : {"plain", "flex", "reference"}, default "plain"
        Which implementation: matrix products of the kept keys, torch's compiled `flex_attention`,
        or the dense reference with a mask.

    Returns
    -------
    Tensor
        The output `(B, H, T, E)`.

    Raises
    ------
    EigenlensError
        If there is not one threshold per key-value head.

    Examples
    --------
    >>> block_attention(q, k, v, BlockSettings((5e-4,) * k.shape[1])).shape      # (B, H, T, E)
    """
    (B, H, T, D), G = q.shape, k.shape[1]
    if len(settings.thresholds) != G:
        raise EigenlensError(
            f"{len(settings.thresholds)} thresholds were given for {G} key-value heads; give one"
            " per head"
        )
    scale = 1 / math.sqrt(D) if scale is None else scale
    sparse = _sparse_heads(T, k.shape[2], settings)
    if not sparse:
        return dense_attention(q, k, v, scale)
    if len(sparse) == G:
        return _sparse(q, k, v, settings, scale, form)
    out = q.new_empty(B, G, H // G, T, v.shape[3])
    grouped = q.unflatten(1, (G, H // G))
    for heads, dense in ((sparse, False), ([g for g in range(G) if g not in sparse], True)):
        x, y, z = grouped[:, heads].flatten(1, 2), k[:, heads], v[:, heads]
        part = (
            dense_attention(x, y, z, scale)
            if dense
            else _sparse(x, y, z, settings.of_heads(heads), scale, form)
        )
        out[:, heads] = part.unflatten(1, (len(heads), -1))
    return out.flatten(1, 2)


def work_shares(q: Tensor, k: Tensor, settings: BlockSettings, scale: float) -> Tensor:
    """Return the work of `block_attention` as a share of causal attention, `T²/2` pairs, `(H,)`.

    For these queries and keys. The selection is made here; its work counts, and so do the zeros
    that fill the last block. Dense heads have 1.
    """
    (B, H, T, _), G = q.shape, k.shape[1]
    shares = torch.ones(G, dtype=torch.float64)
    sparse = _sparse_heads(T, k.shape[2], settings)
    if sparse:
        some = settings.of_heads(sparse)
        x, y = _filled(some, q.unflatten(1, (G, H // G))[:, sparse].flatten(1, 2), k[:, sparse])
        batches = choose_blocks(x, y, some, scale)
        pairs = attended_pairs(batches, (B, len(sparse), x.shape[2] // some.query_block), some)
        shares[sparse] = pairs.double() / (B * T * T / 2)
    return shares.repeat_interleave(H // G)


def _sparse_heads(T: int, S: int, settings: BlockSettings) -> list[int]:
    """Return the key-value heads that select; none for short inputs and decoding steps."""
    if S != T or 4 * settings.query_block >= T:
        return []
    return [g for g, threshold in enumerate(settings.thresholds) if threshold > 0]


def dense_attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Causal attention by torch's own kernel.

    If there are fewer queries than keys, they are the last ones.
    """
    T, S = q.shape[2], k.shape[2]
    mask = None if T in (1, S) else torch.ones(T, S, dtype=torch.bool, device=q.device).tril(S - T)
    return scaled_dot_product_attention(
        q, k, v, mask, is_causal=T == S and T > 1, scale=scale, enable_gqa=True
    )


def choose_blocks(q: Tensor, k: Tensor, settings: BlockSettings, scale: float) -> list[BlockBatch]:
    """Return the selection for whole blocks of queries, `T` a multiple of the query block."""
    return select(block_mass(q, k, settings, scale), settings)


def _sparse(
    q: Tensor, k: Tensor, v: Tensor, settings: BlockSettings, scale: float, form: str
) -> Tensor:
    T = q.shape[2]
    q, k, v = _filled(settings, q, k, v)
    attend = {"plain": gathered_attention, "flex": flex, "reference": reference}[form]
    return attend(q, k, v, choose_blocks(q, k, settings, scale), settings, scale)[:, :, :T]


def _filled(settings: BlockSettings, *given: Tensor) -> tuple[Tensor, ...]:
    """Pad with zeros at the end to whole blocks of queries; no query sees these zeros."""
    short = -given[0].shape[2] % settings.query_block
    return tuple(pad(x, (0, 0, 0, short)) for x in given) if short else given


def reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    batches: list[BlockBatch],
    settings: BlockSettings,
    scale: float,
) -> Tensor:
    """The dense masked formula, for comparison."""
    (B, H, T, _), G = q.shape, k.shape[1]
    mask = dense_mask(batches, (B, G, T // settings.query_block, T // settings.key_block), settings)
    scores = q.unflatten(1, (G, H // G)) @ k[:, :, None].transpose(3, 4) * scale  # (B, G, R, T, T)
    pattern = torch.softmax(scores.masked_fill(~mask[:, :, None].to(q.device), -torch.inf), -1)
    return (pattern @ v[:, :, None]).flatten(1, 2)


def gathered_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    batches: list[BlockBatch],
    settings: BlockSettings,
    scale: float,
) -> Tensor:
    """Gather the kept keys; every query block of a batch attends to its own keys in one call."""
    (B, H, T, D), G, E, s = q.shape, k.shape[1], v.shape[3], settings
    R, N = H // G, T // s.query_block
    rows = (
        q.view(B, G, R, N, s.query_block, D)
        if q.is_contiguous()
        else q.reshape(B, G, R, N, s.query_block, D)
    )
    units = rows.transpose(2, 3).reshape(B * G * N, R * s.query_block, D)
    out, mass = _own(units, k, v, s, scale)  # (U, R·block, E), (U, R·block)
    keys = k.reshape(B * G * T // s.key_block, s.key_block * D)
    values = v.reshape(B * G * T // s.key_block, s.key_block * E)
    for batch in batches:
        U, count = batch.blocks.shape
        size = max(1, GATHERED // (count * s.key_block * (D + E)))
        for some, blocks in zip(batch.units.split(size), batch.blocks.split(size)):
            index = (blocks + (some // N * (T // s.key_block))[:, None]).flatten()
            past = keys.index_select(0, index).view(len(some), -1, D)
            past_values = values.index_select(0, index).view(len(some), -1, E)
            o, l = _attend(units[some][:, None], past[:, None], past_values[:, None], scale)
            weight = torch.sigmoid(l[:, 0] - mass[some])[..., None].to(out.dtype)
            out[some] = torch.lerp(out[some], o[:, 0], weight)
    return out.view(B, G, N, R, s.query_block, E).transpose(2, 3).reshape(B, H, T, E)


def _own(
    units: Tensor, k: Tensor, v: Tensor, settings: BlockSettings, scale: float
) -> tuple[Tensor, Tensor]:
    """Attend from every query block to its own keys, causally.

    `units (U, R·block, D)`, one row of heads after the other.
    """
    U, block = len(units), settings.query_block
    q = units.unflatten(1, (-1, block))  # (U, R, block, D)
    R = q.shape[1]
    keys, values = (x.reshape(U, 1, block, -1).expand(U, R, block, x.shape[3]) for x in (k, v))
    out, mass = _attend(q, keys, values, scale, causal=True)
    return out.flatten(1, 2), mass.flatten(1, 2)


def _attend(
    q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """Return attention of `q (U,R,P,D)` over `k (U,R,S,D)`, `v (U,R,S,E)`, and its log-sum-exp.

    The log-sum-exp of the scores is `(U, R, P)`.
    """
    if (
        q.device.type == "cpu"
        and q.shape[3] == v.shape[3]
        and not (torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)))
    ):
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, is_causal=causal, scale=scale
        )
    scores = q @ k.transpose(2, 3) * scale
    if causal:
        later = torch.ones(scores.shape[2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    l = scores.logsumexp(3)
    return (scores - l[..., None]).exp() @ v, l


@lru_cache(maxsize=1)
def _compiled() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)


def flex(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    batches: list[BlockBatch],
    settings: BlockSettings,
    scale: float,
) -> Tensor:
    """The same through compiled `flex_attention`.

    Empty tiles are skipped; within a tile, pairs are masked one by one.
    """
    from torch.nn.attention.flex_attention import create_block_mask

    (B, H, T, _), G = q.shape, k.shape[1]
    mask = dense_mask(
        batches, (B, G, T // settings.query_block, T // settings.key_block), settings
    ).to(q.device)
    R = H // G

    def allowed(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return mask[b, h // R, i, j]

    tiles = create_block_mask(
        allowed, B, H, T, T, device=str(q.device), BLOCK_SIZE=settings.query_block
    )
    return _compiled()(q, k, v, block_mask=tiles, scale=scale, enable_gqa=R > 1)


def cost(n: int, d: int, settings: BlockSettings, share: float, group: int = 1) -> float:
    """Return the multiply-adds of one query head over `n` tokens of width `d`, with selection.

    Dense causal attention has `n² d`.

    `share` is the kept part of the causal pairs, `n²/2`, past and own. Selection scores `samples`
    rows per query block against the past, for each head: `(samples / query_block) · n²/2 · d`, plus
    one addition for each of these scores (for the mean over rows and blocks, which the `group`
    heads of a key-value head then share).
    """
    pairs = n * n / 2
    sampled = settings.samples / settings.query_block * pairs
    compared = n / settings.query_block * n / settings.key_block / 2 / group
    return 2 * d * share * pairs + sampled * (d + 1) + compared

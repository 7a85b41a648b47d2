"""Exact attention over the keys that were kept: three forms of one formula.

    out_i = (1 − w_I) Σ_{j ∈ K(I) ∪ I≤i} softmax_j(q_i·k_j/√d) v_j + w_I v̄_I

for query i of block I, with the kept keys `K(I)`, the keys of its own block up to i if the call is
causal, and the mean value `v̄_I` of what was dropped with its weight `w_I`. `reference` is dense and
masked, `by_torch` gathers keys and runs torch's own attention, `native` is compiled C++.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ..kernels import native
from ..kernels.kept_keys import KeptKeys

Form = Literal["auto", "native", "torch", "reference"]
GATHERED = 4_000_000
"""Numbers gathered at once: larger fresh tensors cost more in page faults than they save."""
STEP = 64
"""Units whose counts agree when rounded up to this many keys run as one batch."""


def attend_kept(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kept: KeptKeys,
    scale: float,
    valid: Tensor | None = None,
    form: Form = "auto",
) -> Tensor:
    """Attend from every block of queries to the keys it keeps.

    Parameters
    ----------
    q : Tensor
        Queries `(B, H, T, D)`.
    k, v : Tensor
        Keys `(B, G, S, D)` and values `(B, G, S, E)`; H is a multiple of G.
    kept : KeptKeys
        The keys of every unit.
    scale : float
        Factor of the scores.
    valid : Tensor, optional
        Which keys are no padding, `(B, S)` bool. Default: all.
    form : {"auto", "native", "torch", "reference"}, default "auto"
        Compiled C++, torch's own attention on gathered keys, or dense and masked; `"auto"` is
        native if there is a compiled kernel and it can serve, else torch.

    Returns
    -------
    Tensor
        The output `(B, H, T, E)`; zero, or the mean of what was dropped, for a query without a key.
    """
    if native.computes(form, q, k, v):
        return native.attend(q, k, v, kept, scale, valid)
    out = (reference if form == "reference" else by_torch)(q, k, v, kept, scale, valid)
    if kept.weight is None or kept.mean is None:
        return out
    rows = torch.arange(q.shape[2], device=q.device) // kept.block
    mean, weight = kept.mean[:, :, rows].to(out), kept.weight[:, :, rows, None].to(out)
    return torch.lerp(out, mean, weight)


def reference(
    q: Tensor, k: Tensor, v: Tensor, kept: KeptKeys, scale: float, valid: Tensor | None = None
) -> Tensor:
    """The dense masked formula, for comparison; without the mean of what was dropped."""
    (_, H, T, _), (_, G, S, _) = q.shape, k.shape
    mask = kept.mask(T, S)
    if valid is not None:
        mask = mask & valid[:, None, None]
    scores = q.unflatten(1, (G, H // G)) @ k[:, :, None].transpose(3, 4) * scale  # (B, G, R, T, S)
    mask = mask.unflatten(1, (G, H // G))
    pattern = torch.softmax(scores.masked_fill(~mask, -torch.inf), -1).nan_to_num()
    return (pattern @ v[:, :, None]).flatten(1, 2)


def by_torch(
    q: Tensor, k: Tensor, v: Tensor, kept: KeptKeys, scale: float, valid: Tensor | None = None
) -> Tensor:
    """Gather the kept keys; units with about as many keys run as one batch of torch's attention.

    Own block and past are two attentions, joined through their log-sum-exp ℓ:
    `out = (1 − w) o_own + w o_past`, `w = σ(ℓ_past − ℓ_own)`.
    """
    (B, H, T, D), (_, G, S, E), block = q.shape, v.shape, kept.block
    N, device = kept.counts.shape[2], q.device
    short = N * block - T
    rows = torch.nn.functional.pad(q, (0, 0, 0, short)) if short else q
    units = rows.reshape(B * H * N, block, D)
    out, mass = units.new_zeros(B * H * N, block, E), units.new_full((B * H * N, block), -torch.inf)
    index = torch.arange(B * H * N, device=device)
    b, g = index // (H * N), index // N % H // (H // G)
    base = (b * G + g) * S  # the first key of a unit's head among all keys
    keys, values = k.reshape(B * G * S, D), v.reshape(B * G * S, E)
    gone = None if valid is None else (~valid).repeat_interleave(G, 0).flatten()  # (B·G·S,)
    if kept.causal:
        own = torch.arange(block, device=device) + (index % N * block)[:, None]  # (U, block)
        inside = own < S
        own = base[:, None] + own.clamp_max(S - 1)
        hidden = ~inside if gone is None else ~inside | gone[own]
        later = torch.ones(block, block, dtype=torch.bool, device=device).triu(1)
        for some in index.split(max(1, GATHERED // (block * (D + E)))):
            mask = later | hidden[some][:, None]
            out[some], mass[some] = _attend(
                units[some], keys[own[some]], values[own[some]], scale, mask
            )
    past = kept.past.flatten().long()
    steps = (past + STEP - 1) // STEP * STEP
    low = kept.ranges.reshape(-1, 2)[:, 0].long()
    counts, listed = kept.counts.flatten().long(), kept.keys.reshape(B * H * N, -1)
    for count in steps.unique().tolist():
        if not count:
            continue
        place = torch.arange(count, device=device)
        for some in (steps == count).nonzero()[:, 0].split(max(1, GATHERED // (count * (D + E)))):
            from_list = place < counts[some, None]  # (u, count)
            at = low[some, None] + place - counts[some, None]
            if listed.shape[1]:
                chosen = listed[some][:, place.clamp_max(listed.shape[1] - 1)].long()
                at = torch.where(from_list, chosen, at)
            spare = place >= past[some, None]
            at = base[some, None] + at.masked_fill(spare, 0)
            hidden = spare if gone is None else spare | gone[at]
            left_out = hidden[:, None] if bool(hidden.any()) else None
            o, l = _attend(units[some], keys[at], values[at], scale, left_out)
            both = torch.logaddexp(mass[some], l)
            weight = torch.exp(l - both).nan_to_num()[..., None].to(out.dtype)
            out[some] = torch.lerp(out[some], o, weight)
            mass[some] = both
    return out.view(B, H, N * block, E)[:, :, :T]


def _attend(
    q: Tensor, k: Tensor, v: Tensor, scale: float, hidden: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Attention of `q (U,P,D)` over `k (U,S,D)`, `v (U,S,E)`, and its log-sum-exp `(U, P)`.

    `hidden (U, 1 or P, S)` are the pairs that are left out; a query without a key gets zero.
    """
    graph = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
    if q.device.type == "cpu" and q.shape[2] == v.shape[2] and not graph:
        mask = None
        if hidden is not None:
            mask = torch.zeros(hidden.shape, dtype=q.dtype).masked_fill_(hidden, -torch.inf)
            mask = mask[:, None].expand(-1, 1, q.shape[1], -1)
        o, l = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q[:, None], k[:, None], v[:, None], attn_mask=mask, scale=scale
        )
        o, l = o[:, 0], l[:, 0]
        if hidden is not None:  # what the kernel gives for a row without keys is not defined
            alone = hidden.all(2)
            o, l = o.masked_fill(alone[..., None], 0.0), l.masked_fill(alone, -torch.inf)
        return o, l
    scores = q @ k.transpose(1, 2) * scale
    if hidden is not None:
        scores = scores.masked_fill(hidden, -torch.inf)
    l = scores.logsumexp(2)
    return (scores - l[..., None]).exp().nan_to_num() @ v, l

"""Exact attention over the keys that were kept: three forms of one formula.

    out_i = (1 − w_I) Σ_{j ∈ K(I) ∪ I≤i} softmax_j(q_i·k_j/√d) v_j + w_I v̄_I

for query i of block I, with the kept keys `K(I)`, the keys of its own block up to i if the call is
causal, and the mean value `v̄_I` of what was dropped with its weight `w_I`. In a pooled head the
softmax also has one key for every group g of keys, at the mean `k̄_Ig` of those of its keys that
block I dropped, with the score `q_i·k̄_Ig/√d + log n_Ig` for n dropped keys. A query that is exact
attends to every key: K(I) is then all of them, w_I is 0, and nothing is pooled.

`reference` is dense and masked, `by_torch` gathers keys and runs torch's own attention, `native` is
compiled C++.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

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
    q, k, v = (kept.rows_in_order(x) for x in (q, k, v))
    compute = reference if form == "reference" else by_torch
    out = kept.as_they_came(compute(q, k, v, kept, scale, kept.in_order(valid)))
    dropped = kept.dropped_of_queries(q.shape[2])
    if dropped is None:
        return out
    mean, weight = dropped
    return torch.lerp(out, mean.to(out), weight.to(out))


def reference(
    q: Tensor, k: Tensor, v: Tensor, kept: KeptKeys, scale: float, valid: Tensor | None = None
) -> Tensor:
    """The dense masked formula, for comparison; without the mean of what was dropped.

    Tokens are given by their place in the order of `kept`.
    """
    (_, H, T, _), (_, G, S, _) = q.shape, k.shape
    mask = kept.mask(T, S)
    if valid is not None:
        mask = mask & valid[:, None, None]
    k, v = (x.repeat_interleave(H // G, 1) for x in (k, v))
    scores = (q @ k.transpose(2, 3) * scale).masked_fill(~mask, -torch.inf)  # (B, H, T, S)
    if kept.pooled is None:
        return _pattern(scores) @ v
    means, values, terms = pooled_keys(k, v, kept, valid)
    unit = torch.arange(T, device=q.device) // kept.block
    more = torch.einsum("bhtd,bhtgd->bhtg", q, means[:, :, unit]) * scale + terms[:, :, unit]
    more = more.masked_fill(kept.exact_queries(T)[:, None, :, None], -torch.inf)
    pattern = _pattern(torch.cat([scores, more], 3))
    groups = torch.einsum("bhtg,bhtge->bhte", pattern[..., S:], values[:, :, unit])
    return pattern[..., :S] @ v + groups


def _pattern(scores: Tensor) -> Tensor:
    """The softmax of every row, zero in a row without keys, and so is its gradient."""
    alone = (scores == -torch.inf).all(-1, keepdim=True)
    return torch.softmax(scores.masked_fill(alone, 0.0), -1).masked_fill(alone, 0.0)


def pooled_keys(
    k: Tensor, v: Tensor, kept: KeptKeys, valid: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """What every unit dropped, in groups.

    Mean keys `(B,H,N,M,D)`, mean values `(B,H,N,M,E)`, and what is added to their scores, `log n
    (B,H,N,M)`: −∞ where nothing was dropped, and in heads that do not pool. `k (B,H,S,D)` and
    `v (B,H,S,E)` are repeated for grouped queries.
    """
    assert kept.pooled is not None
    S, size = k.shape[2], kept.group
    dropped = ~kept.listed_or_near(S)  # (B, H, N, S)
    if kept.causal:
        dropped &= torch.arange(S, device=k.device) < kept.ranges[..., :1]
    if valid is not None:
        dropped &= valid[:, None, None]
    short = -S % size
    dropped = torch.nn.functional.pad(dropped, (0, short)).unflatten(3, (-1, size)).to(k)
    number = dropped.sum(4)  # (B, H, N, M)
    means, values = (
        torch.einsum(
            "bhnmg,bhmgd->bhnmd",
            dropped,
            torch.nn.functional.pad(x, (0, 0, 0, short)).unflatten(2, (-1, size)),
        )
        / number.clamp_min(1)[..., None]
        for x in (k, v)
    )
    return means, values, (number * kept.pooled[:, None, None]).log()


def by_torch(
    q: Tensor, k: Tensor, v: Tensor, kept: KeptKeys, scale: float, valid: Tensor | None = None
) -> Tensor:
    """Gather the kept keys; units with about as many keys run as one batch of torch's attention.

    Tokens are given by their place. Own block, past and groups are attentions of their own, joined
    through their log-sum-exp ℓ: `out = (1 − w) o_own + w o_past`, `w = σ(ℓ_past − ℓ_own)`.
    """
    (B, H, T, D), (_, G, S, E), block = q.shape, v.shape, kept.block
    N, device = kept.counts.shape[2], q.device
    short = N * block - T
    rows = torch.nn.functional.pad(q, (0, 0, 0, short)) if short else q
    units = rows.reshape(B * H * N, block, D).contiguous()
    out, mass = units.new_zeros(B * H * N, block, E), units.new_full((B * H * N, block), -torch.inf)

    def join(some: Tensor, o: Tensor, l: Tensor) -> None:
        both = torch.logaddexp(mass[some], l)
        weight = torch.exp(l - both).nan_to_num()[..., None].to(out.dtype)
        out[some] = torch.lerp(out[some], o, weight)
        mass[some] = both

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
            mask = _added(later | hidden[some][:, None], q)
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
            added = _added(hidden[:, None], q) if bool(hidden.any()) else None
            join(some, *_attend(units[some], keys[at], values[at], scale, added))
    if kept.pooled is not None:
        for h in kept.pooled.nonzero()[:, 0].tolist():  # each takes much memory
            of, one = h // (H // G), slice(h, h + 1)
            rest = replace(
                kept,
                ranges=kept.ranges[:, one],
                keys=kept.keys[:, one],
                counts=kept.counts[:, one],
                pooled=kept.pooled[one],
            )
            means, means_of_values, terms = (
                x.flatten(0, 2)
                for x in pooled_keys(k[:, of : of + 1], v[:, of : of + 1], rest, valid)
            )
            left = (terms > -torch.inf).any(1)  # units that do not keep every key
            some = index.view(B, H, N)[:, h].flatten()[left]
            numbers = terms[left][:, None]
            join(some, *_attend(units[some], means[left], means_of_values[left], scale, numbers))
    out = out.view(B, H, N * block, E)[:, :, :T]
    return out if kept.exact is None else _with_exact(out, q, k, v, kept, scale, valid)


def _with_exact(
    out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kept: KeptKeys,
    scale: float,
    valid: Tensor | None,
) -> Tensor:
    """The output with the exact queries attended anew, to every key that they may see."""
    assert kept.exact is not None
    most = int((kept.exact[:, 1] - kept.exact[:, 0]).max())
    if most <= 0:
        return out
    begin, end = kept.exact.long().unsqueeze(2).unbind(1)  # (B, 1)
    # as many different rows of every input: one with fewer exact queries keeps the others' outputs
    rows = begin.clamp_max(q.shape[2] - most) + torch.arange(most, device=q.device)  # (B, most)
    at, ours = rows[:, None, :, None], ((rows >= begin) & (rows < end))[:, None, :, None]
    keys = torch.arange(k.shape[2], device=q.device)
    mask = keys <= at if kept.causal else torch.ones_like(keys, dtype=torch.bool)[None, None, None]
    if valid is not None:
        mask = mask & valid[:, None, None]
    some = q.gather(2, at.expand(-1, q.shape[1], -1, q.shape[3]))
    exact = scaled_dot_product_attention(some, k, v, mask, scale=scale, enable_gqa=True)
    at = at.expand(exact.shape)
    exact = torch.where(ours, exact.nan_to_num().to(out.dtype), out.gather(2, at))
    # in place where no gradient needs the output as it was: a copy takes longer than all of this
    return out.scatter(2, at, exact) if out.requires_grad else out.scatter_(2, at, exact)


def _added(hidden: Tensor, like: Tensor) -> Tensor:
    """What is added to the scores of pairs, −∞ to those that are hidden."""
    return like.new_zeros(hidden.shape).masked_fill_(hidden, -torch.inf)


def _attend(
    q: Tensor, k: Tensor, v: Tensor, scale: float, added: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Attention of `q (U,P,D)` over `k (U,S,D)`, `v (U,S,E)`, and its log-sum-exp `(U, P)`.

    `added (U, 1 or P, S)` is added to the scores; a query without a key gets zero.
    """
    graph = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
    if q.device.type == "cpu" and q.shape[2] == v.shape[2] and not graph:
        mask = None if added is None else added[:, None].expand(-1, 1, q.shape[1], -1)
        o, l = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q[:, None], k[:, None], v[:, None], attn_mask=mask, scale=scale
        )
        o, l = o[:, 0], l[:, 0]
        if added is not None:  # what the kernel gives for a row without keys is not defined
            alone = (added == -torch.inf).all(2)
            o, l = o.masked_fill(alone[..., None], 0.0), l.masked_fill(alone, -torch.inf)
        return o, l
    scores = q @ k.transpose(1, 2) * scale
    if added is not None:  # masked too: no gradient shall come from a row without keys
        scores = (scores + added).masked_fill(added == -torch.inf, -torch.inf)
    l = scores.logsumexp(2)
    return (scores - l[..., None]).exp().nan_to_num() @ v, l

"""The keys that every head of a layer keeps under its form, and the work that is left."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..kernels import native
from ..kernels.kept_keys import KeptKeys, KeyChoice
from .head_forms import LayerForms
from .kept_attention import Form
from .key_selection import choose_by_torch, sampled_rows


def keep_keys(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    forms: LayerForms,
    *,
    scale: float,
    valid: Tensor | None = None,
    form: Form = "auto",
) -> KeptKeys:
    """Return the keys that every block of queries keeps under its head's form."""
    (B, H, T, _), (_, G, S, _), E, causal = q.shape, k.shape, v.shape[3], forms.causal
    N, device = -(-T // forms.block), q.device
    starts = torch.arange(N, device=device) * forms.block
    windows = torch.tensor(
        [S if head.kind == "dense" else head.window for head in forms.heads], device=device
    )[:, None]
    ends = starts if causal else starts + forms.block + windows
    ranges = torch.stack(
        [(starts - windows).clamp_min(0), ends.expand(H, N).clamp_max(S)], -1
    )  # (H, N, 2)
    ranges = ranges.to(torch.int32).expand(B, H, N, 2).contiguous()
    chooses = any(head.chooses for head in forms.heads)
    width = max(S, forms.first) if chooses else forms.first
    corrects = any(head.correction for head in forms.heads)
    pooled = [head.kind == "pooled" for head in forms.heads]
    kept = KeptKeys(
        forms.block,
        causal,
        ranges,
        torch.empty(B, H, N, width, dtype=torch.int32, device=device),
        torch.zeros(B, H, N, dtype=torch.int32, device=device),
        q.new_zeros(B, H, N, E) if corrects else None,
        q.new_zeros(B, H, N) if corrects else None,
        torch.tensor(pooled, device=device) if any(pooled) else None,
        forms.group,
        forms.order(T, device),
    )
    kept.exact = _exact_queries(forms, kept, T, valid)
    _keep_first(forms, kept, kept.in_order(valid))
    by_native = native.computes("auto" if form == "reference" else form, q, k, v)
    choose = native.choose if by_native else choose_by_torch
    ranked = [h for h, head in enumerate(forms.heads) if head.kind == "ranked"]
    alike: dict[tuple[int, int, bool], list[int]] = {}
    for h, head in enumerate(forms.heads):
        if head.chooses:
            rank = head.rank if head.kind == "ranked" else 0
            alike.setdefault((head.samples, rank, head.kind == "pooled"), []).append(h)
    for (samples, rank, pools), chosen in alike.items():
        of = [h // (H // G) for h in chosen]  # their key-value heads
        x, y, places = q, k, [chosen, of, of, chosen]
        if rank:
            assert forms.to_x is not None and forms.to_y is not None
            at = [ranked.index(h) for h in chosen]
            x = q[:, chosen] @ forms.to_x[at, :, :rank].to(q)
            y = k[:, of] @ forms.to_y[at, :, :rank].to(q)
            places = [list(range(len(chosen)))] * 2 + [of, chosen]
        choice = KeyChoice(
            torch.tensor(places, dtype=torch.int32, device=device),
            sampled_rows(T, forms.block, samples, forms.stride, causal, device),
            torch.tensor([float(forms.heads[h].threshold) for h in chosen], device=device),
            forms.first,
        )
        # a pooled head needs no mean of all that it drops
        into = replace(kept, mean=None, weight=None) if pools else kept
        choose(x, y, v, choice, into, scale, valid)
    if kept.weight is not None:
        kept.weight *= torch.tensor([h.correction for h in forms.heads], device=device)[:, None]
    return kept


def _exact_queries(
    forms: LayerForms, kept: KeptKeys, T: int, valid: Tensor | None
) -> Tensor | None:
    """The queries that attend to every key, from and up to, `(B, 2)`.

    They are counted from the first, or back from the last token that is no padding.
    """
    number = forms.last if forms.causal else forms.first
    if forms.plain or not number or not T:
        return None
    real = kept.in_order(valid)
    if real is None:
        real = torch.ones(1, T, dtype=torch.bool, device=kept.counts.device)
    begin = real.int().argmax(1)
    end = (T - real.flip(1).int().argmax(1)) * real.any(1)
    if forms.causal:
        begin = begin.maximum(end - number)
    else:
        end = end.minimum(begin + number)
    return torch.stack([begin, end], 1).to(torch.int32).expand(len(kept.counts), 2).contiguous()


def _keep_first(forms: LayerForms, kept: KeptKeys, valid: Tensor | None) -> None:
    """List the first keys that are no padding for heads with a window, where it begins later."""
    heads = [h for h, head in enumerate(forms.heads) if head.kind == "window"]
    if not heads or not forms.first:
        return
    counts = kept.counts
    start = torch.zeros(len(counts), dtype=torch.int32, device=counts.device)
    if valid is not None:
        start = valid.int().argmax(1).to(torch.int32)
    low = kept.ranges[:, heads, :, 0]  # (B, h, N)
    counts[:, heads] = (low - start[:, None, None]).clamp(0, forms.first)
    first = start[:, None] + torch.arange(forms.first, dtype=torch.int32, device=counts.device)
    kept.keys[:, heads, :, : forms.first] = first[:, None, None].expand(*low.shape, forms.first)


def work_shares(kept: KeptKeys, forms: LayerForms, T: int, D: int) -> Tensor:
    """The work of every head as a share of full attention's, `(H,)` float64.

    Causal attention has `T²/2` pairs per input, both ways `T²`. A pair of a sampled row counts
    half, since it meets no values, and `rank/D` of that if it is ranked; where the mean value of
    what is dropped is put back, a row per block counts half for it. A pair with the mean of a group
    counts as any other.
    """
    full = T * T / 2 if kept.causal else float(T * T)
    B = len(kept.counts)
    shares = kept.pairs(T).cpu() / (B * full)
    for h, head in enumerate(forms.heads):
        if head.chooses:
            rows = head.samples / forms.block
            score = (head.rank / D if head.kind == "ranked" else 1.0) / 2
            shares[h] += rows * score + bool(head.correction) / forms.block / 2
        elif head.kind == "dense":
            shares[h] = 1.0
    return shares

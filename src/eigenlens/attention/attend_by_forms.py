"""Attention of a layer with a form for each head.

Keys are chosen (`head_keys`), then attended (`kept_attention`).
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ..errors import EigenlensError
from ..kernels import native
from .head_forms import LayerForms
from .head_keys import keep_keys
from .kept_attention import Form, attend_kept
from .precision import at_least_float32


def planned_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    forms: LayerForms,
    *,
    scale: float | None = None,
    valid: Tensor | None = None,
    form: Form = "auto",
) -> Tensor:
    """Attend with a form for each head.

    Parameters
    ----------
    q : Tensor
        Queries `(B, H, T, D)`.
    k : Tensor
        Keys `(B, G, T, D)`; H is a multiple of G.
    v : Tensor
        Values `(B, G, T, E)`.
    forms : LayerForms
        One form for each of the H query heads.
    scale : float, optional
        Factor of the scores. Default: `1/√D`.
    valid : Tensor, optional
        Which tokens are no padding, `(B, T)` bool. Default: all.
    form : {"auto", "native", "torch", "reference"}, default "auto"
        Who computes, as for `attend_kept`.

    Returns
    -------
    Tensor
        The output `(B, H, T, E)`; half precision is computed in float32.

    Raises
    ------
    EigenlensError
        If there is not one form for each head, or there are not as many queries as keys.

    Examples
    --------
    >>> forms = LayerForms((HeadForm("blocks", threshold=5e-4),) * q.shape[1])
    >>> planned_attention(q, k, v, forms).shape      # (B, H, T, E)
    """
    (_, H, T, D), S = q.shape, k.shape[2]
    if len(forms.heads) != H or T != S:
        raise EigenlensError(
            f"{len(forms.heads)} forms were given for {H} heads, {T} queries and {S} keys; give"
            " one form per head, and as many queries as keys"
        )
    scale, asked = 1 / math.sqrt(D) if scale is None else scale, q.dtype
    q, k, v = (at_least_float32(x) for x in (q, k, v))
    dense = [h for h, head in enumerate(forms.heads) if head.kind == "dense"]
    with torch.autocast(q.device.type, enabled=False):
        if dense and form != "reference" and not native.computes(form, q, k, v):
            out = _dense_apart(q, k, v, forms, dense, scale, valid)
        else:
            out = _attend(q, k, v, forms, scale, valid, form)
    return out.to(asked)


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    forms: LayerForms,
    scale: float,
    valid: Tensor | None,
    form: Form,
) -> Tensor:
    """Choose the keys of all heads together, and attend to them."""
    kept = keep_keys(q, k, v, forms, scale=scale, valid=valid, form=form)
    return attend_kept(q, k, v, kept, scale, valid, form)


def _dense_apart(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    forms: LayerForms,
    dense: list[int],
    scale: float,
    valid: Tensor | None,
) -> Tensor:
    """Dense heads by torch's own attention, which gathers nothing, and the others by theirs."""
    H, each = q.shape[1], q.shape[1] // k.shape[1]
    if len(dense) == H:
        return full_attention(q, k, v, forms.causal, scale, valid)
    others = [h for h in range(H) if h not in dense]

    def of(heads: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        groups = [h // each for h in heads]
        return q[:, heads], k[:, groups], v[:, groups]

    out = q.new_empty(*q.shape[:3], v.shape[3])
    out[:, dense] = full_attention(*of(dense), forms.causal, scale, valid)
    rest = replace(forms, heads=tuple(forms.heads[h] for h in others))
    out[:, others] = _attend(*of(others), rest, scale, valid, "torch")
    return out


def full_attention(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, valid: Tensor | None
) -> Tensor:
    """Full attention by torch's own kernel; zero for a query without a key."""
    mask, T = None, q.shape[2]
    if valid is not None:
        mask = valid[:, None, None].expand(len(q), 1, T, T)
        if causal:
            mask = mask & torch.ones(T, T, dtype=torch.bool, device=q.device).tril()
    out = scaled_dot_product_attention(
        q, k, v, mask, is_causal=causal and mask is None, scale=scale, enable_gqa=True
    )
    return out if mask is None else out.nan_to_num()

"""The menu of a head: what every form would lose and cost, tried on a few inputs.

For an option with output `o` where the true output is `t`, and with the gradient g of the task with
respect to it, `x_i = g_i · (o_i − t_i)` is its effect at query i. For a language model the error is
`Σ_i x_i²`, the second-order view of what it does to the losses of all tokens. An input with one
embedding has one effect, `x = Σ_i x_i`, and the error `x²`: what all queries err alike adds up.
Putting the dropped mass ρ back at its mean value v̄ with weight β changes the output by `β d_i`,
`d_i = ρ (v̄ − o_i)`, so that with `y_i = g_i·d_i`

    error(β) = Σ (x_i + β y_i)²,   least at   β = −Σ x_i y_i / Σ y_i², cut to [0, 1].

The cost of an option is measured seconds (`calibration`); its pairs stand beside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..attention.attend_by_forms import full_attention
from ..attention.feature_rank import joint_subspace
from ..attention.head_forms import HeadForm, LayerForms
from ..attention.head_keys import keep_keys, work_shares
from ..attention.kept_attention import attend_kept
from ..captures import AttentionCall
from .gradients import TaskGradients
from .sparse_plan import SHORTEST, plain_form

THRESHOLDS = (32, 16, 8, 4, 3, 2, 1.4, 1, 0.7, 0.5, 0.25, 0.125)
"""Thresholds that are tried, in units of uniform attention, 1/T."""
RANKED = (16, 4, 2, 1, 0.5)
RANK, RANKED_SAMPLES = 16, 8
POOLED = (32, 16, 8, 4, 2, 1, 0.5)
"""Only both ways: in language models pooled heads lose as much as others of the same cost."""
WINDOWS = (256, 1024)
SAMPLES = 4


@dataclass
class Tried:
    """What every option of every head of a layer loses and costs, summed over inputs.

    Shapes `(options, H)`: the sums of x², xy and y², the share of the pairs that is computed, and
    the counts that seconds are made of: pairs that are attended and pairs of sampled rows.
    """

    options: list[HeadForm]
    causal: bool
    length: int
    shape: tuple[int, int]  # width of keys and of values
    to_x: Tensor  # (H, D, R)
    to_y: Tensor
    x: Tensor
    xy: Tensor
    y: Tensor
    share: Tensor
    pairs: Tensor
    sampled: Tensor
    inputs: int = 1
    before_picture: int | None = None

    def add(self, other: Tried) -> None:
        for name in ("x", "xy", "y", "share", "pairs", "sampled"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.inputs += other.inputs

    @property
    def correction(self) -> Tensor:
        """The best β of every option and head."""
        return (-self.xy / self.y.clamp_min(1e-30)).clamp(0, 1)

    @property
    def error(self) -> Tensor:
        """The error of every option and head with its best β."""
        b = self.correction
        return (self.x + 2 * b * self.xy + b * b * self.y).clamp_min(0)

    def forms(self, chosen: Sequence[int]) -> LayerForms:
        """The forms of a layer from one option per head."""
        b = self.correction
        heads = tuple(
            replace(self.options[i], correction=round(float(b[i, h]), 4))
            if _fits_correction(self.options[i])
            else self.options[i]
            for h, i in enumerate(chosen)
        )
        ranked = [h for h, head in enumerate(heads) if head.kind == "ranked"]
        maps = (self.to_x[ranked], self.to_y[ranked]) if ranked else (None, None)
        return LayerForms(
            heads, self.causal, to_x=maps[0], to_y=maps[1], before_picture=self.before_picture
        )


def _fits_correction(option: HeadForm) -> bool:
    """Whether β is fitted: something is dropped for good."""
    return option.chooses and option.kind != "pooled"


def options_of(length: int, dimension: int, causal: bool) -> list[HeadForm]:
    """The menu for inputs of a length: dense first."""
    found = [HeadForm()]
    found += [HeadForm("window", window=w) for w in WINDOWS if 2 * w <= length]
    found += [HeadForm("blocks", min(c / length, 1.0), samples=SAMPLES) for c in THRESHOLDS]
    if dimension >= 2 * RANK:
        found += [
            HeadForm("ranked", min(c / length, 1.0), window=128, samples=RANKED_SAMPLES, rank=RANK)
            for c in RANKED
        ]
    if not causal:
        found += [HeadForm("pooled", min(c / length, 1.0), samples=SAMPLES) for c in POOLED]
    return found


def try_options(
    call: AttentionCall,
    gradients: TaskGradients,
    before: Tried | None = None,
    before_picture: int | None = None,
) -> Tried | None:
    """Try every option on one call; None if no plan could serve it.

    `before` is what an earlier input found: its coordinates are used again. `before_picture` is
    for a vision model: how many tokens stand before the patches.
    """
    plain, (_, H, T, D) = plain_form(call), call.q.shape
    if plain is None or any(call.site not in grads for grads in gradients.sets):
        return None
    if SHORTEST * LayerForms(()).block >= T:
        return None
    causal, valid = plain
    before_picture = None if causal else before_picture
    options = options_of(T, D, causal)
    to_x, to_y = _coordinates(call, valid) if before is None else (before.to_x, before.to_y)
    true = full_attention(call.q, call.k, call.v, causal, call.scale, valid)
    real = None if valid is None else valid[:, None, :, None]
    q, k, v = call.q, call.k, call.v
    rows: list[dict[str, Tensor]] = []
    for option in options:
        mapped = (to_x, to_y) if option.kind == "ranked" else (None, None)
        asked = replace(option, correction=1.0) if _fits_correction(option) else option
        forms = LayerForms(
            (asked,) * H, causal, to_x=mapped[0], to_y=mapped[1], before_picture=before_picture
        )
        zero = torch.zeros(H, dtype=torch.float64)
        kept = keep_keys(q, k, v, forms, scale=call.scale, valid=valid)
        row = {
            "x": zero,
            "xy": zero,
            "y": zero,
            "share": work_shares(kept, forms, T, D) * len(q),
            "pairs": kept.pairs(T).cpu(),
            "sampled": zero + _sampled(option, forms, T, causal) * len(q),
        }
        if option.kind != "dense":
            dropped = kept.dropped_of_queries(T)
            out = attend_kept(q, k, v, replace(kept, mean=None, weight=None), call.scale, valid)
            gap, change = out - true, torch.zeros_like(out)
            if dropped is not None:
                mean, weight = dropped
                change = (mean - out) * weight
            if real is not None:
                gap, change = gap * real, change * real
            a, b = (gradients.effects(call.site, d) for d in (gap, change))  # (sets, B, H, T or 1)
            for name, product in (("x", a * a), ("xy", a * b), ("y", b * b)):
                row[name] = product.mean(0).sum((0, 2)).cpu()
        rows.append(row)
    sums = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    shape = (D, v.shape[3])
    maps = (to_x.cpu(), to_y.cpu())
    return Tried(
        options,
        causal,
        T,
        shape,
        *maps,
        **sums,
        inputs=len(q),
        before_picture=before_picture,
    )


def _sampled(option: HeadForm, forms: LayerForms, T: int, causal: bool) -> float:
    """Pairs of the sampled rows of one input."""
    if not option.chooses:
        return 0.0
    return option.samples / forms.block * (T * T / 2 if causal else T * T)


def _coordinates(call: AttentionCall, valid: Tensor | None) -> tuple[Tensor, Tensor]:
    """The first coordinates of the joint subspace of a call's queries and keys, `(H, D, R)`."""
    weight = None if valid is None else valid[:, None, :, None].to(call.q)
    q = call.q if weight is None else call.q * weight
    k, number = call.keys, call.q.shape[0] * call.q.shape[2] if weight is None else weight.sum()
    mean = (k if weight is None else k * weight).sum((0, 2), keepdim=True) / number
    k = k - mean if weight is None else (k - mean) * weight
    queries = (q.transpose(2, 3).double() @ q.double()).sum(0) / float(number)
    keys = (k.transpose(2, 3).double() @ k.double()).sum(0) / float(number)
    to_x, to_y = joint_subspace(queries, keys, min(RANK, q.shape[3]))
    return to_x.float(), to_y.float()

"""How each head of a layer attends: to all keys, to a window, or to keys that a few rows choose.

| form | keys of a block of queries |
|---|---|
| dense | all of them |
| window | the first keys (sinks) and the near ones; nothing is chosen |
| blocks | these, and all that a few exact rows look at |
| ranked | the same, where rows are scored in `rank` coordinates of queries and keys |

Whatever is kept is attended exactly (`kept_attention`). Both ways, as in encoders and vision
models, the first queries are special tokens that no neighbour speaks for: they attend to every key.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ..errors import EigenlensError
from ..kernels import native
from ..kernels.kept_keys import KeptKeys, KeyChoice
from .kept_attention import Form, attend_kept
from .key_selection import choose_by_torch, sampled_rows
from .picture_order import picture_order
from .precision import at_least_float32

KINDS = ("dense", "window", "blocks", "ranked")
SHARED = ("block", "first", "stride")
"""What the heads of a layer share."""


@dataclass(frozen=True)
class HeadForm:
    """How one head attends.

    `threshold` is the least mean probability, in `samples` rows, of a key that is kept; `window`
    the near keys that are always kept, before a block of queries and both ways also after it;
    `rank` the coordinates that rows are scored in; `correction` the share of the dropped mass that
    is put back as its mean value.
    """

    kind: Literal["dense", "window", "blocks", "ranked"] = "dense"
    threshold: float = 0.0
    window: int = 64
    samples: int = 4
    rank: int = 0
    correction: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise EigenlensError(f"a head attends by one of {', '.join(KINDS)}, not {self.kind!r}")
        for name in ("threshold", "correction"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise EigenlensError(f"{name} of a head must be from 0 to 1, not {value}")
        if self.window < 0 or self.rank < 0 or self.samples < 1:
            raise EigenlensError(
                f"window and rank of a head must be 0 or more, and samples 1 or more, not {self}"
            )
        if self.kind == "ranked" and not self.rank:
            raise EigenlensError("a ranked head needs a rank of at least 1")

    @property
    def chooses(self) -> bool:
        """Whether rows are scored to choose keys."""
        return self.kind in {"blocks", "ranked"}


@dataclass(frozen=True)
class LayerForms:
    """The forms of all query heads of a layer, with what they share.

    `causal` says for which calls they are: query i sees keys j ≤ i, or every key. Queries are taken
    in blocks of `block`; the `first` keys are always kept; sampled rows lie `stride` apart in a
    causal call. `to_x`, `to_y (n, D, R)` are the coordinates of the n ranked
    heads, in their order. `before_picture` is for vision models: how many tokens stand before the
    patches of a square picture, which are then taken along a curve (`picture_order`).
    """

    heads: tuple[HeadForm, ...]
    causal: bool = True
    block: int = 128
    first: int = 4
    stride: int = 16
    to_x: Tensor | None = None
    to_y: Tensor | None = None
    before_picture: int | None = None

    def __post_init__(self) -> None:
        if self.causal and self.before_picture is not None:
            raise EigenlensError("patches of a picture have an order only in attention both ways")
        if self.block < 1 or self.stride < 1 or self.first < 0:
            raise EigenlensError(
                f"block and stride must be at least 1 and first at least 0, not {self.block},"
                f" {self.stride} and {self.first}"
            )
        for form in self.heads:
            reach = (form.samples - 1) * self.stride
            if self.causal and form.chooses and form.window < reach:
                raise EigenlensError(
                    f"a window of {form.window} keys must cover the sampled rows, which reach back"
                    f" {reach} tokens"
                )
        ranked = [form for form in self.heads if form.kind == "ranked"]
        given = 0 if self.to_x is None or self.to_y is None else len(self.to_x)
        if len(ranked) != given:
            raise EigenlensError(
                f"{len(ranked)} ranked heads need as many coordinates, and {given} are given"
            )

    @property
    def plain(self) -> bool:
        """Whether every head is dense."""
        return all(form.kind == "dense" for form in self.heads)

    def order(self, tokens: int, device: torch.device | str = "cpu") -> Tensor | None:
        """The order that tokens are taken in, `(tokens,)`; None: as they come."""
        if self.before_picture is None:
            return None
        order = picture_order(tokens, self.before_picture)
        return None if order is None else order.to(device)

    def record(self) -> dict[str, Any]:
        """The forms as plain JSON values, without the coordinates."""
        shared = {name: getattr(self, name) for name in SHARED}
        picture = {} if self.before_picture is None else {"before_picture": self.before_picture}
        heads = [asdict(form) for form in self.heads]
        return {"causal": self.causal, **shared, **picture, "heads": heads}

    @classmethod
    def from_record(
        cls, record: Mapping[str, Any], to_x: Tensor | None = None, to_y: Tensor | None = None
    ) -> LayerForms:
        """Read the forms of a layer; `to_x` and `to_y` are the coordinates of its ranked heads."""
        shared = {name: int(record[name]) for name in SHARED}
        heads = tuple(HeadForm(**head) for head in record["heads"])
        picture = record.get("before_picture")
        return cls(
            heads,
            bool(record["causal"]),
            **shared,
            to_x=to_x,
            to_y=to_y,
            before_picture=None if picture is None else int(picture),
        )


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
    order = forms.order(T, q.device)
    q, k, v, valid = in_order(order, q, k, v, valid)
    dense = [h for h, head in enumerate(forms.heads) if head.kind == "dense"]
    if dense and form != "reference" and not native.computes(form, q, k, v):
        out = _dense_apart(q, k, v, forms, dense, scale, valid)
    else:
        out = _attend(q, k, v, forms, scale, valid, form)
    return as_it_was(order, out).to(asked)


def in_order(
    order: Tensor | None, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Queries, keys, values and valid tokens in an order, `(T,)`; None: as they come."""
    if order is None:
        return q, k, v, valid
    valid = None if valid is None else valid[:, order]
    return q[:, :, order], k[:, :, order], v[:, :, order], valid


def as_it_was(order: Tensor | None, x: Tensor) -> Tensor:
    """Rows `(B, H, T, E)` back from an order."""
    return x if order is None else torch.empty_like(x).index_copy(2, order, x)


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
    out = attend_kept(q, k, v, kept, scale, valid, form)
    if forms.causal or forms.plain or not forms.first:
        return out
    rows = first_rows(forms, q, valid)
    mask = None if valid is None else valid[:, None, None]
    exact = scaled_dot_product_attention(
        q.gather(2, rows.expand(-1, q.shape[1], -1, q.shape[3])),
        k,
        v,
        mask,
        scale=scale,
        enable_gqa=True,
    )
    rows = rows.expand(exact.shape)
    return out.scatter(2, rows, exact.nan_to_num())


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


def first_rows(forms: LayerForms, q: Tensor, valid: Tensor | None) -> Tensor:
    """The first queries that are no padding, which attend to every key if a call is both ways.

    Their places `(B, 1, first, 1)`.
    """
    B, T = q.shape[0], q.shape[2]
    rows = torch.arange(min(forms.first, T), device=q.device).expand(B, -1)
    if valid is not None:
        rows = (rows + valid.int().argmax(1)[:, None]).clamp_max(T - 1)
    return rows[:, None, :, None]


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
    kept = KeptKeys(
        forms.block,
        causal,
        ranges,
        torch.empty(B, H, N, width, dtype=torch.int32, device=device),
        torch.zeros(B, H, N, dtype=torch.int32, device=device),
        q.new_zeros(B, H, N, E) if corrects else None,
        q.new_zeros(B, H, N) if corrects else None,
    )
    _keep_first(forms, kept, valid)
    by_native = native.computes("auto" if form == "reference" else form, q, k, v)
    choose = native.choose if by_native else choose_by_torch
    ranked = [h for h, head in enumerate(forms.heads) if head.kind == "ranked"]
    alike: dict[tuple[int, int], list[int]] = {}  # heads by samples and rank
    for h, head in enumerate(forms.heads):
        if head.chooses:
            rank = head.rank if head.kind == "ranked" else 0
            alike.setdefault((head.samples, rank), []).append(h)
    for (samples, rank), chosen in alike.items():
        group = [h // (H // G) for h in chosen]
        x, y, places = q, k, [chosen, group, group, chosen]
        if rank:
            assert forms.to_x is not None and forms.to_y is not None
            at = [ranked.index(h) for h in chosen]
            x = q[:, chosen] @ forms.to_x[at, :, :rank].to(q)
            y = k[:, group] @ forms.to_y[at, :, :rank].to(q)
            places = [list(range(len(chosen)))] * 2 + [group, chosen]
        choice = KeyChoice(
            torch.tensor(places, dtype=torch.int32, device=device),
            sampled_rows(T, forms.block, samples, forms.stride, causal, device),
            torch.tensor([forms.heads[h].threshold for h in chosen], device=device),
            forms.first,
        )
        choose(x, y, v, choice, kept, scale, valid)
    if kept.weight is not None:
        kept.weight *= torch.tensor([h.correction for h in forms.heads], device=device)[:, None]
    return kept


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
    half, since it meets no values, and `rank/D` of that if it is ranked; with a correction it
    counts once more for its values.
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

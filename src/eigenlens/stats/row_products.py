"""Sums over the rows of score matrices, each mask in its cheapest exact form.

A row is `s_i ∈ R^S`, the scores of query i over all keys; pairs that the mask excludes have no value and enter no sum.
With `v_ij ∈ {0, 1}` marking the pairs that count, every function here returns, per head, summed over the inputs b and
the queries i of a batch,

    second_jk = Σ s_ij s_ik v_ij v_ik          first_jk = Σ s_ij v_ij v_ik          count_jk = Σ v_ij v_ik

and the same two sums for rows with their own mean removed, `s'_ij = s_ij − r_i`, `r_i = mean_j s_ij` over valid keys.
Without a mask `first` does not depend on k and the sums of s' follow from those of s, so they are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..capture import AttentionCall

BLOCK = 64
"""Keys per block of the causal form: its masked diagonal costs n²·BLOCK/2 against n²·D for the factorised rest."""


@dataclass
class RowSums:
    """The sums of the module docstring. Masked: all (…, S, S). Unmasked: `first` (H, S, 1), `count` (1, 1, 1), no s' sums."""

    rows: Tensor  # () number of valid queries
    second: Tensor  # (H, S, S)
    first: Tensor  # (H, S, S) or (H, S, 1)
    count: Tensor  # (H or 1, S, S) or (1, 1, 1)
    second_less_mean: Tensor | None = None  # (H, S, S)
    first_less_mean: Tensor | None = None  # (H, S, S)

    @property
    def masked(self) -> bool:
        return self.second_less_mean is not None

    def as_masked(self) -> RowSums:
        """The same sums in the masked form: all keys were valid in every row."""
        if self.masked:
            return self
        H, S, _ = self.second.shape
        less = self.second - self.second.mean(1, keepdim=True)
        less = less - less.mean(2, keepdim=True)  # (I − 11ᵀ/S) second (I − 11ᵀ/S)
        first = self.first - self.first.mean(1, keepdim=True)
        wide = (H, S, S)
        return RowSums(self.rows, self.second, self.first.expand(wide), self.count.expand(1, S, S), less, first.expand(wide))

    def plus(self, other: RowSums) -> RowSums:
        if self.masked != other.masked:
            return self.as_masked().plus(other.as_masked())
        count = self.count + other.count  # per head where one of them is
        less = None if self.second_less_mean is None else self.second_less_mean + other.second_less_mean
        first_less = None if self.first_less_mean is None else self.first_less_mean + other.first_less_mean
        return RowSums(self.rows + other.rows, self.second + other.second, self.first + other.first, count, less, first_less)

    def add_(self, other: RowSums) -> RowSums:
        """`plus` in place where the layouts agree: the pass over the data allocates nothing."""
        if self.masked != other.masked or self.count.shape != other.count.shape or not self.second.is_contiguous():
            return self.plus(other)
        for mine, theirs in zip(self.tensors().values(), other.tensors().values()):
            mine.add_(theirs)
        return self

    def tensors(self) -> dict[str, Tensor]:
        named = {"rows": self.rows, "second": self.second, "first": self.first, "count": self.count}
        if self.second_less_mean is not None and self.first_less_mean is not None:
            named |= {"second_less_mean": self.second_less_mean, "first_less_mean": self.first_less_mean}
        return named

    def double(self) -> RowSums:
        return RowSums(**{name: x.to(torch.float64).contiguous() for name, x in self.tensors().items()})


def row_sums(call: AttentionCall, of: str = "scores") -> RowSums:
    """The sums over the rows of one call, by the cheapest exact way its mask allows."""
    form = call.mask_shape.form
    if of == "scores" and call.linear:
        if form == "full":
            return _full(call)
        if form == "rectangle":
            return _rectangle(call)
        if form == "causal":
            return _causal(call)
    values = call.pattern() if of == "pattern" else call.scores(fill=0.0)  # (B, H, T, S)
    if form == "full":
        B, _, T, _ = values.shape
        count = torch.tensor(float(B * T))
        return RowSums(count, _gram(values), values.sum((0, 2))[..., None], count.reshape(1, 1, 1))
    valid = call.valid()
    return _fixed(values, valid) if valid.shape[0] == 1 else _varied(values, valid)


def _over_batch(left: Tensor, right: Tensor) -> Tensor:
    """`Σ_b left_b right_bᵀ` per head: (B, H, m, c) × (B, H, n, c) → (H, m, n), one GEMM over the joined (b, c)."""
    B, H, m, c = left.shape
    n = right.shape[2]
    joined = left.permute(1, 2, 0, 3).reshape(H, m, B * c)
    return joined @ right.permute(1, 0, 3, 2).reshape(H, B * c, n)


def _gram(z: Tensor) -> Tensor:
    """`Σ_b z_bᵀ z_b` per head: (B, H, T, S) → (H, S, S)."""
    z = z.transpose(2, 3)
    return _over_batch(z, z)


def _full(call: AttentionCall) -> RowSums:
    """No mask: `Σ_i s_i s_iᵀ = K (QᵀQ) Kᵀ`, n²d instead of n³, and no score is formed."""
    k = call.keys
    B, _, T, _ = call.q.shape
    second = _over_batch(k @ call.query_gram, k)
    first = (k * call.scaled_q.sum(2, keepdim=True)).sum((0, 3))  # Σ_b K_b Σ_i q_i: (H, S)
    rows = torch.tensor(float(B * T))
    return RowSums(rows, second, first[..., None], rows.reshape(1, 1, 1))


def _rectangle(call: AttentionCall) -> RowSums:
    """Padding: the same with the rows of padded queries and keys at zero; row means taken over the valid keys."""
    shape = call.mask_shape
    assert shape.queries is not None and shape.keys is not None
    valid = shape.keys.to(call.q.dtype)  # (B, S)
    number = shape.queries.to(call.q.dtype).sum(1)  # (B,) valid queries
    k = call.keys * valid[:, None, :, None]
    centre = k.sum(2, keepdim=True) / valid.sum(1).clamp_min(1)[:, None, None, None]
    less = (k - centre) * valid[:, None, :, None]  # s'_ij = q_i · (k_j − mean k)
    total = call.valid_queries.sum(2, keepdim=True)  # (B, H, 1, D)

    def sums(keys: Tensor) -> tuple[Tensor, Tensor]:
        column = (keys * total).sum(3)  # (B, H, S)
        return _over_batch(keys @ call.query_gram, keys), torch.einsum("bhj,bk->hjk", column, valid)

    (second, first), (second_less, first_less) = sums(k), sums(less)
    count = torch.einsum("b,bj,bk->jk", number, valid, valid)[None]
    return RowSums(number.sum(), second, first, count, second_less, first_less)


def _causal(call: AttentionCall) -> RowSums:
    """Causal, no padding: query blocks after a key block see it whole and factorise; only the diagonal forms scores.

        second_jk = k_jᵀ (Σ_{i ≥ e} q_i q_iᵀ) k_k  +  Σ_{i in block} s_ij s_ik      for keys k of block [s, e), j < e
    """
    q, k = call.scaled_q, call.keys
    B, H, n, _ = q.shape
    second = q.new_zeros(H, n, n)
    later = q.new_zeros(B, H, q.shape[3], q.shape[3])  # Σ_{i ≥ e} q_i q_iᵀ
    for start in reversed(range(0, n, BLOCK)):
        end = min(start + BLOCK, n)
        block, before = q[:, :, start:end], k[:, :, :end]
        z = (block @ before.transpose(2, 3)).tril(start)  # (B, H, e − s, e)
        part = _over_batch(before @ later, k[:, :, start:end])
        part += _over_batch(z.transpose(2, 3), z[..., start:].transpose(2, 3))
        second[:, :end, start:end] = part
        second[:, start:end, :end] = part.transpose(1, 2)
        later = later + block.transpose(2, 3) @ block
    seen = torch.arange(1, n + 1, device=q.device, dtype=q.dtype)[:, None]
    mean = (q * (k.cumsum(2) / seen)).sum(3)  # r_i: (B, H, n)
    maps = _over_batch(q, k), _over_batch(q * mean[..., None], k)  # Σ_b s_ij, Σ_b r_i s_ij: (H, n, n)
    valid = torch.ones(1, n, n, device=q.device, dtype=q.dtype).tril()
    return _with_fixed_mask(second, maps[0] * valid, maps[1] * valid, mean, valid)


def _fixed(z: Tensor, valid: Tensor) -> RowSums:
    """Any mask that is the same in every input, (1, H or 1, T, S); invalid entries of z are zero."""
    mask = valid[0].to(z.dtype)  # (H or 1, T, S)
    mean = z.sum(3) / mask.sum(2).clamp_min(1)  # r_i: (B, H, T)
    return _with_fixed_mask(_gram(z), z.sum(0), (z * mean[..., None]).sum(0), mean, mask)


def _with_fixed_mask(second: Tensor, sum_map: Tensor, mean_map: Tensor, mean: Tensor, mask: Tensor) -> RowSums:
    """Fill in the sums that follow from the maps `Σ_b s_ij` and `Σ_b r_i s_ij` when v does not depend on the input."""
    B = mean.shape[0]
    first = sum_map.transpose(1, 2) @ mask  # (H, S, S)
    cross = mean_map.transpose(1, 2) @ mask
    squares = mask.transpose(1, 2) @ (mean.square().sum(0)[..., None] * mask)
    count = B * (mask.transpose(1, 2) @ mask)
    second_less = second - cross - cross.transpose(1, 2) + squares
    first_less = first - mask.transpose(1, 2) @ (mean.sum(0)[..., None] * mask)
    rows = (mask.any(2).sum(1).max() * B).to(second.dtype)
    return RowSums(rows, second, first, count, second_less, first_less)


def _varied(z: Tensor, valid: Tensor) -> RowSums:
    """Any mask at all, (B, H or 1, T, S): n³ a head and input."""
    mask = valid.to(z.dtype)
    less = (z - z.sum(3, keepdim=True) / mask.sum(3, keepdim=True).clamp_min(1)) * mask
    wide = mask.expand(z.shape)

    def first(x: Tensor) -> Tensor:
        return _over_batch(x.transpose(2, 3), wide.transpose(2, 3))

    return RowSums(mask.any(3).any(1).sum().to(z.dtype), _gram(z), first(z), _gram(mask), _gram(less), first(less))

"""Sums over the rows of score matrices, each mask in its cheapest exact form.

A row is `s_i ∈ R^S`, the scores of query i over all keys; pairs that the mask excludes have no
value and enter no sum. With `v_ij ∈ {0, 1}` marking the pairs that count, every function here
returns, per head, summed over the inputs b and the queries i of a batch,

    second_jk = Σ s_ij s_ik v_ij v_ik          first_jk = Σ s_ij v_ij v_ik          count_jk = Σ
    v_ij v_ik

and the same two sums for rows with their own mean removed, `s'_ij = s_ij − r_i`, `r_i = mean_j
s_ij` over valid keys. Without a mask `first` does not depend on k and the sums of s' follow from
those of s, so they are left out. If the mask is the same in every input, they follow at the end
from two maps, `Σ_b s_ij` and `Σ_b r_i s_ij` (`MapSums`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..captures import AttentionCall
from .workspace import Workspace

BLOCK = 64
"""Keys per block of the causal form.

Its masked diagonal costs n²·BLOCK/2, the factorised rest n²·D.
"""


ROW_SHAPES = {"rows": "", "second": "H S S", "first": "H S 1", "count": "1 1 1"}
MASKED_SHAPES = {
    "rows": "",
    "second": "H S S",
    "first": "H S S",
    "count": "H|1 S S",
    "second_less_mean": "H S S",
    "first_less_mean": "H S S",
}
MAP_SHAPES = {
    "inputs": "",
    "valid": "H|1 T S",
    "second": "H S S",
    "sum_map": "H T S",
    "mean_map": "H T S",
    "means": "H T",
    "mean_squares": "H T",
}
"""What a file must hold for a site, by the kind of its sums."""


@dataclass
class RowSums:
    """The sums of the module docstring.

    Masked: all (…, S, S). Unmasked: `first` (H, S, 1), `count` (1, 1, 1), no s' sums.
    """

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
        """Return the same sums in the masked form, as if all keys were valid in every row."""
        if self.masked:
            return self
        H, S, _ = self.second.shape
        less = self.second - self.second.mean(1, keepdim=True)
        less = less - less.mean(2, keepdim=True)  # (I − 11ᵀ/S) second (I − 11ᵀ/S)
        first = self.first - self.first.mean(1, keepdim=True)
        wide = (H, S, S)
        return RowSums(
            self.rows,
            self.second,
            self.first.expand(wide),
            self.count.expand(1, S, S),
            less,
            first.expand(wide),
        )

    def plus(self, other: RowSums) -> RowSums:
        if self.masked != other.masked:
            return self.as_masked().plus(other.as_masked())
        mine, theirs = self.tensors(), other.tensors()
        # count becomes one per head where either is
        return RowSums(**{name: x + theirs[name] for name, x in mine.items()})

    def add_(self, other: RowSums) -> RowSums:
        """Add in place if the layouts agree, so that the pass over the data allocates nothing."""
        if (
            self.masked != other.masked
            or self.count.shape != other.count.shape
            or not self.second.is_contiguous()
        ):
            return self.plus(other)
        for mine, theirs in zip(self.tensors().values(), other.tensors().values()):
            mine.add_(theirs)
        return self

    def tensors(self) -> dict[str, Tensor]:
        named = {"rows": self.rows, "second": self.second, "first": self.first, "count": self.count}
        if self.second_less_mean is not None and self.first_less_mean is not None:
            named |= {
                "second_less_mean": self.second_less_mean,
                "first_less_mean": self.first_less_mean,
            }
        return named

    def double(self) -> RowSums:
        """Return a copy in float64 with its own memory."""
        return RowSums(
            **{
                name: x.to(torch.float64, copy=True).contiguous()
                for name, x in self.tensors().items()
            }
        )


@dataclass
class MapSums:
    """Rows under a mask that is the same in every input.

    `finished` turns them into `RowSums` when all inputs have been added.
    """

    inputs: Tensor  # ()
    valid: Tensor  # (H or 1, T, S) bool
    second: Tensor  # (H, S, S)
    sum_map: Tensor  # (H, T, S) Σ_b s_ij
    mean_map: Tensor  # (H, T, S) Σ_b r_i s_ij
    means: Tensor  # (H, T) Σ_b r_i
    mean_squares: Tensor  # (H, T) Σ_b r_i²

    def tensors(self) -> dict[str, Tensor]:
        return dict(vars(self))

    def same_mask(self, other: MapSums) -> bool:
        return torch.equal(self.valid, other.valid)

    def double(self) -> MapSums:
        return MapSums(
            **{
                n: x if n == "valid" else x.to(torch.float64, copy=True)
                for n, x in vars(self).items()
            }
        )

    def add_(self, other: MapSums) -> MapSums:
        for name, mine in vars(self).items():
            if name != "valid":
                mine.add_(getattr(other, name))
        return self

    def finished(self) -> RowSums:
        """Compute `first = mapᵀ v`, and expand `Σ (s−r)_j (s−r)_k v_j v_k`.

        Once per study: n³ per head, n² if causal.
        """
        T, S = self.valid.shape[1:]
        maps = torch.stack([self.sum_map, self.mean_map])
        causal = torch.ones(T, S, dtype=torch.bool, device=self.valid.device).tril()
        if T == S and bool((self.valid == causal).all()):  # in every head
            first, cross, squares, means, pairs = self._causal(maps)
        else:
            v = self.valid.to(maps.dtype)
            first, cross = maps.transpose(2, 3) @ v
            squares, means = (
                v.transpose(1, 2) @ (x[..., None] * v) for x in (self.mean_squares, self.means)
            )
            pairs = v.transpose(1, 2) @ v
        rows = self.inputs * self.valid.any(2).any(0).sum()
        less = self.second - cross - cross.transpose(1, 2) + squares
        return RowSums(rows, self.second, first, self.inputs * pairs, less, first - means)

    def _causal(self, maps: Tensor) -> tuple[Tensor, ...]:
        """Sum from the last query back: query i counts for keys j and k if i ≥ max(j, k)."""
        n = maps.shape[-1]
        at = torch.arange(n, device=maps.device)
        latest = torch.maximum(at[:, None], at)  # max(j, k)

        def onwards(x: Tensor, dim: int) -> Tensor:
            return x.flip(dim).cumsum(dim).flip(dim)  # Σ_{i' ≥ i}

        running = onwards(maps, 2)  # [·, h, i, j] = Σ_{i' ≥ i}
        diagonal = running.diagonal(dim1=2, dim2=3)[..., None]  # k ≤ j: Σ_{i ≥ j} map_ij
        # k > j: Σ_{i ≥ k} map_ij
        first, cross = torch.where(at[:, None] >= at, diagonal, running.transpose(2, 3))
        squares, means = (onwards(x, 1)[:, latest] for x in (self.mean_squares, self.means))
        return first, cross, squares, means, (n - latest).to(maps.dtype)[None]


def row_sums(
    call: AttentionCall, of: str = "scores", space: Workspace | None = None
) -> RowSums | MapSums:
    """Return the sums over the rows of one call, in the cheapest exact way its mask allows.

    They are valid until `space` is used again.
    """
    form, space = call.mask_shape.form, space or Workspace()
    if of == "scores" and call.linear:
        if form == "full":
            return _full(call, space)
        if form == "rectangle":
            return _rectangle(call, space)
        if form == "causal":
            return _causal(call, space)
    values = call.pattern() if of == "pattern" else call.scores(fill=0.0)  # (B, H, T, S)
    if form == "full":
        B, _, T, _ = values.shape
        count = torch.tensor(float(B * T))
        return RowSums(count, _gram(values), values.sum((0, 2))[..., None], count.reshape(1, 1, 1))
    valid = call.valid()
    return _fixed(values, valid) if valid.shape[0] == 1 else _varied(values, valid)


def _joined(x: Tensor, name: str, space: Workspace) -> Tensor:
    """Join the batch with the last dimension, (H, B, m, c) → (H, m, B·c).

    One GEMM then sums over both.
    """
    H, B, m, c = x.shape
    return space.copy(name, x.transpose(1, 2)).view(H, m, B * c)


def _gram(z: Tensor) -> Tensor:
    """Return `Σ_b z_bᵀ z_b` per head: (B, H, T, S) → (H, S, S)."""
    return _products(z, z)


def _products(left: Tensor, right: Tensor) -> Tensor:
    """Return `Σ_b left_bᵀ right_b` per head, one GEMM: (B, H, T, m) × (B, H, T, n) → (H, m, n)."""
    H, m, n = left.shape[1], left.shape[3], right.shape[3]
    return left.permute(1, 3, 0, 2).reshape(H, m, -1) @ right.transpose(0, 1).reshape(H, -1, n)


def _symmetric(left: Tensor, right: Tensor, space: Workspace) -> Tensor:
    """Return `left rightᵀ` if the product is symmetric.

    Only the blocks up to the diagonal are multiplied.
    """
    H, S, _ = left.shape
    out = space.take("second", (H, S, S), left)
    for start in range(0, S, 2 * BLOCK):
        end = min(start + 2 * BLOCK, S)
        out[:, start:end, :end] = part = left[:, start:end] @ right[:, :end].transpose(1, 2)
        out[:, :start, start:end] = part[:, :, :start].transpose(1, 2)
    return out


def _factorised(call: AttentionCall, k: Tensor, space: Workspace) -> tuple[Tensor, Tensor]:
    """Return `Σ_b K (QᵀQ) Kᵀ`, and the keys joined over the batch (H, S, B·D).

    It costs n²d instead of n³, and no score is computed.
    """
    turned = space.matmul("turned", k, call.query_gram)  # K QᵀQ: (H, B, S, D)
    joined = _joined(k, "joined", space)
    return _symmetric(_joined(turned, "left", space), joined, space), joined


def _full(call: AttentionCall, space: Workspace) -> RowSums:
    """No mask: the factorised form as it is."""
    second, joined = _factorised(call, call.keys_by_head, space)
    B, H, T, _ = call.q.shape
    rows = torch.tensor(float(B * T))
    # first = Σ_b K_b Σ_i q_i
    return RowSums(rows, second, joined @ call.query_sum.reshape(H, -1, 1), rows.reshape(1, 1, 1))


def _rectangle(call: AttentionCall, space: Workspace) -> RowSums:
    """Padding: the same with zeros for padded queries and keys, and row means over valid keys."""
    shape = call.mask_shape
    assert shape.queries is not None
    assert shape.keys is not None
    valid = shape.keys.to(call.q.dtype)  # (B, S)
    number = shape.queries.to(call.q.dtype).sum(1)  # (B,) valid queries
    k = call.keys_by_head * valid[None, :, :, None]
    centre = k.sum(2, keepdim=True) / valid.sum(1).clamp_min(1)[None, :, None, None]
    less = (k - centre) * valid[None, :, :, None]  # s'_ij = q_i · (k_j − mean k)

    def sums(keys: Tensor) -> tuple[Tensor, Tensor]:
        column = (keys * call.query_sum[:, :, None]).sum(3)  # (H, B, S)
        return _factorised(call, keys, space)[0].clone(), torch.einsum("hbj,bk->hjk", column, valid)

    (second, first), (second_less, first_less) = sums(k), sums(less)
    count = torch.einsum("b,bj,bk->jk", number, valid, valid)[None]
    return RowSums(number.sum(), second, first, count, second_less, first_less)


def _causal(call: AttentionCall, space: Workspace) -> MapSums:
    """Causal without padding: query blocks after a key block see all of it and factorise.

    Only the diagonal needs scores.

        second_jk = k_jᵀ (Σ_{i ≥ e} q_i q_iᵀ) k_k  +  Σ_{i in block} s_ij s_ik      for keys k of
        block [s, e), j < e

    Both terms are sums of products, over (b, d) and over (b, i), so a block is one GEMM.
    """
    q, k = call.head_queries, call.keys_by_head
    H, B, n, D = q.shape
    seen = torch.arange(1, n + 1, device=q.device, dtype=q.dtype)[:, None]
    mean = (q * (k.cumsum(2) / seen)).sum(3)  # r_i: (H, B, n)
    joined, plain = _joined(k, "joined", space), _joined(q, "plain", space)  # (H, n, B·D)
    weighted = _joined(q * mean[..., None], "weighted", space)  # r_i q_i
    second = space.take("second", (H, n, n), q)
    maps = space.take("maps", (2, H, n, n), q).zero_()
    later = q.new_zeros(H, B, D, D)  # Σ_{i ≥ e} q_i q_iᵀ
    for start in reversed(range(0, n, BLOCK)):
        end = min(start + BLOCK, n)
        width, block, before = end - start, q[:, :, start:end], k[:, :, :end]
        # [K Σqqᵀ, Sᵀ of the block] beside each other
        both = space.take(f"both {end}", (H, end, B, D + width), q)
        both[..., :D] = space.matmul(f"turned {end}", before, later).transpose(1, 2)
        # (H, B, e, width): s_ij at [j, i]
        scores = space.matmul(f"scores {end}", before, block.transpose(2, 3)).triu_(-start)
        both[..., D:] = scores.transpose(1, 2)
        right = space.take(f"right {width}", (H, width, B, D + width), q)
        right[..., :D] = joined.view(H, n, B, D)[:, start:end]
        right[..., D:] = both[:, start:end, :, D:]
        part = both.view(H, end, -1) @ right.view(H, width, -1).transpose(1, 2)  # (H, e, width)
        second[:, :end, start:end] = part
        second[:, start:end, :end] = part.transpose(1, 2)
        for each, query in zip(maps, (plain, weighted)):
            each[:, start:end, :end] = query[:, start:end] @ joined[:, :end].transpose(1, 2)
        later = later + block.transpose(2, 3) @ block
    valid = torch.ones(1, n, n, dtype=torch.bool, device=q.device).tril()
    maps.tril_()
    return MapSums(
        torch.tensor(float(B)), valid, second, maps[0], maps[1], mean.sum(1), mean.square().sum(1)
    )


def _fixed(z: Tensor, valid: Tensor) -> MapSums:
    """Any mask that is the same in every input, (1, H or 1, T, S).

    Invalid entries of z are zero.
    """
    number = valid[0].sum(2).clamp_min(1)  # (H or 1, T)
    mean = z.sum(3) / number  # r_i: (B, H, T)
    maps = z.sum(0), (z * mean[..., None]).sum(0)
    return MapSums(
        torch.tensor(float(len(z))), valid[0], _gram(z), *maps, mean.sum(0), mean.square().sum(0)
    )


def _varied(z: Tensor, valid: Tensor) -> RowSums:
    """Any mask, (B, H or 1, T, S): n³ per head and input."""
    mask = valid.to(z.dtype)
    less = (z - z.sum(3, keepdim=True) / mask.sum(3, keepdim=True).clamp_min(1)) * mask
    wide = mask.expand(z.shape)

    def first(x: Tensor) -> Tensor:
        return _products(x, wide)

    return RowSums(
        mask.any(3).any(1).sum().to(z.dtype),
        _gram(z),
        first(z),
        _gram(mask),
        _gram(less),
        first(less),
    )

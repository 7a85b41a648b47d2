"""Other ways to choose keys, over the path that a plan takes: gather the keys, attend exactly.

Every way is a function `(q, k, v, knob) → KeptKeys` of causal queries `q (B,H,T,D)` and keys
`k (B,G,T,D)`, with one knob that trades keys for loss. Blocks of 128 queries share their keys; the
first keys and the near ones are always kept. No query attends to a later key. But many ways let
later queries of a block, or of the input, decide which keys are kept: a perplexity measured so is
lower than the way would have with the rest of the text unknown. Each says whether it does.

The ideas are those of the named papers, in code of our own; their kernels, block sizes and
thresholds are for other machines, and their published figures are not claimed here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import normalize, pad, scaled_dot_product_attention

from eigenlens.attention.head_forms import HeadForm, LayerForms
from eigenlens.attention.head_keys import keep_keys
from eigenlens.kernels.kept_keys import KeptKeys
from eigenlens.plans.sparse_plan import SparsePlan

BLOCK = 128
"""Queries that share their keys."""
FIRST = 4
"""First keys that single keys are chosen beside."""
CHUNK = 8
"""Blocks that are scored together: only keys before the last of them are scored."""
ROWS = 16
"""Exact rows that are computed together."""
Choose = Callable[[Tensor, Tensor, Tensor, float], KeptKeys]


@dataclass(frozen=True)
class Peer:
    """A way to choose keys, with the values of its knob that are measured.

    `correct(q, k, v, out)` mends the output; `counts_choice` is False for a way that no one could
    use, whose choice is not counted in its seconds.
    """

    choose: Choose
    knob: str
    values: tuple[float, ...]
    correct: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] | None = None
    counts_choice: bool = True


def scale_of(q: Tensor) -> float:
    return q.shape[3] ** -0.5


def with_exact(plan: SparsePlan, last: int) -> SparsePlan:
    """The plan with so many queries at the end that attend to every key."""
    return replace(plan, layers={s: replace(f, last=last) for s, f in plan.layers.items()})


def window(q: Tensor, k: Tensor, v: Tensor, share: float) -> KeptKeys:
    """The first keys and the near ones (StreamingLLM, arXiv 2309.17453).

    `w` keys back are `w T − w²/2` of the `T²/2` pairs. Chooses nothing, so no later query is
    looked at.
    """
    T = q.shape[2]
    near = max(0, round(T * (1 - math.sqrt(1 - share)) - BLOCK / 2))  # the own block is half seen
    heads = (HeadForm("window", window=near),) * q.shape[1]
    forms = LayerForms(heads, block=BLOCK, first=FIRST, last=0)
    return keep_keys(q, k, v, forms, scale=scale_of(q))


def delta(q: Tensor, k: Tensor, v: Tensor, out: Tensor, gamma: int = 64) -> Tensor:
    """Add what every γ-th row lacks to it and to the γ − 1 rows that follow (arXiv 2505.11254).

    The rows `r = 0, γ, 2γ, …` are computed exactly, `out_i ← out_i + (exact_r − out_r)` with
    `r = γ⌊i/γ⌋ ≤ i`: no later query is looked at.
    """
    T = q.shape[2]
    rows, places, parts = torch.arange(0, T, gamma), torch.arange(T), []
    for some in rows.split(ROWS):
        seen = int(some[-1]) + 1
        parts.append(
            scaled_dot_product_attention(
                q[:, :, some],
                k[:, :, :seen],
                v[:, :, :seen],
                places[:seen] <= some[:, None],
                enable_gqa=True,
            )
        )
    lacks = torch.cat(parts, 2) - out[:, :, rows]  # (B, H, T/γ, E)
    return out + lacks.repeat_interleave(gamma, 2)[:, :, :T]


def block_means(q: Tensor, k: Tensor, v: Tensor, share: float, size: int = 64) -> KeptKeys:
    """The best share of the key blocks by mean query times mean key.

    The mean is over all queries of the block: looks at later queries of the block.
    """
    ranges = _ranges(q)
    value = _means(q, BLOCK) @ _repeat(_means(k, size), q).transpose(2, 3)  # (B, H, N, M)
    allowed = torch.arange(value.shape[3]) < ranges[..., :1] // size
    value = value.masked_fill(~allowed, -torch.inf)
    number = (share * allowed[0, 0].sum(1)).ceil().long()  # (N,)
    return _from_blocks(_top(value, number), ranges, size)


def antidiagonals(q: Tensor, k: Tensor, v: Tensor, threshold: float, stride: int = 16) -> KeptKeys:
    """Blocks up to a cumulative mass, by sums along antidiagonals (XAttention, arXiv 2503.16428).

    In a tile of `stride × stride` pairs the scores of one antidiagonal are summed, which meets
    every query and every key once: `1/stride` of the products. The softmax over tiles gives the
    mass of a block of 128 keys. Looks at later queries of the block.
    """
    (B, H, *_), N = q.shape, _blocks(q)
    x = _units(q).flatten(2, 3).unflatten(2, (-1, stride)).flip(3).flatten(3)  # (B, H, n, s·D)
    y = _units(k).flatten(2, 3).unflatten(2, (-1, stride)).flatten(3)  # (B, G, n, s·D)
    scores = x @ _repeat(y, q).transpose(2, 3) * (scale_of(q) / stride)  # (B, H, n, n)
    later = torch.ones(scores.shape[2:], dtype=torch.bool).triu(1)
    pattern = torch.softmax(scores.masked_fill_(later, -torch.inf), -1)
    tiles = BLOCK // stride
    mass = pattern.view(B, H, N, tiles, N, tiles).sum(5).mean(3)  # (B, H, N, N)
    return _from_blocks(_cover(mass, threshold, _always(N)), _ranges(q), BLOCK)


def patterns(q: Tensor, k: Tensor, v: Tensor, gamma: float, distance: float = 0.1) -> KeptKeys:
    """A pattern for each head up to a cumulative mass (FlexPrefill, arXiv 2502.20766).

    The exact rows of the last block of queries tell which pattern a head has. If mean query times
    mean keys predicts their mass on blocks of keys (Jensen–Shannon distance below `distance`),
    blocks are taken by mean query times mean key up to the mass γ of all blocks. Otherwise the
    head keeps the columns of single keys and the diagonals of blocks that these rows look at, each
    up to the mass γ. Looks at later queries: those of the block, and the last ones of the input.
    """
    T, N, ranges = q.shape[2], _blocks(q), _ranges(q)
    rows, places = torch.arange((N - 1) * BLOCK, T), torch.arange(T)
    scores = q[:, :, rows] @ _repeat(k, q).transpose(2, 3) * scale_of(q)  # (B, H, P, T)
    exact = torch.softmax(scores.masked_fill_(places > rows[:, None], -torch.inf), -1)
    columns = exact.mean(2)  # (B, H, T)
    true = pad(columns, (0, N * BLOCK - T)).unflatten(2, (N, BLOCK)).sum(3)  # (B, H, N)
    pooled = _means(q, BLOCK) @ _repeat(_means(k, BLOCK), q).transpose(2, 3) * scale_of(q)
    later = torch.ones(N, N, dtype=torch.bool).triu(1)
    blocks = torch.softmax(pooled.masked_fill_(later, -torch.inf), -1)  # (B, H, N, N)
    predicted = _jensen_shannon(true, blocks[:, :, -1]) < distance  # (B, H)

    # of all blocks together, as one distribution
    by_means = _cover((blocks / N).flatten(2), gamma).unflatten(2, (N, N))
    back = torch.arange(N)[:, None] - torch.arange(N)  # how many blocks a key block lies back
    by_diagonals = _cover(true, gamma).flip(2)[..., back.clamp_min(0)] & (back >= 0)

    kept = torch.where(predicted[..., None, None], by_means, by_diagonals)
    keep = kept.repeat_interleave(BLOCK, 3)[..., :T]
    keep |= (_cover(columns, gamma) & ~predicted[..., None])[:, :, None]
    return _from_keys(keep, ranges)


def unlike_queries(q: Tensor, k: Tensor, v: Tensor, share: float, queries: int = 16) -> KeptKeys:
    """The best share of single keys for the queries least like the mean (QUOKA, arXiv 2602.08722).

    A block's queries with the least cosine to their mean are taken, the same for the heads that
    share keys, and averaged over these heads; a key's value is its largest cosine with one of
    them. Looks at later queries of the block.
    """
    R = q.shape[1] // k.shape[1]
    units = _units(q)  # (B, H, N, P, D)
    like = torch.cosine_similarity(units, _means(q, BLOCK)[:, :, :, None], dim=4)
    like = like.unflatten(1, (-1, R)).mean(2)  # (B, G, N, P)
    inside = torch.arange(units.shape[2] * BLOCK).view(-1, BLOCK) < q.shape[2]
    chosen = like.masked_fill(~inside, 2.0).topk(queries, 3, largest=False).indices
    x = normalize(units, dim=4).unflatten(1, (-1, R)).mean(2)  # (B, G, N, P, D)
    x = x.gather(3, chosen[..., None].expand(*chosen.shape, q.shape[3]))
    y = normalize(k, dim=3)
    ranges, T = _ranges(q), q.shape[2]
    keep = torch.zeros(*chosen.shape[:3], T, dtype=torch.bool)
    for begin in range(0, chosen.shape[2], CHUNK):
        some = slice(begin, begin + CHUNK)
        low = ranges[0, 0, some, 0]
        if not (seen := int(low.max())):
            continue
        value = (x[:, :, some].flatten(2, 3) @ y[:, :, :seen].transpose(2, 3)).unflatten(
            2, (-1, queries)
        )
        value = value.amax(3).masked_fill(torch.arange(seen) >= low[:, None], -torch.inf)
        keep[:, :, some, :seen] = _top(value, (share * low).ceil().long())
    return _from_keys(_repeat(keep, q), ranges)


def leading_components(
    q: Tensor, k: Tensor, v: Tensor, share: float, rank: int = 16, step: int = 4
) -> KeptKeys:
    """The best share of single keys by scores in the keys' leading components (Loki, 2406.02542).

    Loki takes the top keys of every row. Over keys that a block shares that is not possible: here
    a key's value is its mean probability, by scores of rank 16, in every fourth row of the block.
    Looks at later queries of the block; the components are those of all keys of the input, where
    Loki fits them on other texts.
    """
    T, ranges = q.shape[2], _ranges(q)
    basis = torch.linalg.eigh(k.transpose(2, 3) @ k).eigenvectors[..., -rank:]  # (B, G, D, r)
    x, y = q @ _repeat(basis, q) * scale_of(q), _repeat(k @ basis, q)

    def value(rows: Tensor, seen: int) -> Tensor:
        scores = x[:, :, rows.flatten()] @ y[:, :, :seen].transpose(2, 3)
        hidden = torch.arange(seen) > rows.flatten()[:, None]
        pattern = torch.softmax(scores.masked_fill_(hidden, -torch.inf), -1)
        return pattern.unflatten(2, rows.shape).mean(3)

    keep = torch.zeros(*q.shape[:2], _blocks(q), T, dtype=torch.bool)
    for begin in range(0, keep.shape[2], CHUNK):
        some = slice(begin, begin + CHUNK)
        low = ranges[0, 0, some, 0]
        if not low.max():
            continue
        starts = torch.arange(begin, begin + len(low)) * BLOCK
        rows = (starts[:, None] + torch.arange(0, BLOCK, step)).clamp_max(T - 1)
        found = value(rows, int(rows.max()) + 1)
        seen = int(low.max())
        found = found[..., :seen].masked_fill(torch.arange(seen) >= low[:, None], -torch.inf)
        keep[:, :, some, :seen] = _top(found, (share * low).ceil().long())
    return _from_keys(keep, ranges)


def oracle(q: Tensor, k: Tensor, v: Tensor, share: float) -> KeptKeys:
    """The share of single keys with the most true attention, of all heads and blocks of a layer.

    A key's value is its mean attention in all rows of the block. Looks at later queries of the
    block, and takes full attention to choose: a bound, not a way.
    """
    T, ranges = q.shape[2], _ranges(q)
    keys, places = _repeat(k, q).transpose(2, 3), torch.arange(T)
    mass = torch.full((*q.shape[:2], _blocks(q), T), -1.0)
    for block, begin in enumerate(range(0, T, BLOCK)):
        rows = torch.arange(begin, min(begin + BLOCK, T))
        seen, low = int(rows[-1]) + 1, int(ranges[0, 0, block, 0])
        scores = q[:, :, rows] @ keys[..., :seen] * scale_of(q)
        scores.masked_fill_(places[:seen] > rows[:, None], -torch.inf)
        mass[:, :, block, :low] = torch.softmax(scores, -1).mean(2)[..., :low]
    far = mass[mass >= 0]
    dropped = int((1 - share) * len(far))
    least = far.kthvalue(dropped).values if dropped else far.new_tensor(0.0)
    return _from_keys(mass > least if dropped else mass >= least, ranges)


SHARES = (0.2, 0.3, 0.4)
PEERS = {
    "window": Peer(window, "share", SHARES),
    "window + Δ": Peer(window, "share", (0.3,), delta),
    "window + Δ of 16": Peer(window, "share", (0.2, 0.3), partial(delta, gamma=16)),
    "block means": Peer(block_means, "share", SHARES),
    "XAttention-style": Peer(antidiagonals, "mass", (0.8, 0.9, 0.95)),
    "FlexPrefill-style": Peer(patterns, "mass", (0.8, 0.9)),
    "QUOKA-style": Peer(unlike_queries, "share", SHARES),
    "Loki-style": Peer(leading_components, "share", (0.2, 0.4)),
    "oracle": Peer(oracle, "share", (0.1, 0.2), counts_choice=False),
}
"""The ways by name."""


def _blocks(q: Tensor) -> int:
    return -(-q.shape[2] // BLOCK)


def _units(x: Tensor) -> Tensor:
    """The rows in blocks, `(B, H, N, 128, D)`, with zeros after the last."""
    return pad(x, (0, 0, 0, -x.shape[2] % BLOCK)).unflatten(2, (-1, BLOCK))


def _means(x: Tensor, size: int) -> Tensor:
    """The means of every `size` rows, `(B, H, T/size, D)`; of fewer at the end."""
    T = x.shape[2]
    sums = pad(x, (0, 0, 0, -T % BLOCK)).unflatten(2, (-1, size)).sum(3)
    starts = torch.arange(sums.shape[2]) * size
    return sums / (T - starts).clamp(1, size)[:, None]


def _repeat(x: Tensor, q: Tensor) -> Tensor:
    """What key-value heads have, for every query head."""
    return x.repeat_interleave(q.shape[1] // x.shape[1], 1)


def _ranges(q: Tensor) -> Tensor:
    """The block before every block is near, `(B, H, N, 2)`."""
    starts = torch.arange(_blocks(q)) * BLOCK
    near = torch.stack([(starts - BLOCK).clamp_min(0), starts], 1).to(torch.int32)
    return near.expand(*q.shape[:2], *near.shape).contiguous()


def _always(N: int) -> Tensor:
    """The first block, the own one and the one before are kept whatever their mass, `(N, N)`."""
    blocks = torch.arange(N)
    return (blocks == 0) | (blocks > blocks[:, None] - 2)


def _top(value: Tensor, number: Tensor) -> Tensor:
    """The `number (N,)` largest of each row of `value (…, N, M)`, as a mask."""
    most = max(1, int(number.max()))
    order = value.topk(most, -1).indices
    meant = (torch.arange(most) < number[:, None]).expand(order.shape)
    return torch.zeros(value.shape, dtype=torch.bool).scatter_(-1, order, meant)


def _cover(mass: Tensor, share: float, always: Tensor | None = None) -> Tensor:
    """The fewest entries of each row that together have the share of its mass, as a mask.

    Those that are `always` kept are counted first.
    """
    ranked = mass if always is None else mass + 2.0 * always
    order = ranked.argsort(-1, descending=True)
    sums = mass.gather(-1, order).cumsum(-1)
    before = sums - mass.gather(-1, order)
    kept = before < share * sums[..., -1:] * (1 - 1e-6)
    found = torch.zeros(mass.shape, dtype=torch.bool).scatter_(-1, order, kept)
    return found if always is None else found | always


def _jensen_shannon(p: Tensor, q: Tensor) -> Tensor:
    """The distance of distributions `(…, N)`: the root of the divergence, in nats."""
    middle = (p + q) / 2
    parts = [torch.xlogy(x, x) - torch.xlogy(x, middle) for x in (p, q)]
    return ((parts[0] + parts[1]).sum(-1) / 2).clamp_min(0).sqrt()


def _listed(keep: Tensor) -> tuple[Tensor, Tensor]:
    """The places of a mask `(B, H, N, M)`, ascending, and how many there are, int32."""
    counts = keep.sum(3)
    rows, places = keep.flatten(0, 2).nonzero(as_tuple=True)
    lists = torch.zeros(counts.numel(), max(1, int(counts.max())), dtype=torch.int32)
    first = counts.flatten().cumsum(0) - counts.flatten()
    lists[rows, torch.arange(len(rows)) - first[rows]] = places.to(torch.int32)
    return lists.view(*counts.shape, -1), counts.to(torch.int32)


def _from_keys(keep: Tensor, ranges: Tensor) -> KeptKeys:
    """Single keys from a mask `(B, H, N, T)`, with the first ones."""
    places = torch.arange(keep.shape[3])
    keep = (keep | (places < FIRST)) & (places < ranges[..., :1])
    return KeptKeys(BLOCK, True, ranges, *_listed(keep))


def _from_blocks(keep: Tensor, ranges: Tensor, size: int) -> KeptKeys:
    """Blocks of `size` keys from a mask `(B, H, N, M)`, with the first one."""
    places = torch.arange(keep.shape[3])
    blocks, counts = _listed((keep | (places == 0)) & (places < ranges[..., :1] // size))
    keys = blocks[..., None] * size + torch.arange(size, dtype=torch.int32)
    return KeptKeys(BLOCK, True, ranges, keys.flatten(3).contiguous(), counts * size)

"""Which key blocks a block of queries attends to, decided from a few exact attention rows.

For query block `I` (rows `i₀ … i₀+block−1`) of a key-value head `g` with `R` query heads, the rows

    s ∈ {i₀, i₀−stride, i₀−2·stride, …}                              (`samples` of them)

are computed exactly, and key block `J` is scored by the attention they give it,

    m_IJ = mean_{s, r ≤ R} Σ_{j ∈ J} softmax_j(q_sr · k_j / √d).

Blocks with `m_IJ ≥ τ_g · |J|` are kept. For a given number of pairs, the least attention is lost if
one threshold applies to the attention per pair; so heads that look everywhere get many blocks and
local heads almost none. `τ_g` comes from a plan.

Neighbouring queries look at the same far keys, so a few real rows predict more than means of
queries or keys (a mean does not summarise keys rotated by RoPE). All sampled rows lie at or before
the first query of the block, so that the choice never depends on a later token. Rows sampled
*inside* the block would choose better, but would tell each query which keys later queries look at,
and a measured loss would then be too low.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..errors import EigenlensError


@dataclass(frozen=True)
class BlockSettings:
    """How a layer selects key blocks.

    `thresholds` holds `τ_g`, a probability per pair, for each key-value head; 0 means dense.

    `query_block` queries share a selection among all heads of a key-value head; the last `local`
    keys before them and the `first` keys are always kept; far keys are chosen in blocks of
    `key_block`. Counts are rounded up to multiples of `round_to` blocks, with the next best blocks,
    so that equal counts run as one batch.
    """

    thresholds: tuple[float, ...]
    query_block: int = 128
    key_block: int = 1
    first: int = 4
    local: int = 64
    samples: int = 4
    stride: int = 16
    round_to: int = 64

    def __post_init__(self) -> None:
        for name in ("query_block", "key_block", "samples", "stride", "round_to"):
            if getattr(self, name) < 1:
                raise EigenlensError(
                    f"{name} of block-adaptive attention must be at least 1, not"
                    f" {getattr(self, name)}"
                )
        if self.first < 0 or any(not 0 <= x < float("inf") for x in self.thresholds):
            raise EigenlensError(
                f"first and thresholds of block-adaptive attention must be 0 or more, not {self}"
            )
        for name in ("query_block", "local", "first"):
            if getattr(self, name) % self.key_block:
                raise EigenlensError(
                    f"{name}={getattr(self, name)} must be a multiple of key_block={self.key_block}"
                )
        if self.local < self.reach:
            raise EigenlensError(
                f"local={self.local} must cover the sampled rows, which reach back {self.reach}"
                " tokens"
            )

    @property
    def reach(self) -> int:
        """How far before its query block the earliest sampled row lies."""
        return (self.samples - 1) * self.stride

    def of_heads(self, heads: list[int]) -> BlockSettings:
        """Return the settings for some of the key-value heads."""
        return replace(self, thresholds=tuple(self.thresholds[g] for g in heads))


@dataclass(frozen=True)
class BlockBatch:
    """Query blocks that keep the same number of far key blocks.

    Unit `(b·G + g)·N + I`, and the blocks it keeps, ascending.
    """

    units: Tensor  # (U,)
    blocks: Tensor  # (U, count)


def block_mass(
    q: Tensor, k: Tensor, settings: BlockSettings, scale: float, chunk: int = 8
) -> Tensor:
    """Return `m_IJ / |J|`, the sampled attention per pair of each far key block, `(B, G, N, M)`.

    Shapes: `q (B,H,T,D)`, `k (B,G,T,D)` with `T` a multiple of the query block, `N = T /
    query_block`, `M = T / key_block`. Blocks from the query block on hold −1; the first blocks and
    the local ones before it, which are always kept, +∞.
    """
    (B, H, T, _), G, s = q.shape, k.shape[1], settings
    R, N, M = H // G, T // s.query_block, T // s.key_block
    starts = torch.arange(N, device=q.device) * s.query_block
    # (N, samples)
    rows = (starts[:, None] - torch.arange(s.samples, device=q.device) * s.stride).clamp_min(0)
    sampled = q.unflatten(1, (G, R))[:, :, :, rows.flatten()].unflatten(3, (N, s.samples)) * scale
    # (B, G, N, R·samples, D): rows that are averaged lie together
    sampled = sampled.permute(0, 1, 3, 2, 4, 5).flatten(3, 4)
    mass = q.new_full((B, G, N, M), -1.0)
    # keys after a chunk are never touched: half the products, and buffers that fit a cache
    for begin in range(0, N, chunk):
        end = min(N, begin + chunk)
        seen = (end - 1) * s.query_block + s.key_block
        x = sampled[:, :, begin:end].flatten(2, 3)
        scores = (x @ k[:, :, :seen].transpose(2, 3)).view(B, G, end - begin, R, s.samples, seen)
        # every sampled row of the chunk sees the keys before
        near = max(0, begin * s.query_block - s.reach)
        # (n, 1, samples, seen − near)
        later = torch.arange(near, seen, device=q.device) > rows[begin:end, None, :, None]
        scores[..., near:].masked_fill_(later, -torch.inf)
        # (B, G, n, M', key_block)
        pattern = torch.softmax(scores, -1).flatten(3, 4).sum(3).unflatten(3, (-1, s.key_block))
        mass[:, :, begin:end, : seen // s.key_block] = sum(pattern.unbind(4)) / (
            R * s.samples * s.key_block
        )
    blocks = torch.arange(M, device=q.device) * s.key_block
    mass.masked_fill_((blocks < s.first) | (blocks >= starts[:, None] - s.local), torch.inf)
    return mass.masked_fill_(blocks >= starts[:, None], -1.0)


def select(mass: Tensor, settings: BlockSettings) -> list[BlockBatch]:
    """Return the past key blocks with at least `τ_g` per pair, in batches of equal counts."""
    B, G, N, M = mass.shape
    threshold = mass.new_tensor(settings.thresholds).view(1, G, 1, 1)
    wanted = (mass >= threshold).sum(3)  # (B, G, N)
    # Rounded up, coarser for long lists (never by more than an eighth or one step), and never
    # beyond what there is.
    step = torch.full_like(wanted, settings.round_to)
    while bool((coarser := step * 16 <= wanted).any()):
        step = torch.where(coarser, step * 2, step)
    counts = torch.minimum((wanted + step - 1) // step * step, (mass >= 0).sum(3)).flatten()
    flat = mass.view(B * G * N, M)
    batches = []
    for count in counts.unique().tolist():
        units = (counts == count).nonzero()[:, 0]
        if count:
            batches.append(
                BlockBatch(units, flat[units].topk(count, sorted=False).indices.sort().values)
            )
    return batches


def kept_pairs(
    batches: list[BlockBatch], shape: tuple[int, int, int], settings: BlockSettings
) -> Tensor:
    """Return the past pairs that each query head of key-value head `g` computes, `(G,)`."""
    B, G, N = shape
    total = torch.zeros(G)
    for batch in batches:
        heads = (batch.units // N % G).cpu()
        total.index_add_(0, heads, torch.full(heads.shape, float(batch.blocks.shape[1])))
    return total * settings.query_block * settings.key_block


def attended_pairs(
    batches: list[BlockBatch], shape: tuple[int, int, int], settings: BlockSettings
) -> Tensor:
    """Return the work of each query head of key-value head `g`, in pairs, `(G,)`.

    Summed over inputs: the kept past, the block's own keys up to each query, `T · query_block / 2`,
    and half a pair for each pair of the sampled rows, since they need no values.
    """
    B, _, N = shape
    T = N * settings.query_block
    own, sampled = (
        B * T * settings.query_block / 2,
        B * T * T / 2 * settings.samples / settings.query_block / 2,
    )
    return kept_pairs(batches, shape, settings) + own + sampled


def dense_mask(
    batches: list[BlockBatch], shape: tuple[int, int, int, int], settings: BlockSettings
) -> Tensor:
    """Return the pairs that are computed, `(B, G, T, T)` bool.

    These are the kept past blocks, and the query block's own keys up to each query.
    """
    B, G, N, M = shape
    keep = torch.zeros(B * G * N, M, dtype=torch.bool)
    for batch in batches:
        keep[batch.units.cpu()] = keep[batch.units.cpu()].scatter(1, batch.blocks.cpu(), True)
    past = (
        keep.view(B, G, N, M)
        .repeat_interleave(settings.query_block, 2)
        .repeat_interleave(settings.key_block, 3)
    )
    i = torch.arange(N * settings.query_block)
    own = i[None] >= i[:, None] // settings.query_block * settings.query_block
    return (past | own) & (i[None] <= i[:, None])

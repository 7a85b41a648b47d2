"""How many singular components the scores of one input have, per head (arXiv 2604.04384).

The scores of one input and head, before mask, position bias and cap, are `S = QKᵀ` with `Q (T, D)`
(scaled) and `K (S, D)`. Their squared singular values are the eigenvalues of the D × D matrix
`Lᵀ(QᵀQ)L`, where `LLᵀ = KᵀK`. So they are exact without a score being formed. With the mean key
taken from every key, the mean of each row of S is gone, to which the softmax is blind.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from ..captures import AttentionCall, Site
from ..errors import EigenlensError
from ..threads import decompose_batch
from .statistic import State, add_sites, by_site

What = Literal["scores", "centred", "pattern", "weights"]
"""The scores, the scores without the mean of their row, and the pattern after the softmax.

A study keeps the weights of the heads beside them, with 0 tokens.
"""
SHARES = (0.5, 0.9, 0.95, 0.99)
"""Shares of the energy, or of the variance, at which dimensions are counted."""
SHORTEST = 32
"""The least number of tokens at which growth with length is measured."""
PATTERN_TOKENS = 256
"""The most keys of which patterns are measured: their singular values cost n³."""
CHUNK = 4096
"""Tokens that are held in float64 at once."""
WITHIN_SHAPES = {"counts": "H q c", "curve": "H m", "ranks": "H 2 2", "number": ""}
"""What a file must hold for a site, a length and a kind of matrix."""


class WithinSpectra:
    """The distribution over inputs of the spectrum of each input's scores.

    Of every `every`-th input. `growth_every` and `pattern_every` count inputs, too: on those, the
    first 32, 64, 128, … tokens are measured besides the whole input, and the pattern. Kept for
    each head, kind of matrix and number of tokens: how often which number of components was the
    least that holds 50, 90, 95 and 99 % of the energy `Σσ²`; the mean share of each component;
    the effective rank `exp(−Σ p ln p)`, `p = σ/Σσ`, and the stable rank `Σσ²/σ₁²`.

    Tokens that are padding are left out; a padded input is measured as a whole only. Cost of a
    measured input and head: `2nD²` and the eigenvalues of two D × D matrices, whatever the mask.
    Memory: about `80 D` bytes per head and length.
    """

    def __init__(self, every: int = 1, growth_every: int = 1, pattern_every: int = 1) -> None:
        if min(every, growth_every, pattern_every) < 1:
            raise EigenlensError("every n-th input is measured: n must be at least 1")
        self.every, self.growth_every, self.pattern_every = every, growth_every, pattern_every
        self.sites: dict[tuple[Site, str], dict[str, Tensor]] = {}  # (site, `centred|128`) → sums

    @torch.no_grad()
    def update(self, call: AttentionCall, start: int = 0) -> None:
        """Measure a call; `start` is the position of its first input among all inputs."""
        for at in range(-start % self.every, len(call.q), self.every):
            place = start + at
            self._products(call, at, place % self.growth_every == 0)
            if place % self.pattern_every == 0 and call.k.shape[2] <= PATTERN_TOKENS:
                P = call.of_inputs(slice(at, at + 1)).pattern()[0].double()  # (H, T, S)
                gram = P.mT @ P if P.shape[2] <= P.shape[1] else P @ P.mT
                self._add(call, "pattern", P.shape[2], decompose_batch(torch.linalg.eigvalsh, gram))

    def _products(self, call: AttentionCall, at: int, growth: bool) -> None:
        """Measure the scores of one input, and with `growth` those among its first tokens."""
        q, k = call.q[at], call.k[at]  # (H, T, D), (G, S, D)
        (T, D), S = q.shape[1:], k.shape[1]
        queries, keys = _tokens(call, at)
        if queries is not None or keys is not None or T != S or not growth:
            ends = [max(T, S)]
        else:
            ends = [*_powers(S), S]
        grams = q.new_zeros(len(q), D, D, dtype=torch.float64)
        second = k.new_zeros(len(k), D, D, dtype=torch.float64)
        first = k.new_zeros(len(k), D, dtype=torch.float64)
        number, found = 0, []
        for begin, end in zip([0, *ends], ends):
            for low in range(begin, end, CHUNK):
                high = min(low + CHUNK, end)
                some = _chosen(q[:, low:high], queries, low, high)
                grams = grams + some.mT @ some
                some = _chosen(k[:, low:high], keys, low, high)
                second = second + some.mT @ some
                first = first + some.sum(1)
                number += some.shape[1]
            if not number:
                return
            less = second - first[:, :, None] * first[:, None, :] / number
            scaled = grams * call.scale**2
            found += [(scaled, second), (scaled, less)]
        products = product_spectrum(
            torch.cat([queries for queries, _ in found]),
            torch.cat([keys.repeat_interleave(call.group, 0) for _, keys in found]),
        ).split(len(q))
        for at, squares in enumerate(products):  # raw and centred at each length in turn
            self._add(call, "centred" if at % 2 else "scores", ends[at // 2], squares)

    def _add(self, call: AttentionCall, what: What, length: int, squares: Tensor) -> None:
        """Add an input's squared singular values `(H, m)`, rising."""
        new = within_sums(squares)
        key = call.site, f"{what}|{length}"
        add_sites(self.sites, {key: {name: x.cpu() for name, x in new.items()}}, _plus)

    def merge(self, other: Self) -> None:
        add_sites(self.sites, other.sites, _plus)

    def state(self) -> State:
        return {
            f"{site}/{kind}|{name}": x.contiguous()
            for (site, kind), sums in self.sites.items()
            for name, x in sums.items()
        }

    @classmethod
    def from_state(cls, state: State, **settings: Any) -> Self:
        made = cls(**settings)
        for site, parts in by_site(state).items():
            for name, x in parts.items():
                kind, _, part = name.rpartition("|")
                made.sites.setdefault((site, kind), {})[part] = x
        return made

    def result(self) -> dict[tuple[Site, What, int], dict[str, Tensor]]:
        """The sums by site, kind of matrix and number of tokens."""
        return {(site, *kind_of(kind)): sums for (site, kind), sums in self.sites.items()}


def kind_of(name: str) -> tuple[What, int]:
    """`"centred|128"` → `("centred", 128)`; a `ValueError` if it names nothing."""
    what, _, length = name.partition("|")
    if what not in get_args(What):
        raise ValueError(f"nothing within an input is called {what[:40]!r}")
    return what, int(length)  # type: ignore[return-value]


def product_spectrum(queries: Tensor, keys: Tensor) -> Tensor:
    """The squared singular values of `QKᵀ`, rising, from `QᵀQ` and `KᵀK`: `(N, D, D)` → `(N, D)`.

    >>> Q, K = torch.randn(2, 1, 40, 4, dtype=torch.float64)
    >>> squares = product_spectrum(Q.mT @ Q, K.mT @ K)
    >>> torch.allclose(squares.sqrt(), torch.linalg.svdvals(Q @ K.mT)[:, :4].flip(1))
    True
    """
    finite = keys.isfinite().all(2).all(1) & queries.isfinite().all(2).all(1)
    if not bool(finite.all()):  # a study refuses these inputs by name; LAPACK would only fail
        squares = queries.new_full(queries.shape[:2], torch.nan)
        if bool(finite.any()):
            squares[finite] = product_spectrum(queries[finite], keys[finite])
        return squares
    factors, failed = torch.linalg.cholesky_ex(keys)
    if bool(failed.any()):  # fewer tokens than dimensions, or tokens that are alike
        some = failed > 0
        values, vectors = torch.linalg.eigh(keys[some])
        factors[some] = vectors * values.clamp_min(0).sqrt()[:, None]
    return decompose_batch(torch.linalg.eigvalsh, factors.mT @ queries @ factors)


def within_sums(squares: Tensor) -> dict[str, Tensor]:
    """What is kept of one input: squared singular values `(H, m)`, rising.

    `counts (H, 4, m + 1)` has a one where the least number of components that hold a share stands,
    `curve (H, m)` each component's share, largest first, and `ranks (H, 2, 2)` effective and stable
    rank with their squares. A matrix of zeros needs no component.
    """
    H, m = squares.shape
    floor = squares[:, -1:] * (m * torch.finfo(squares.dtype).eps)
    squares = torch.where(squares <= floor, 0.0, squares).flip(1)  # NaN stays
    energy = squares.sum(1, keepdim=True)
    curve = squares / torch.where(energy > 0, energy, 1.0)
    held = curve.cumsum(1)[:, None]  # (H, 1, m)
    wanted = torch.tensor(SHARES, dtype=held.dtype, device=held.device)[:, None]
    short = (held < wanted * (1 - 1e-12)).sum(2)  # (H, 4) components that do not suffice
    needed = torch.where(energy > 0, (short + 1).clamp_max(m), 0)
    counts = torch.zeros(H, len(SHARES), m + 1, dtype=torch.float64, device=held.device)
    counts.scatter_(2, needed[..., None], 1.0)
    p = squares.sqrt()
    p = p / torch.where(energy > 0, p.sum(1, keepdim=True), 1.0)
    some = energy[:, 0] > 0
    effective = torch.where(some, torch.special.entr(p).sum(1).exp(), 0.0)
    stable = torch.where(some, energy[:, 0] / torch.where(some, squares[:, 0], 1.0), 0.0)
    ranks = torch.stack([effective, stable], 1)
    return {
        "counts": counts,
        "curve": curve,
        "ranks": torch.stack([ranks, ranks.square()], 2),
        "number": torch.ones((), dtype=torch.float64),
    }


def _plus(mine: dict[str, Tensor], more: dict[str, Tensor]) -> dict[str, Tensor]:
    """The sums of both, with zeros where one has fewer components: as many keys, fewer queries."""
    found = {}
    for name, x in mine.items():
        y = more[name]
        if x.shape != y.shape:
            size = max(x.shape[-1], y.shape[-1])
            x, y = (F.pad(each, (0, size - each.shape[-1])) for each in (x, y))
        found[name] = x + y
    return found


def _powers(length: int) -> Sequence[int]:
    """The lengths 32, 64, 128, … below the whole one."""
    found = [SHORTEST]
    while found[-1] * 2 < length:
        found.append(found[-1] * 2)
    return found if length > SHORTEST else []


def _tokens(call: AttentionCall, at: int) -> tuple[Tensor | None, Tensor | None]:
    """Which queries `(T,)` and keys `(S,)` of an input are no padding; None where all are."""
    if call.mask is None and call.query_valid is None:
        return None, None  # the pairs of a long causal input are not formed
    shape = call.mask_shape
    rows = call.query_valid if shape.queries is None else shape.queries  # (B, T)
    queries = None if rows is None else rows[min(at, len(rows) - 1)]
    if shape.valid is None:
        return queries, None
    seen = shape.valid[min(at, len(shape.valid) - 1)].any(0).any(0)  # by some query of some head
    return queries, None if bool(seen.all()) else seen


def _chosen(x: Tensor, kept: Tensor | None, low: int, high: int) -> Tensor:
    return (x if kept is None else x[:, kept[low:high]]).double()

"""Attention to a window of near tokens and, if asked for, the first tokens (arXiv 2309.17453)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import EigenlensError
from .call_terms import CallTerms, probabilities
from .contract import Mechanism
from .registry import mechanism
from .softmax import attend

LEAST = 16
"""The least queries per chunk: smaller chunks cost more in calls than they save in pairs."""


@dataclass(frozen=True)
class WindowSettings:
    """A query sees itself, the `window` − 1 tokens before it, and the first `sinks` tokens.

    Without a causal mask it also sees as many tokens after it.
    """

    window: int = 256
    sinks: int = 4

    def __post_init__(self) -> None:
        if self.window < 1:
            raise EigenlensError(f"window must be at least 1 token, not {self.window}")
        if self.sinks < 0:
            raise EigenlensError(f"sinks must be 0 or more, not {self.sinks}")


@mechanism("window")
class Window(Mechanism):
    """`A_i = softmax of s_ij over j ∈ W(i) ∪ {first sinks tokens}`.

    A window of near tokens and a few sinks.

    Causal: `W(i) = {j : i − window < j ≤ i}`, and of the sinks those up to i. Both ways: `W(i) = {j
    : |i − j| < window}`, and all sinks. The sinks are the first tokens that are not padding, so
    that padding on the left shifts them. Both ways there must be as many queries as keys: queries
    of another sequence have no place among the keys, and are refused.

    The fast form cuts the queries into chunks of about a window; each chunk attends to the keys
    around it and the sinks in one batched call. Time and memory are of the order of n · window.

    >>> Window(WindowSettings(window=64, sinks=1))(q, k, v, causal=True).shape  # (B, H, T, E)
    """

    Settings: ClassVar[type] = WindowSettings
    linear = True

    def pattern(self, q: Tensor, k: Tensor, given: CallTerms) -> Tensor:
        return probabilities(
            given.scores(q, k).masked_fill(~self.window_pairs(q, k, given), -torch.inf)
        )

    def window_pairs(self, q: Tensor, k: Tensor, given: CallTerms) -> Tensor:
        """Return where windows and sinks are, (B or 1, 1, T, S) bool.

        Whether or not the call lets a query look there.
        """
        T, S = q.shape[2], k.shape[2]
        place = torch.arange(T, device=q.device) + _offset(T, S, given)
        after = torch.arange(S, device=q.device) - place[:, None]  # (T, S): j − i
        stands = (
            torch.ones(1, S, dtype=torch.bool, device=q.device)
            if given.keys is None
            else given.keys
        )
        sink = stands & (stands.cumsum(1) <= self.settings.sinks)  # (B or 1, S)
        return (after.abs() < self.settings.window) | sink[:, None, None]

    def fast(self, q: Tensor, k: Tensor, v: Tensor, given: CallTerms) -> Tensor:
        (B, H, T, _), S, w = q.shape, k.shape[2], self.settings.window
        c = min(T, max(w, LEAST))  # queries of a chunk
        N = -(-T // c)
        L = c + w - 1 + (0 if given.causal else w - 1)  # keys that the queries of a chunk see
        if N == 1 and L >= S:  # one chunk that sees all keys: nothing to cut
            return attend(q, k, v, replace(given, pairs=self.window_pairs(q, k, given)))
        # the first chunk sees as many places before the first key; may be negative
        left = w - 1 - _offset(T, S, given)
        right = (N - 1) * c + L - left - S

        def chunks(t: Tensor, size: int) -> Tensor:  # (B, H, M, D) → (B·N, H, size, D)
            return t.unfold(2, size, c).permute(0, 2, 1, 4, 3).reshape(B * N, H, size, t.shape[3])

        queries = chunks(F.pad(q, (0, 0, 0, N * c - T)), c)
        keys, values = (chunks(F.pad(t, (0, 0, left, right)), L) for t in (k, v))
        stands = (
            torch.ones(1, S, dtype=torch.bool, device=q.device)
            if given.keys is None
            else given.keys
        )
        near = F.pad(stands, (left, right)).unfold(1, L, c)[:, :, None]  # (B or 1, N, 1, L)
        # (c, L): j − i
        after = (
            torch.arange(L, device=q.device) - (w - 1) - torch.arange(c, device=q.device)[:, None]
        )
        mask = near & ((after > -w) & (after <= 0) if given.causal else after.abs() < w)
        if self.settings.sinks:
            padding = (~stands).to(torch.int8)
            # (B or 1, s): the first that stand
            some = padding.argsort(dim=1, stable=True)[:, : self.settings.sinks]
            place = torch.arange(N * c, device=q.device).view(N, c, 1) + _offset(T, S, given)
            before = place - some[:, None, None]  # (B or 1, N, c, s): i − j
            # within the window it is there already
            outside = (before >= w) if given.causal else (before.abs() >= w)
            mask = torch.cat([stands.gather(1, some)[:, None, None] & outside, mask], 3)
            keys, values = (
                torch.cat([_of_all_chunks(first, N), part], 2)
                for first, part in ((_gathered(k, some), keys), (_gathered(v, some), values))
            )
        mask = mask.expand(B, *mask.shape[1:]).reshape(B * N, 1, c, mask.shape[3])
        out = F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, scale=given.scale
        )
        return out.view(B, N, H, c, -1).transpose(1, 2).reshape(B, H, N * c, -1)[:, :, :T]

    def cost(self, n: int, d: int) -> int:
        """`nd` for the scores and `nd` for the values per key that a query sees both ways."""
        return 2 * n * min(n, 2 * self.settings.window - 1 + self.settings.sinks) * d


@dataclass(frozen=True)
class LocalSettings:
    """A query sees itself and the `window` − 1 tokens before it, both ways as many after it."""

    window: int = 64
    sinks: ClassVar[int] = 0

    def __post_init__(self) -> None:
        if self.window < 1:
            raise EigenlensError(f"window must be at least 1 token, not {self.window}")


@mechanism("local", letter="W")
class LocalWindow(Window):
    """`A_i = softmax of s_ij over j ∈ W(i)`: the window alone, without sinks.

    >>> LocalWindow()(q, k, v).shape  # (B, H, T, E)
    """

    Settings = LocalSettings


def _offset(T: int, S: int, given: CallTerms) -> int:
    """Return the place of the first query among the keys."""
    if not given.causal and T != S:
        raise EigenlensError(
            f"without a causal mask a window needs as many queries as keys, not {T} queries and"
            f" {S} keys"
        )
    return S - T


def _gathered(t: Tensor, some: Tensor) -> Tensor:
    """Return rows (B, H, s, D) of `t` (B, H, S, D) at the places `some` (B or 1, s)."""
    B, H, _, D = t.shape
    return t.gather(2, some[:, None, :, None].expand(B, H, some.shape[1], D))


def _of_all_chunks(t: Tensor, N: int) -> Tensor:
    """Repeat for N chunks, (B, H, s, D) → (B·N, H, s, D)."""
    return t[:, None].expand(t.shape[0], N, *t.shape[1:]).flatten(0, 1)

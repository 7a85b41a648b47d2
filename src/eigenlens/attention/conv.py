"""ConvAttention of Multiformer: a strided convolution of keys and values, then attention.

See arXiv 2205.07100.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import EigenlensError
from .call_terms import CallTerms, probabilities
from .contract import Mechanism, Shape
from .registry import mechanism
from .softmax import attend

LARGEST = 1024
"""The most tokens of a kernel: each is a pass over all tokens."""


@dataclass(frozen=True)
class ConvSettings:
    """`kernel`: how many tokens make one shortened key; `stride`: tokens from one to the next."""

    kernel: int = 5
    stride: int = 2

    def __post_init__(self) -> None:
        if self.kernel < 1 or self.stride < 1:
            raise EigenlensError(
                f"kernel and stride of convolved attention must be at least 1, not {self}"
            )
        if self.kernel > LARGEST:
            raise EigenlensError(
                f"the kernel of convolved attention may have at most {LARGEST} tokens, not"
                f" {self.kernel}"
            )


@mechanism("conv", letter="C")
class Conv(Mechanism):
    """`A = softmax(Q (C_k K)ᵀ/√d) C_v`, attention to convolved keys and values.

    The strided convolutions `C_k, C_v (H, ⌈S/s⌉, S)` run along the tokens.

    Every head has one kernel of w numbers for its keys and one for its values; all features share
    it, so that A is a matrix over tokens. Both start as a mean over the kernel. Shortened key j is
    centred on token `js`: 100 tokens become 50 for s = 2. Under a causal mask it covers tokens
    `js−w+1 … js` and is seen by queries from `js` on. Tokens beyond the edges and padding count as
    zeros; a shortened key of only these is masked.

    >>> make("conv", Shape(heads=4), kernel=5, stride=2)(q, k, v).shape  # (B, 4, T, E)
    """

    Settings = ConvSettings
    own_weights = True
    settings: ConvSettings

    def __init__(self, settings: ConvSettings | None = None, shape: Shape | None = None) -> None:
        super().__init__(settings, shape)
        start = torch.full((self.shape.heads, self.settings.kernel), 1 / self.settings.kernel)
        self.keys, self.values = nn.Parameter(start.clone()), nn.Parameter(start.clone())

    def pattern(self, q: Tensor, k: Tensor, given: CallTerms) -> Tensor:
        w, S = self.settings.kernel, k.shape[2]
        tokens, centres = torch.arange(S, device=k.device), self._centres(k)
        # which number of the kernel token t meets: (n, S)
        at = tokens - centres[:, None] + self._before(given.causal)
        covered = (at >= 0) & (at < w)
        # (H, n, S)
        C_k, C_v = (x[:, at.clamp(0, w - 1)] * covered for x in (self.keys, self.values))
        stands = (
            torch.ones(1, S, device=k.device, dtype=torch.bool)
            if given.keys is None
            else given.keys
        )
        C_k, C_v = (x * stands[:, None, None, :] for x in (C_k, C_v))  # (B or 1, H, n, S)
        scores = q @ (C_k @ k).transpose(2, 3) * given.scale  # (B, H, T, n)
        scores = scores.masked_fill(
            ~(covered & stands[:, None]).any(2)[:, None, None, :], -torch.inf
        )
        if given.causal:
            queries = torch.arange(S - q.shape[2], S, device=q.device)
            scores = scores.masked_fill(centres > queries[:, None], -torch.inf)
        return probabilities(scores) @ C_v

    def fast(self, q: Tensor, k: Tensor, v: Tensor, given: CallTerms) -> Tensor:
        S, T, keys = k.shape[2], q.shape[2], None
        if given.keys is not None:
            stands = given.keys[:, None, :, None]
            k, v = k.masked_fill(~stands, 0.0), v.masked_fill(~stands, 0.0)
            ones = torch.ones(1, self.settings.kernel, device=k.device, dtype=k.dtype)
            keys = self._shortened(stands.to(k.dtype), ones, given.causal)[:, 0, :, 0] > 0  # (B, n)
        k, v = (
            self._shortened(k, self.keys, given.causal),
            self._shortened(v, self.values, given.causal),
        )
        pairs = None
        if given.causal:
            centres = torch.arange(k.shape[2], device=k.device) * self.settings.stride
            pairs = (centres <= torch.arange(S - T, S, device=k.device)[:, None])[None, None]
        return attend(q, k, v, CallTerms(given.scale, keys=keys, pairs=pairs))

    def _shortened(self, x: Tensor, kernel: Tensor, causal: bool) -> Tensor:
        """Return `C x`: (B, H, S, d) → (B, H, n, d).

        It takes a strided slice of the tokens for each number of the kernel (H, w).
        """
        w, s, n = self.settings.kernel, self.settings.stride, len(self._centres(x))
        before = self._before(causal)
        after = max(0, (n - 1) * s - before + w - x.shape[2])
        x = F.pad(x, (0, 0, before, after))
        out = torch.zeros_like(x[:, :, : (n - 1) * s + 1 : s])
        for t in range(w):
            out = out + x[:, :, t : t + (n - 1) * s + 1 : s] * kernel[:, t, None, None]
        return out

    def _centres(self, k: Tensor) -> Tensor:
        return torch.arange(0, k.shape[2], self.settings.stride, device=k.device)

    def _before(self, causal: bool) -> int:
        """How many tokens before its own place js a shortened key covers."""
        return self.settings.kernel - 1 if causal else (self.settings.kernel - 1) // 2

    def cost(self, n: int, d: int) -> int:
        """Two convolutions of `⌈n/s⌉ w d`, scores and values of `n ⌈n/s⌉ d` each."""
        few = -(-n // self.settings.stride)
        return 2 * few * self.settings.kernel * d + 2 * n * few * d

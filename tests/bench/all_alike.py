"""A mechanism of a user, as `eigenlens bench --load` takes it: every key counts alike."""

from dataclasses import dataclass

import torch

from eigenlens.attention import Mechanism, mechanism


@dataclass(frozen=True)
class MeanSettings:
    weight: float = 1.0


@mechanism("all-alike")
class Mean(Mechanism):
    """`A = 1/n`, of no paper (arXiv 0000.00000)."""

    Settings = MeanSettings
    linear = True

    def pattern(self, q, k, given):
        allowed = given.allowed(q, k)
        ones = torch.ones_like(q @ k.transpose(2, 3))
        ones = ones if allowed is None else ones * allowed
        return ones / ones.sum(-1, keepdim=True).clamp_min(1)

    def fast(self, q, k, v, given):
        return self.dense(q, k, v, given)

    def cost(self, n, d):
        return n * d

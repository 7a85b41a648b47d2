"""Attention heads computed by hand.

In numpy, and with 80 digits, where a violation cannot hide behind rounding.
"""

import mpmath
import numpy as np
import torch

from eigenlens.collapses.bounds import HeadBound, head_bound

mpmath.mp.dps = 80


def precise(a):
    return np.vectorize(mpmath.mpf, otypes=[object])(a)


def norm_1_inf(m):
    a = np.abs(m)
    return (a.sum(0).max() * a.sum(1).max()) ** 0.5


def softmax(s):
    e = np.vectorize(mpmath.exp, otypes=[object])(s - s.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def numpy_softmax(s):
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def random_head(T=7, C=4, seed=0, size=0.3):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=C) + size * rng.normal(size=(T, C))
    return x, rng.normal(size=(C, C)), rng.normal(size=(C, C))


def bound_of(x, w_qk, w_vo, scale=0.5, **options) -> HeadBound:
    pattern = numpy_softmax(scale * x @ w_qk @ x.T)
    x, pattern, w_qk, w_vo = (torch.as_tensor(a) for a in (x, pattern, w_qk, w_vo))
    return head_bound(x, pattern, w_qk, w_vo, scale, **{"applicable": True} | options)

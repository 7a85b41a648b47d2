"""Every mechanism by its name, made small, with inputs; and its two forms compared."""

import torch

from eigenlens.attention import Shape, make, mechanisms

B, H, D, C, LONGEST = 2, 4, 6, 10, 24
SMALL = {
    "linear": {"chunk": 4},
    "delta": {"chunk": 4},
    "gated-linear": {"chunk": 4},
    "gated-delta": {"chunk": 4},
    "fastmax": {"chunk": 4},
    "performer": {"features": 16, "chunk": 4},
    "conv": {"kernel": 5, "stride": 2},
    "linformer": {"size": 5},
    "nystrom": {"landmarks": 4},
    "uniform-keys": {"keys": 5},
    "feature-rank": {"rank": 3},
    "window": {"window": 5, "sinks": 2},
    "local": {"window": 3},
    "sinkhorn": {"iterations": 3},
    "gated": {"per": "head"},
}
"""Settings that let a short input cross the edges of chunks, windows and strides."""
NAMES = sorted(mechanisms())
CAUSAL = [name for name in NAMES if "causal" in mechanisms()[name].directions]
BOTH_WAYS = [name for name in NAMES if "both ways" in mechanisms()[name].directions]
DIRECTIONS = [(name, True) for name in CAUSAL] + [(name, False) for name in BOTH_WAYS]
PAIRS = [name for name in NAMES if mechanisms()[name].takes_pairs]
FREE = [name for name in NAMES if not mechanisms()[name].own_weights]


def made(name, length=LONGEST, dtype=torch.float32, heads=H):
    torch.manual_seed(7)
    mechanism = make(name, Shape(heads, D, C, length), **SMALL.get(name, {})).to(dtype)
    with torch.no_grad():
        for p in mechanism.parameters():
            p.add_(0.2 * torch.randn_like(p))
    return mechanism


def inputs(T=21, S=None, dtype=torch.float32, G=H, size=1.0):
    torch.manual_seed(3)
    S = T if S is None else S
    shapes = (B, H, T, D), (B, G, S, D), (B, G, S, D + 1), (B, T, C)
    return [(size * torch.randn(shape)).to(dtype).requires_grad_() for shape in shapes]


def cross(mechanism):
    """Whether it can attend from T tokens to S others: not where every token reads its own place,
    or looks around it.
    """
    return not mechanism.reads_stream and mechanism.name not in ("window", "local")


def padding(T, left=False):
    keys = torch.ones(B, T, dtype=torch.bool)
    gone = max(1, T // 3)
    if left:
        keys[0, :gone] = False
    else:
        keys[0, T - gone :] = False
    return keys


def assert_same(mechanism, q, k, v, x, rows=None, tolerance=1e-5, **terms):
    """Outputs of both forms and all their gradients, at queries that stand."""
    x = x if mechanism.reads_stream else None
    wanted = [q, k, v, *([x] if x is not None else []), *mechanism.parameters()]
    weight = torch.randn(*q.shape[:3], v.shape[3], dtype=q.dtype)
    weight = weight if rows is None else weight * rows[:, None, :, None]
    outs = [(form(q, k, v, x=x, **terms) * weight) for form in (mechanism, mechanism.reference)]
    torch.testing.assert_close(*outs, atol=tolerance, rtol=tolerance)
    found = [torch.autograd.grad(out.sum(), wanted, allow_unused=True) for out in outs]
    for at, left, right in zip(wanted, *found):
        left, right = (torch.zeros_like(at) if g is None else g for g in (left, right))
        assert torch.isfinite(left).all()
        size = float(right.abs().max().clamp_min(1.0))
        torch.testing.assert_close(left, right, atol=2 * tolerance * size, rtol=1e-4)

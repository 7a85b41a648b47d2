"""The parts of transformers written out: norms, attention, MLPs, and sublayers with switches.

A sublayer is

    y = N( [skip on, or the branch is off] · x  +  [the branch is on] · f(x) )

with N before f in pre-norm families.
"""

import math

import torch
from torch.nn.functional import linear

from collapses import tape


def lin(x, module):
    return linear(x, module.weight, module.bias)


def conv(x, module):
    """GPT-2's linear map, whose weight is stored as (in, out)."""
    return x @ module.weight + module.bias


def normed(x, module):
    """Layer norm, or an RMS norm where there is no bias."""
    bias, eps = (
        (module.bias, module.eps) if hasattr(module, "bias") else (0.0, module.variance_epsilon)
    )
    x = x - x.mean(-1, keepdim=True) if hasattr(module, "bias") else x
    return x / tape.hold((x.square().mean(-1, keepdim=True) + eps).sqrt()) * module.weight + bias


def tanh_gelu(z):
    return 0.5 * z * (1 + torch.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))


def erf_gelu(z):
    return 0.5 * z * (1 + torch.erf(z / math.sqrt(2)))


def by_head(x, heads):
    """(B, T, H·D) → (B, H, T, D)."""
    return x.view(*x.shape[:2], heads, -1).transpose(1, 2)


def attend(q, k, v, allowed, scale, bias=0.0):
    """(B, H, T, D) → (B, T, H·E); a query without any key gets zeros."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    e = torch.exp(q @ k.transpose(2, 3) * scale + bias) * allowed
    z = tape.weigh_heads(tape.hold(e / e.sum(-1, keepdim=True).clamp_min(1e-300)) @ v)
    return z.transpose(1, 2).flatten(2)


def seen(mask, length, causal=False):
    """Which keys a query may see, (B, 1, T, S)."""
    keys = mask.bool()[:, None, None, :]
    rows = torch.ones(length, mask.shape[1], dtype=torch.bool)
    return keys & (rows.tril() if causal else rows)


def turned(x, angles):
    """Rotate the first 2·F channels of x (B, H, T, D) in pairs (i, i+F) by angles (T, F)."""
    f = angles.shape[-1]
    a, b, rest = x[..., :f], x[..., f : 2 * f], x[..., 2 * f :]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)


def angles_of(model, length):
    """(T, F): position × the model's stored frequencies, which are rounded to float32 and so are
    taken as they are.
    """
    return torch.arange(length, dtype=torch.float64)[:, None] * model.rotary_emb.inv_freq.double()


def switched(on, blocks):
    return ((on[layer], block) for layer, block in enumerate(blocks))


def sublayer(x, kind, norm, f, on, post=False):
    """One branch beside its skip."""
    skip, runs = (on.mlp_skip, on.mlp) if kind == "mlp" else (on.attention_skip, on.attention)
    total = torch.zeros_like(x) if runs and not skip else x
    if runs:
        total = total + f(normed(x, norm) if on.norm and not post else x)
    return normed(total, norm) if on.norm and post else total


def self_attention(q, k, v, out, H, allowed, G=None, angles=None, scale=None, bias=0.0):
    """The body of a self-attention with maps of its own for queries, keys and values."""

    def f(u):
        heads = [by_head(lin(u, m), n) for m, n in ((q, H), (k, G or H), (v, G or H))]
        turn = (
            heads
            if angles is None
            else [turned(heads[0], angles), turned(heads[1], angles), heads[2]]
        )
        return lin(attend(*turn, allowed, scale or heads[0].shape[-1] ** -0.5, bias), out)

    return f


def two_maps(wide, narrow, act, apply=lin):
    """`φ(z) = z · (φ(z)/z)`, so that the gate can be held."""

    def f(u):
        z = apply(u, wide)
        return tape.weigh_mlp(apply(z * tape.hold(act(z) / z), narrow))

    return f

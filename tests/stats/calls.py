"""Attention calls with every kind of mask, small enough for a dense computation beside them."""

import math

import torch

from eigenlens.captures import AttentionCall, Site

FORMS = [
    "full",
    "grouped",
    "causal",
    "causal grouped",
    "window",
    "padded",
    "causal padded",
    "capped",
    "biased",
]


def call(
    form: str,
    batch: int = 3,
    heads: int = 4,
    length: int = 9,
    dimension: int = 5,
    layer: int = 0,
    seed: int = 0,
):
    """A float64 call whose mask is of the given form."""
    rng = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    groups = 2 if "grouped" in form else heads
    q, k = normal(batch, heads, length, dimension), normal(batch, groups, length, dimension) + 0.5
    options = {}
    future = torch.ones(length, length, dtype=torch.bool).tril()
    if form in {"causal", "causal grouped"}:
        options["causal"] = True
    elif form == "window":
        options["mask"] = (future & ~future.tril(-4))[None, None]
    elif form == "capped":
        options["softcap"] = 1.5
    elif form == "biased":
        options |= {"bias": normal(1, heads, length, length), "causal": True}
    elif form.endswith("padded"):
        real = torch.arange(length)[None] < torch.randint(
            length // 2, length + 1, (batch, 1), generator=rng
        )
        mask = real[:, None, None, :].expand(batch, 1, length, length)
        options |= {
            "mask": mask & future if form.startswith("causal") else mask,
            "query_valid": real,
        }
    return AttentionCall(Site("self", layer), "self", "", q, k, k, 0.3, **options)


def dense_rows(call: AttentionCall, head: int):
    """Scores and validity of all valid rows of a head, (R, S) each, pair by pair from the
    definition.
    """
    B, H, T, _ = call.q.shape
    S, group = call.k.shape[2], call.heads // call.k.shape[1]
    valid = call.valid().expand(B, H, T, S)[:, head]
    scores = torch.zeros(B, T, S, dtype=torch.float64)
    for b in range(B):
        for i in range(T):
            for j in range(S):
                s = call.scale * float(call.q[b, head, i] @ call.k[b, head // group, j])
                s = call.softcap * math.tanh(s / call.softcap) if call.softcap else s
                scores[b, i, j] = s + (
                    float(call.bias[0, head, i, j]) if call.bias is not None else 0.0
                )
    rows = valid.any(-1)
    return scores[rows], valid[rows]

"""How much weight the keys of an input get.

It is measured for random scores, for scores at the edge of the guarantee, and for whole models.

The weight of a key is the sum of its column of the pattern, 1 on average. Under a causal mask early
keys are seen by more queries than late ones; there it is `S` times the mean over the queries that
see the key, which is the same without a mask.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...attention.call_terms import probabilities
from ...attention.doubly_normalised import balanced
from ...captures import AttentionCall, Head, capture
from ...diagnostics import CallView
from ...diagnostics.diagnostic import field_by_site
from ...diagnostics.keys import BINS, NORMALISED, Keys, below_threshold, histogram, key_weights
from ...errors import EigenlensError
from ...models.load import load
from ..inputs import token_ids

SCALES = (0.5, 2.0, 8.0, 32.0, 128.0)
"""Standard deviations of random scores."""
BATCH = 8


def random_keys(sizes: Sequence[int], draws: int, seed: int) -> list[dict[str, Any]]:
    """The least weight of a key times S, for normal scores of several sizes and normalisations.

    Also how far rows are from a sum of 1.
    """
    rows = []
    for S in sizes:
        for scale in SCALES:
            draw = torch.Generator().manual_seed(seed + 1000 * S)
            s = scale * torch.randn(draws, S, S, generator=draw, dtype=torch.float64)
            made = {
                "softmax": probabilities(s),
                "doubly normalised": balanced(s),
                "Sinkhorn, 5": balanced(s, 5),
            }
            row: dict[str, Any] = {"S": S, "scale of scores": scale}
            for name, A in made.items():
                row[f"{name}: least · S"] = float(A.sum(1).min()) * S
                row[f"{name}: rows off 1"] = float((A.sum(2) - 1).abs().max())
            rows.append(row)
    return rows


def tight(S: int, strength: float) -> dict[str, Any]:
    """Scores at the edge of the guarantee: one query outbids the others for every key.

    The others look at the first key alone; all other keys get a weight near 1/S.

    >>> tight(8, 20.0)["doubly normalised: least · S"]  # near 1
    """
    s = torch.full((S, S), -strength, dtype=torch.float64)
    s[0], s[1:, 0] = strength, 0.0
    found = {"softmax": probabilities(s), "doubly normalised": balanced(s)}
    return {
        "S": S,
        "strength": strength,
        **{f"{name}: least · S": float(A.sum(0).min()) * S for name, A in found.items()},
    }


def mixtures(T: int, S: int, d: int, seed: int) -> list[dict[str, Any]]:
    """Both patterns as posteriors of mixtures of Gaussians of variance √d in each direction.

    Softmax: the keys are the centres, with a share of each `π_j ∝ exp(‖k_j‖²/2√d)`, and `A_ij = p(j
    | q_i)`. Doubly normalised: the queries are the centres, `π_i ∝ exp(‖q_i‖²/2√d)`, and `ξ_ij =
    p(i | k_j)`. The output `Σ_j ξ_ij v_j / Σ_j ξ_ij` is what one step of expectation-maximisation
    makes of a centre, with the values as data. What is given is explained wholly: queries by
    softmax, keys by the other. A centre need not explain anything.
    """
    draw = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(n, d, generator=draw, dtype=torch.float64) for n in (T, S, S))
    s = q @ k.T / math.sqrt(d)
    # (T, S) both: of keys given a query, of queries given a key
    softmax, xi = posterior(q, k), posterior(k, q).T
    update = (xi @ v) / xi.sum(1, keepdim=True)
    return [
        {
            "pattern": "softmax",
            "largest difference": float((softmax - probabilities(s)).abs().max()),
        },
        {
            "pattern": "doubly normalised, step over queries",
            "largest difference": float((xi - s.softmax(0)).abs().max()),
        },
        {
            "pattern": "doubly normalised, output",
            "largest difference": float((update - balanced(s) @ v).abs().max()),
        },
    ]


def posterior(data: Tensor, centres: Tensor) -> Tensor:
    """`p(centre | datum)` (N, M), from Gaussians about the centres (M, d) and their shares."""
    variance = math.sqrt(data.shape[1])
    shares = (centres.square().sum(1) / (2 * variance)).softmax(0)
    density = torch.exp(-torch.cdist(data, centres).square() / (2 * variance))
    joint = shares * density
    return joint / joint.sum(1, keepdim=True)


def causal_leak(n: int, seed: int) -> float:
    """How far an earlier query's pattern moves with the last query under a causal mask."""
    draw = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(n, 16, generator=draw, dtype=torch.float64) for _ in range(2))
    other = q.clone()
    other[-1] = 3 * torch.randn(16, generator=draw, dtype=torch.float64)
    later = torch.ones(n, n, dtype=torch.bool).triu(1)
    before, after = (balanced((x @ k.T / 4).masked_fill(later, -torch.inf)) for x in (q, other))
    return float((after - before)[:-1].abs().max())


class KeyWeights:
    """Sums over inputs of the weights that the keys of each head get.

    Counted are those below the thresholds, the least, and a histogram.

    `below` (H, thresholds) counts, `least` (H,), `histogram` (bins,) of all heads.
    """

    def __init__(self, heads: int, thresholds: Sequence[float]) -> None:
        self.thresholds = torch.tensor(thresholds, dtype=torch.float64)
        self.below = torch.zeros(heads, len(thresholds), dtype=torch.float64)
        self.least = torch.full((heads,), torch.inf, dtype=torch.float64)
        self.histogram = torch.zeros(BINS[2], dtype=torch.float64)
        self.keys = 0

    def add(self, A: Tensor, seen: Tensor) -> None:
        """A pattern (B, H, T, S), and where a query may look."""
        seen_by = seen.sum(2)
        # (B, H, S)
        weights = key_weights(A.sum(2, dtype=torch.float64) / seen_by.clamp_min(1), seen_by)
        for at, threshold in enumerate(self.thresholds.tolist()):
            self.below[:, at] += below_threshold(weights, seen.any(2), threshold).sum((0, 2))
        self.least = torch.minimum(self.least, weights.amin((0, 2)))
        self.histogram += histogram(weights)
        self.keys += weights.shape[0] * weights.shape[2]


@torch.no_grad()
def model_keys(name: str, text: str, length: int, inputs: int, seed: int) -> dict[str, Any]:
    """The weights of keys in every head of a model under its softmax.

    Where no mask is causal, also those of doubly normalised scores.

    The diagnostic `keys`, shown one input at a time so that none is left out, in double precision.
    """
    model = load(name)
    ids = token_ids(model, text, length, inputs, seed)
    keys = Keys(tau=0.1)

    def see(call: AttentionCall) -> None:
        if call.kind != "self" or call.sinks is not None:
            raise EigenlensError(
                f"{name} attends otherwise than by softmax over its own tokens; choose another"
                " model"
            )
        for i in range(len(call.q)):
            one = call.of_inputs(slice(i, i + 1))
            keys.update(CallView(replace(one, q=one.q.double(), k=one.k.double())))

    with capture(model.backbone, see):
        for batch in ids.split(BATCH):
            model.backbone(input_ids=batch)
    return {"heads": _head_rows(name, keys, ids.numel()), "histogram": _histogram(name, keys)}


def _head_rows(name: str, keys: Keys, number: int) -> list[dict[str, Any]]:
    """A row for every head and normalisation, layer by layer; `number` keys were seen of each."""
    finding, rows = keys.result(), []
    for site, kept in field_by_site(keys.peaks, "least"):
        least = -kept  # (2, H)
        for at, attention in sorted(enumerate(NORMALISED), key=lambda pair: pair[1]):
            some, uniform = (
                finding.values(number) for number in list(keys.numbers)[3 * at : 3 * at + 2]
            )
            for head in range(least.shape[1]):
                where = Head(site.stack, site.layer, head)
                if where in some:
                    rows.append(
                        {
                            "model": name,
                            "attention": attention,
                            "layer": site.layer,
                            "head": head,
                            "keys": number,
                            "below 1/S": uniform[where],
                            "below 0.1": some[where],
                            "least": float(least[at, head]),
                        }
                    )
    return rows


def _histogram(name: str, keys: Keys) -> list[dict[str, Any]]:
    """The share of all keys in every bin, by the bin's middle."""
    low, high, bins = BINS
    # (2, bins)
    total = torch.stack([x for name, x in keys.sums.items() if name.endswith("/histogram")]).sum(0)
    rows = []
    for attention, counts in zip(NORMALISED, total):
        for number, share in enumerate(
            (counts / counts.sum()).tolist() if bool(counts.any()) else ()
        ):
            middle = low + (number + 0.5) * (high - low) / bins
            rows.append(
                {"model": name, "attention": attention, "log10 of weight": middle, "share": share}
            )
    return rows

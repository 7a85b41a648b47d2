"""What is measured of fastmax.

Its factors are compared with its formula; then come its matrix at the start, what it lets through,
and its cost.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...attention import Mechanism, make
from ...attention.fastmax import Fastmax, FastmaxSettings
from ...lab import Config, NextBytes, Sort, TrainingSettings, Transformer, train
from ...run.progress import Progress

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "softmax": ("softmax", {}),
    "fastmax p=1": ("fastmax", {"p": 1}),
    "fastmax p=2": ("fastmax", {"p": 2}),
}
UNNORMALISED = {"fastmax p=2, scores as they are": ("fastmax", {"p": 2, "normalise": "none"})}
WAYS = ((1, "token"), (1, "centred"), (2, "token"), (2, "centred"), (2, "none"))


def make_kind(kind: str) -> Mechanism:
    name, settings = {**KINDS, **UNNORMALISED}[kind]
    return make(name, **settings)


def vectors(
    number: int, n: int, d: int, seed: int, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    """Queries, keys and values (1, number, n, d) of independent N(0, 1)."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(1, number, n, d, generator=generator, dtype=dtype) for _ in range(3)]


def agreement(n: int, d: int, seed: int) -> list[dict[str, Any]]:
    """Factors beside the dense formula in float32: largest differences.

    They are those of outputs, of row sums from 1, and of gradients (as shares of the largest where
    that is above 1).
    """
    rows = []
    for p, normalise in WAYS:
        for causal in (False, True):
            mechanism, qkv = make("fastmax", p=p, normalise=normalise), vectors(4, n, d, seed)
            weight = torch.randn(qkv[2].shape, generator=torch.Generator().manual_seed(seed + 1))
            for x in qkv:
                x.requires_grad_()
            outs = mechanism(*qkv, causal=causal), mechanism.reference(*qkv, causal=causal)
            slopes = [torch.autograd.grad((out * weight).sum(), qkv) for out in outs]
            sums = mechanism.weights(*qkv[:2], causal=causal).sum(3)
            rows.append(
                {
                    "p": p,
                    "normalise": normalise,
                    "causal": causal,
                    "outputs": float((outs[0] - outs[1]).detach().abs().max()),
                    "gradients": max(
                        float((a - b).abs().max() / b.abs().max().clamp_min(1))
                        for a, b in zip(*slopes)
                    ),
                    "row sums": float((sums - 1).detach().abs().max()),
                }
            )
    return rows


def ranks(widths: Sequence[int], n: int, seed: int) -> list[dict[str, Any]]:
    """The rank of A in float64, the largest of 4 heads, beside C(D+p, p).

    Singular values above 10⁻¹⁰ of the largest count.
    """
    return [
        {
            "p": p,
            "D": d,
            "tokens": n,
            "rank": int(torch.linalg.matrix_rank(A, rtol=1e-10).max()),
            "bound": math.comb(d + p, p),
        }
        for p in (1, 2)
        for d in widths
        for A in [make("fastmax", p=p).weights(*vectors(4, n, d, seed, torch.float64)[:2])]
    ]


def kernels(n: int, d: int, seed: int) -> list[dict[str, Any]]:
    """The least value of f, and how many are negative.

    Both at all products of N(0, 1) queries and keys over √D, and on a fine grid.
    """
    q, k, _ = vectors(4, n, d, seed, torch.float64)
    scores, grid = (
        q @ k.transpose(2, 3) * d**-0.5,
        torch.linspace(-20, 20, 40_001, dtype=torch.float64),
    )
    rows = []
    for p in (1, 2):
        f = Fastmax(FastmaxSettings(p)).kernel
        values = f(scores)
        weights = values / values.sum(3, keepdim=True)
        rows.append(
            {
                "p": p,
                "least": float(values.min()),
                "least on [−20, 20]": float(f(grid).min()),
                "share negative": float((values < 0).double().mean()),
                "least weight × tokens": n * float(weights.min()),
            }
        )
    return rows


def entropy(A: Tensor) -> float:
    """`−Σ_j A_ij ln A_ij / ln n`, mean over rows: 1 is uniform."""
    return float(torch.special.entr(A).sum(-1).mean()) / math.log(A.shape[-1])


def starts(
    lengths: Sequence[int], widths: Sequence[int], seeds: Sequence[int]
) -> list[dict[str, Any]]:
    """A at N(0, 1) queries and keys: entropy, singular values and stable rank.

    The stable rank is that behind one layer `A X W`, X orthogonal, W normal.
    """
    rows = []
    for seed in seeds:
        for n in lengths:
            for d in widths:
                q, k, _ = vectors(1, n, d, 1000 * seed + n + d)
                X = torch.linalg.qr(
                    torch.randn(n, n, generator=torch.Generator().manual_seed(seed))
                )[0]
                W = torch.randn(n, n, generator=torch.Generator().manual_seed(seed + 1))
                for kind in KINDS:
                    A = make_kind(kind).weights(q, k)[0, 0]
                    values = torch.linalg.svdvals(A)
                    of_layer = torch.linalg.svdvals(A @ X @ W).double() ** 2  # of Σ = (AXW)(AXW)ᵀ
                    rows.append(
                        {
                            "mechanism": kind,
                            "seed": seed,
                            "tokens": n,
                            "D": d,
                            "entropy / ln N": entropy(A[None]),
                            "s1": float(values[0]),
                            "s2 √N": float(values[1]) * n**0.5,
                            "stable rank": float(of_layer.square().sum() / of_layer.max().square()),
                        }
                    )
    return rows


def random_models(n: int, d: int, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """The same entropy in a two-layer lab model at its random start.

    It is taken on random tokens, as the mean of layers and heads.
    """
    rows = []
    for kind, (name, settings) in KINDS.items():
        for seed in seeds:
            torch.manual_seed(seed)
            config = Config(
                256,
                n,
                2 * d,
                2,
                2,
                neighbourly=False,
                mechanism=name,
                mechanism_settings={name: settings},
            )
            patterns = Transformer(config).patterns(torch.randint(256, (1, n)))
            rows.append(
                {
                    "mechanism": kind,
                    "seed": seed,
                    "tokens": n,
                    "D": d,
                    "entropy / ln N": sum(entropy(A.detach()) for A in patterns) / len(patterns),
                }
            )
    return rows


def sharpest(lengths: Sequence[int], d: int) -> list[dict[str, Any]]:
    """The most that a query can give one key.

    That key points its way, all others the opposite way; scores of softmax are ±50.
    """
    rows = []
    for n in lengths:
        q = torch.zeros(1, 1, 1, d, dtype=torch.float64)
        q[..., 0] = (50 * d**0.5) ** 0.5
        k = torch.cat([q, -q.expand(1, 1, n - 1, d)], 2)
        most = {kind: float(make_kind(kind).weights(q, k)[..., 0]) for kind in KINDS}
        rows.append({"tokens": n, **most, "5/(N+4)": 5 / (n + 4)})
    return rows


def leaks(n: int, d: int, seed: int) -> list[dict[str, Any]]:
    """How far earlier outputs move when the last token grows fivefold, under a causal mask."""
    q, k, v = vectors(4, n, d, seed)
    raw = make("fastmax", normalise="none")

    def global_maximum(q: Tensor, k: Tensor) -> Tensor:
        q, k = (x / x.norm(dim=3).max() for x in (q, k))
        return raw(q, k, v, causal=True, scale=1.0)

    def by_token(p: int, normalise: str, q: Tensor, k: Tensor) -> Tensor:
        return make("fastmax", p=p, normalise=normalise)(q, k, v, causal=True)

    forms: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "a maximum over all tokens": global_maximum
    }
    forms |= {f"p={p}, {normalise}": partial(by_token, p, normalise) for p, normalise in WAYS}
    longer = [torch.cat([x[:, :, :-1], 5 * x[:, :, -1:]], 2) for x in (q, k)]
    return [
        {"normalisation": name, "moved": float((form(*longer) - form(q, k))[:, :, :-1].abs().max())}
        for name, form in forms.items()
    ]


@torch.no_grad()
def times(
    lengths: Sequence[int], heads: int, d: int, rounds: int, seed: int
) -> list[dict[str, Any]]:
    """Milliseconds of a causal forward pass (1, heads, N, D), the least of the rounds.

    All kinds take turns within a round.

    They are processor time of one thread, which other work of the machine hardly changes.
    """
    mechanisms = {kind: make_kind(kind) for kind in KINDS}
    rows, threads = [], torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for n in lengths:
            qkv = vectors(heads, n, d, seed)
            best = dict.fromkeys(KINDS, math.inf)
            for _ in range(rounds):
                for kind, mechanism in mechanisms.items():
                    begin = time.thread_time()
                    mechanism(*qkv, causal=True)
                    best[kind] = min(best[kind], time.thread_time() - begin)
            rows += [
                {
                    "mechanism": kind,
                    "tokens": n,
                    "milliseconds": 1000 * best[kind],
                    "to softmax": best[kind] / best["softmax"],
                }
                for kind in KINDS
            ]
    finally:
        torch.set_num_threads(threads)
    return rows


def operations(widths: Sequence[int], n: int) -> list[dict[str, Any]]:
    """Multiply-adds of a causal pass of one head, as torch's counter sees them.

    They are counted at n tokens and at twice as many.
    """
    from torch.utils.flop_counter import FlopCounterMode

    rows = []
    for p in (1, 2):
        for d in widths:
            counted = {}
            for size in (n, 2 * n):
                qkv = [torch.zeros(1, 1, size, d) for _ in range(3)]
                with FlopCounterMode(display=False) as counter:
                    make("fastmax", p=p)(*qkv, causal=True)
                counted[size] = counter.get_total_flops() // 2
            rows.append(
                {
                    "p": p,
                    "D": d,
                    "tokens": n,
                    "multiply-adds": counted[n],
                    "at twice the tokens": counted[2 * n],
                }
            )
    return rows


def trained(
    task_name: str, kind: str, seed: int, scale: Any, progress: Progress
) -> list[dict[str, Any]]:
    """One small model on one task: held-out loss and accuracy along training.

    The last row also has the entropy of its patterns.
    """
    name, settings = {**KINDS, **UNNORMALISED}[kind]
    shape = {"width": scale.width, "layers": scale.layers, "heads": scale.heads, "mechanism": name}
    task = (
        Sort()
        if task_name == "sort"
        else NextBytes.from_data(scale.text, characters=400_000, length=scale.length)
    )
    torch.manual_seed(seed)
    model = Transformer(task.config(**shape, mechanism_settings={name: settings}))
    steps = scale.sort_steps if task_name == "sort" else scale.steps
    run = train(
        model,
        task,
        TrainingSettings(steps, rate=scale.rate, measure=max(1, steps // 5), seed=seed),
        progress=progress,
        label=f"training {kind} on the task {task_name}",
    )
    with torch.no_grad():
        patterns = model.patterns(next(iter(task.held_out())).inputs[:16])
    # the last token sees all others under a causal mask, too
    last = [A[:, :, -1:] for A in patterns]
    sharpness = sum(entropy(A) for A in last) / len(last)
    return [
        {
            "task": task_name,
            "mechanism": kind,
            "seed": seed,
            "step": point.step,
            "loss": point.loss,
            "accuracy": point.accuracy,
            "entropy / ln N": sharpness if point is run.curve[-1] else None,
        }
        for point in run.curve
    ]

"""The chunked recurrences.

Measured are that they equal the loop over tokens, what they cost by length, and what a pattern of
layers saves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...attention import Shape, make
from ...attention.delta_rule import chunked, recurrent

RULES = {"delta": (False, True), "gated-linear": (True, False), "gated-delta": (True, True)}
"""Of each rule: whether it decays, and whether it erases."""
PATTERNS = {
    "F": "all full",
    "DF": "",
    "DDDF": "Qwen3-Next, Kimi Linear",
    "DDDDDDDF": "Jamba (its ratio)",
    "D": "all linear",
}


def random_inputs(
    n: int, heads: int, width: int, seed: int, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    """q, k of length one, v, (1, H, n, D) each, α of .9 to 1 and β of 0 to 1, (1, H, n) each."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(1, heads, n, width, generator=generator, dtype=dtype) for _ in range(3))
    alpha, beta = (torch.rand(1, heads, n, generator=generator, dtype=dtype) for _ in range(2))
    return [F.normalize(q, dim=3), F.normalize(k, dim=3), v, 1 - alpha / 10, beta]


def _of(rule: str, inputs: Sequence[Tensor]) -> tuple[Any, ...]:
    decays, erases = RULES[rule]
    q, k, v, alpha, beta = inputs
    return q, k, v, alpha if decays else None, beta if erases else None, erases


def equality(
    n: int, heads: int, width: int, chunks: Sequence[int], seeds: int, seed: int
) -> list[dict[str, Any]]:
    """The largest difference of the chunked form from the loop, of outputs and gradients.

    Gradients are relative to the largest. All is in single precision; the loop in single precision
    is also compared with the one in double.
    """
    rows = []
    for rule in RULES:
        for trial in range(seeds):
            inputs = random_inputs(n, heads, width, seed * 1000 + trial)
            looped, slopes = _with_gradients(recurrent, rule, inputs)
            exact = recurrent(*_of(rule, [t.double() for t in inputs]))
            for chunk in chunks:
                out, found = _with_gradients(partial(chunked, chunk=chunk), rule, inputs)
                rows.append(
                    {
                        "rule": rule,
                        "chunk": chunk,
                        "seed": trial,
                        "tokens": n,
                        "outputs": float((out - looped).abs().max()),
                        "gradients": max(
                            float((a - b).abs().max() / b.abs().max())
                            for a, b in zip(found, slopes)
                        ),
                        "loop in single precision": float((looped - exact).abs().max()),
                    }
                )
    return rows


def _with_gradients(
    form: Callable[..., Tensor], rule: str, inputs: Sequence[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    leaves = [t.clone().requires_grad_() for t in inputs]
    out = form(*_of(rule, leaves))
    found = torch.autograd.grad(out.square().sum(), leaves, allow_unused=True)
    return out.detach(), [g for g in found if g is not None]


@torch.no_grad()
def speed(
    lengths: Sequence[int],
    loop: int,
    heads: int,
    width: int,
    repeats: int,
    seed: int,
    progress: Callable[[int, int], None],
) -> list[dict[str, Any]]:
    """Milliseconds of processor time of a forward pass by length, the least of `repeats`.

    Loops run over at most `loop` tokens.

    Processor time is the sum over threads, and does not count what the machine does for others.
    """
    rows = []
    for at, n in enumerate(lengths):
        progress(at, len(lengths))
        inputs = random_inputs(n, heads, width, seed)
        q, k, v = inputs[:3]
        forms: dict[str, Callable[[], Tensor]] = {
            name: partial(make(name), q, k, v, causal=True) for name in ("softmax", "linear")
        }
        for rule in RULES:
            forms[rule] = partial(chunked, *_of(rule, inputs))
            if n <= loop:
                forms[f"{rule}, loop"] = partial(recurrent, *_of(rule, inputs))
        for name, form in forms.items():
            times = []
            for _ in range(2 if name.endswith("loop") else repeats):
                begin = time.process_time()
                form()
                times.append(time.process_time() - begin)
            rows.append({"form": name, "tokens": n, "milliseconds": 1000 * min(times)})
    return rows


def pattern_costs(lengths: Sequence[int], heads: int, width: int) -> list[dict[str, Any]]:
    """Multiply-adds of a pattern's attention, and the numbers it keeps to go on with.

    Both are relative to full attention.

    A full layer keeps a key and a value of every token, a linear one its state.
    """
    kinds = {"F": make("softmax"), "D": make("gated-delta", Shape(heads, width, heads * width))}
    rows = []
    for pattern, known in PATTERNS.items():
        for n in lengths:
            costs = {letter: kind.cost(n, width) for letter, kind in kinds.items()}
            kept = {"F": 2 * n * width, "D": width * width}
            rows.append(
                {
                    "pattern": pattern,
                    "known from": known,
                    "tokens": n,
                    "cost": sum(costs[x] for x in pattern) / len(pattern) / costs["F"],
                    "kept": sum(kept[x] for x in pattern) / len(pattern) / kept["F"],
                }
            )
    return rows

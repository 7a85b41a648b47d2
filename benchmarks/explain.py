"""What explanations cost, as ratios to a forward pass in the same run.

    python benchmarks/explain.py methods      one text by every method, and by each
    python benchmarks/explain.py relevance    relevance of a batch, beside its inputs one by one

Each prints a Markdown table; `benchmarks/explain.md` holds what was measured, with the command.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

import eigenlens as el
from eigenlens.anatomy.frozen import freeze
from eigenlens.data.inputs import Request, prepare
from eigenlens.explanations.deletion import deletion_curves
from eigenlens.explanations.methods import METHODS, attribute
from eigenlens.explanations.observed import observe
from eigenlens.explanations.propagation import relevance as relevance_of
from eigenlens.explanations.target import target_of
from eigenlens.models.forward import forward_of
from tables import table


def batch_of(model: el.Model, length: int, inputs: int) -> dict[str, torch.Tensor]:
    """Texts of `length` tokens each of the Python documentation."""
    with TemporaryDirectory() as scratch:
        ready = prepare(
            model, Request(("python-docs",), length, max(2 * inputs, 8), 0.2, 0), Path(scratch)
        )
        return next(ready.batches(-1, inputs))[1]


def in_turns(runs: dict[str, Callable[[], Any]], rounds: int = 9) -> dict[str, float]:
    """Median seconds of each.

    They take turns, so that whatever else the machine does falls on all of them alike.
    """
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            begin = time.perf_counter()
            run()
            if number:  # the first round only warms up
                taken[name].append(time.perf_counter() - begin)
    return {name: statistics.median(times) for name, times in taken.items()}


def methods(model: el.Model, length: int) -> list[dict[str, Any]]:
    """One text by all methods, mark 30 forward passes.

    Then the parts that they share, and each method alone.
    """
    batch, whole = batch_of(model, length, 1), forward_of(model, with_head=True)
    against = (
        "What does a function return?"
        if model.module.__class__.__name__.endswith("Model")
        else None
    )
    target = target_of(model, batch, against=against)

    def forward() -> None:
        with torch.no_grad():
            whole(batch)

    found = attribute(model, batch, target)
    runs: dict[str, Callable[[], Any]] = {
        "a forward pass": forward,
        "**all methods**": lambda: attribute(model, batch, target),
        "observe: forward and backward pass": lambda: observe(model, batch, target),
        "freeze": lambda: freeze(model.module, batch, whole),
    }
    for name in METHODS:
        if name in found:
            runs[f"{name} alone"] = lambda name=name: attribute(model, batch, target, [name])  # type: ignore[misc]
    taken = in_turns(runs)
    curves = in_turns(
        {"a forward pass": forward, "curves": lambda: deletion_curves(model, batch, target, found)},
        rounds=3,
    )
    rows = [
        {"what": name, "× forward": seconds / taken["a forward pass"]}
        for name, seconds in taken.items()
    ]
    return [
        *rows,
        {
            "what": "deletion curves of all methods",
            "× forward": curves["curves"] / curves["a forward pass"],
        },
    ]


def relevance(model: el.Model, length: int, inputs: int = 16) -> list[dict[str, Any]]:
    """Relevance of `inputs` texts in one batch, beside a loop over them, in the same run."""
    batch = batch_of(model, length, inputs)
    against = (
        "What does a function return?"
        if model.module.__class__.__name__.endswith("Model")
        else None
    )
    target = target_of(model, batch, against=against)
    rows = [{name: x[i : i + 1] for name, x in batch.items()} for i in range(inputs)]
    targets = [target.of(torch.tensor([i])) for i in range(inputs)]
    whole = forward_of(model, with_head=True)

    def forward() -> None:
        with torch.no_grad():
            whole(batch)

    def together() -> torch.Tensor:
        return relevance_of(observe(model, batch, target), start=False)

    def one_by_one() -> torch.Tensor:
        return torch.cat(
            [relevance_of(observe(model, row, one), start=False) for row, one in zip(rows, targets)]
        )

    first, again = together(), one_by_one()
    gap = float((first - again).abs().max() / again.abs().max())
    taken = in_turns(
        {
            "a forward pass of the batch": forward,
            "one by one": one_by_one,
            "in one batch": together,
        },
        rounds=5,
    )
    plain, loop = taken["a forward pass of the batch"], taken["one by one"]
    return [
        {
            "what": name,
            "× forward": seconds / plain,
            "one by one / this": loop / seconds,
            "difference / largest": f"{gap:.0e}",
        }
        for name, seconds in taken.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["methods", "relevance"])
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--max-length", type=int, default=128)
    given = parser.parse_args()
    model = el.load(given.model)
    table({"methods": methods, "relevance": relevance}[given.what](model, given.max_length))


if __name__ == "__main__":
    main()

"""What taking a model apart costs, as ratios to its forward pass in the same run.

    python benchmarks/collapse.py paths       the output by path length, beside an enumeration
    python benchmarks/collapse.py ablation    a forward pass with every part off
    python benchmarks/collapse.py depth       metrics along depth

Each prints a Markdown table; `benchmarks/collapse.md` holds what was measured, with the command.
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
from eigenlens.captures import attention_names, capture_layers
from eigenlens.collapses import ABLATIONS, draw_paths, frozen_terms, head_marginals
from eigenlens.collapses.paths import path_counts
from eigenlens.data.inputs import Request, prepare
from eigenlens.models.forward import forward_of
from eigenlens.stats import DepthMetrics
from tables import table


def batch_of(model: el.Model, length: int, inputs: int) -> dict[str, torch.Tensor]:
    with TemporaryDirectory() as scratch:
        ready = prepare(model, Request(("python-docs",), length, 2 * inputs, 0.2, 0), Path(scratch))
        return next(ready.batches(-1, inputs))[1]


def seconds(run: Callable[[], Any], times: int = 5) -> float:
    """The median of some runs, after one that is not counted."""
    run()
    taken = []
    for _ in range(times):
        begin = time.perf_counter()
        run()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


def paths(model: el.Model, batch: dict[str, torch.Tensor]) -> list[dict[str, Any]]:
    forward = forward_of(model)
    plain = seconds(lambda: forward(batch))
    frozen = el.freeze(model.backbone, batch, forward)[0]
    layers, counts = (
        len(frozen.branches("attention")),
        path_counts([b.heads for b in frozen.branches("attention")]),
    )
    rows = []

    def add(what: str, taken: float, note: str) -> None:
        rows.append({"what": what, "× forward": taken / plain, "note": note})

    freezing = seconds(lambda: el.freeze(model.backbone, batch, forward))
    lengths = seconds(lambda: el.decompose_paths(frozen))
    found = el.decompose_paths(frozen)
    add("freeze", freezing, "the forward pass included")
    add("path lengths, by attention hops", lengths, f"sum {found.error:.0e} from the output")
    add(
        "both together: the whole length decomposition",
        freezing + lengths,
        f"mark: L + 3 = {layers + 3}",
    )
    add(
        "path lengths, by attention and MLP hops",
        seconds(lambda: el.decompose_paths(frozen, "both"), 1),
        f"{(layers + 1) ** 2} terms",
    )
    add(
        "head marginals by length",
        seconds(lambda: head_marginals(frozen), 1),
        f"{layers} × {frozen.branches('attention')[0].heads} heads",
    )
    drawn = draw_paths(
        torch.ones(layers, frozen.branches("attention")[0].heads), layers, some := 20
    )
    one = seconds(lambda: frozen_terms(frozen, drawn), 3) / some
    add(
        f"one path of full length (mean of {some} random ones)",
        one,
        "one head a layer, MLPs go along",
    )
    add(
        f"enumeration: all {counts[-1]:,} paths of full length",
        one * counts[-1],
        "extrapolated from those",
    )
    return rows


def ablation(model: el.Model, batch: dict[str, torch.Tensor]) -> list[dict[str, Any]]:
    forward = forward_of(model)
    plain = seconds(lambda: forward(batch))
    rows = []
    for name, switches in ABLATIONS.items():
        with el.ablate(model, switches):
            rows.append({"variant": name, "× forward": seconds(lambda: forward(batch)) / plain})
    return rows


def depth(model: el.Model, batch: dict[str, torch.Tensor]) -> list[dict[str, Any]]:
    forward, rows = forward_of(model), []
    plain = seconds(lambda: forward(batch))
    with el.capture(model.backbone) as calls:
        forward(batch)
    for every in (1, 4, 32):
        statistic = DepthMetrics(every=every)

        def run(statistic: DepthMetrics = statistic) -> None:
            with capture_layers(model.backbone, attention_names(calls), statistic.update):
                forward(batch)

        rows.append({"every n-th input": every, "× forward": seconds(run, 3) / plain})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["paths", "ablation", "depth"])
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument("--max-inputs", type=int, default=16)
    given = parser.parse_args()
    model = el.load(given.model)
    with torch.no_grad():
        table(
            {"paths": paths, "ablation": ablation, "depth": depth}[given.what](
                model, batch_of(model, given.max_length, given.max_inputs)
            )
        )


if __name__ == "__main__":
    main()

"""How studies grow: with inputs, length and heads, and with workers. Ratios of times in one run.

    python benchmarks/scale.py inputs     time against the number of inputs
    python benchmarks/scale.py length     time of an input against its length
    python benchmarks/scale.py heads      time against the number of heads
    python benchmarks/scale.py workers    one Dask worker beside two, one thread each
    python benchmarks/scale.py merge      cost of merging, and what 8, 64, 512 workers would give

Each prints a Markdown table; `benchmarks/scale.md` holds what was measured, with the command.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import eigenlens as el
from eigenlens.papers.fits import power_law_exponent
from eigenlens.run.arrays import as_arrays, as_tensors
from eigenlens.run.shards import SHARDS_PER_GROUP
from tables import table

DATA = "wikipedia"
SHARD = 128
"""Inputs in a shard at length 128."""
LIGHT = ("rows", "moments", "depth", "diagnostics")
FORMS = {
    "all but whole matrices": LIGHT,
    "everything": ("rows", "moments", "matrices", "depth", "diagnostics"),
}


def seconds(run: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def tell(row: dict[str, Any]) -> dict[str, Any]:
    print(row, file=sys.stderr, flush=True)
    return row


def run_inputs(model: str, rounds: int) -> list[dict[str, Any]]:
    """Whole studies of 200 to 800 inputs.

    `a step` is what an input more costs, beside the study before.
    """
    loaded, rows = el.load(model), []
    el.study(loaded, DATA, max_inputs=64, only=LIGHT)
    for number in (200, 400, 800):
        taken = min(
            el.study(loaded, DATA, max_inputs=number, only=LIGHT).facts.seconds
            for _ in range(rounds)
        )
        before = rows[-1] if rows else {"inputs": 0, "study, s": math.nan}
        step = 1000 * (taken - before["study, s"]) / (number - before["inputs"])
        rows.append(tell({"inputs": number, "study, s": taken, "an input more, ms": step}))
    slope = power_law_exponent(rows, "inputs", "study, s")
    print(f"The time grows with the number of inputs to the power {slope:.2f}.\n")
    return rows


def run_length(model: str, rounds: int) -> list[dict[str, Any]]:
    """The same number of tokens in inputs of different lengths, beside plain passes."""
    loaded, rows = el.load(model), []
    for length in (64, 128, 256, 512):
        number = max(32, 65536 // length)
        taken = min(
            el.study(loaded, DATA, max_length=length, max_inputs=number, only=LIGHT).facts.seconds
            for _ in range(rounds)
        )
        ids = torch.randint(0, 1000, (max(1, 4096 // length), length))
        with torch.no_grad():
            loaded.module(ids)
            plain = min(seconds(lambda ids=ids: loaded.module(ids)) for _ in range(3)) / len(ids)
        each = {
            "an input, ms": 1000 * taken / number,
            "plain pass, ms": 1000 * plain,
            "ratio": taken / number / plain,
        }
        rows.append(tell({"length": length, "inputs": number, **each}))
    slope = power_law_exponent(rows, "length", "an input, ms")
    print(f"The time of an input grows with its length to the power {slope:.2f}.\n")
    return rows


def run_heads(rounds: int) -> list[dict[str, Any]]:
    """Random BERTs of one width whose heads are more and more, in layers of 8 heads of 32."""
    from transformers import BertConfig, BertModel

    rows = []
    ids = np.random.default_rng(0).integers(0, 1000, (320, 128))
    for layers in (4, 8, 16, 32):
        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=1000,
            hidden_size=256,
            intermediate_size=512,
            num_hidden_layers=layers,
            num_attention_heads=8,
        )
        module = BertModel(config, add_pooling_layer=False).eval()
        taken = min(
            el.study(module, ids, max_length=128, max_inputs=320, only=LIGHT).facts.seconds
            for _ in range(rounds)
        )
        rows.append(
            tell(
                {"heads": 8 * layers, "study, s": taken, "a head, ms": 1000 * taken / (8 * layers)}
            )
        )
    slope = power_law_exponent(rows, "heads", "study, s")
    print(f"The time grows with the number of heads to the power {slope:.2f}.\n")
    return rows


def run_workers(
    model: str, number: int, rounds: int, shard: int | None, form: str | None
) -> list[dict[str, Any]]:
    """One worker beside two, in turn; the cluster is up and the model loaded.

    Both studies must be equal to the last bit.
    """
    rows = []
    for label, only in FORMS.items() if form is None else [(form, FORMS[form])]:
        taken: dict[int, list[float]] = {1: [], 2: []}
        digests = set()
        for _ in range(rounds):
            for workers in (1, 2):
                with el.Dask(workers=workers):
                    # every worker loads the model
                    el.study(model, DATA, max_inputs=64, only=LIGHT, shard_size=16)
                    made = el.study(model, DATA, max_inputs=number, only=only, shard_size=shard)
                taken[workers].append(made.facts.seconds)
                digests.add(tuple(entry["sha256"] for entry in made.stored["files"].values()))
        assert len(digests) == 1, "one and two workers gave different numbers"
        one, two = min(taken[1]), min(taken[2])
        times = {"one worker, s": one, "two workers, s": two, "ratio": one / two}
        rows.append(tell({"statistics": label, "inputs": made.facts.inputs, **times}))
    return rows


@dataclass
class Costs:
    """Seconds: of a shard, of a merge by a worker, of a group taken by the client, and of what no
    worker does.
    """

    shard: float
    merge: float
    shard_group: float
    alone: float

    def whole(self, shards: int, workers: int) -> float:
        """`t₀ + max(⌈S / W⌉ t_s + S (1 − 1/F) t_m / min(S, W), ⌈S / F⌉ t_c) + F t_m + t_c`."""
        working = math.ceil(shards / workers) * self.shard + shards * (
            1 - 1 / SHARDS_PER_GROUP
        ) * self.merge / min(shards, workers)
        taking = math.ceil(shards / SHARDS_PER_GROUP) * self.shard_group
        return self.alone + max(working, taking) + SHARDS_PER_GROUP * self.merge + self.shard_group


def run_merge(model: str, number: int, form: str | None) -> list[dict[str, Any]]:
    """Costs by their parts on this machine, one thread.

    States travel through the cluster as they do in a study.
    """
    from eigenlens.run import tasks
    from eigenlens.studies.study_pass import Pass

    rows = []
    for label, only in FORMS.items() if form is None else [(form, FORMS[form])]:
        states: list[Any] = []
        spent = {"seconds": 0.0, "inputs": 0}
        run = Pass.run

        def watched(
            self: Pass,
            content: Any,
            tick: Any,
            run: Any = run,
            spent: Any = spent,
            states: Any = states,
        ) -> Any:
            begin = time.perf_counter()
            state = run(self, content, tick)
            if self.matrices in {"sketch", None}:
                spent["seconds"] += time.perf_counter() - begin
                spent["inputs"] += sum(len(batch["input_ids"]) for batch in content.batches)
                states[:] = [*states[-1:], (self, {name: x.clone() for name, x in state.items()})]
            return state

        Pass.run = watched  # type: ignore[method-assign]
        try:
            study = el.study(model, DATA, max_inputs=number, only=only)
        finally:
            Pass.run = run  # type: ignore[method-assign]
        (job, one), (_, two) = states[0], states[-1]
        arrays = [as_arrays(state) for state in (one, two)]
        size = sum(x.nbytes for x in arrays[0].values())
        with el.Dask(workers=2) as engine:
            client = engine._client
            held = client.submit(tasks.hold_content, job, pure=False)
            left, right = (client.submit(tasks.hold_content, part, pure=False) for part in arrays)
            for future in (held, left, right):
                cluster_wait(future)
            begin = time.perf_counter()
            both = client.submit(tasks.merge, held, left, right, pure=False)
            cluster_wait(both)
            merge = time.perf_counter() - begin
            begin = time.perf_counter()
            shard_group = as_tensors(both.result(), own=True)
            job.merge(one, shard_group)
            taken = time.perf_counter() - begin
        shard = SHARD * spent["seconds"] / spent["inputs"]
        alone = study.facts.seconds - spent["seconds"]
        costs = Costs(shard, merge, taken, alone)
        parts = {"shard, s": shard, "merge, s": merge, "group, s": taken, "alone, s": alone}
        row = {"statistics": label, "state, MB": size / 1e6, **parts}
        rows.append(tell(row))
        table([row])
        print()
        grown = []
        for shards in (64, 1024, 16384):
            base = costs.whole(shards, 1)
            times = {f"{w} workers": base / costs.whole(shards, w) for w in (2, 8, 64, 512)}
            grown.append(
                {
                    "statistics": label,
                    "shards": shards,
                    "inputs": shards * SHARD,
                    "one worker, h": base / 3600,
                    **times,
                }
            )
        table(grown)
        print()
    return []


def cluster_wait(future: Any) -> None:
    from distributed import wait

    wait(future)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=["inputs", "length", "heads", "workers", "merge"])
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--max-inputs", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--shard-size", type=int, help="inputs in a shard, for workers")
    parser.add_argument(
        "--only", choices=list(FORMS), help="one form of a study, for workers and merge"
    )
    asked = parser.parse_args()
    if asked.part in {"workers", "merge"}:
        torch.set_num_threads(1)
    parts: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "inputs": lambda: run_inputs(asked.model, asked.rounds),
        "length": lambda: run_length(asked.model, asked.rounds),
        "heads": lambda: run_heads(asked.rounds),
        "workers": lambda: run_workers(
            asked.model, asked.max_inputs, asked.rounds, asked.shard_size, asked.only
        ),
        "merge": lambda: run_merge(asked.model, asked.max_inputs, asked.only),
    }
    with tempfile.TemporaryDirectory() as scratch:
        tempfile.tempdir = str(Path(scratch))
        if rows := parts[asked.part]():
            table(rows)


if __name__ == "__main__":
    main()

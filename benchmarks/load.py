"""What a study holds in memory under load: many heads, many inputs, large files.

    python benchmarks/load.py heads          500 heads × 512 tokens, full and causal
    python benchmarks/load.py formula        small studies of every kind beside the formula
    python benchmarks/load.py workers        what each worker of a cluster holds, beside the formula
    python benchmarks/load.py soak           thousands of inputs: resident memory along the way
    python benchmarks/load.py text           a text of 1 GB beside one of 10 MB
    python benchmarks/load.py ids            10 million token ids beside 100 thousand

Each prints a Markdown table; `benchmarks/load.md` holds what was measured. Every figure is of a
process of its own: what it has when the model is loaded, and the most it had until the study was
made (`VmHWM`).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

import eigenlens as el
from eigenlens.data.datasets import text
from eigenlens.data.inputs import Request, prepare
from eigenlens.data.text import pieces
from eigenlens.models.load import Model
from eigenlens.run.memory import free_bytes, peak_resident_bytes, resident_bytes
from eigenlens.studies.memory import Memory, study_memory
from eigenlens.studies.options import STATISTICS, Options
from eigenlens.studies.survey import matrix_form, probe
from tables import table

VOCABULARY = 1000
DEFAULT = list(STATISTICS)
MB = 1e6


def random_model(causal: bool, layers: int, heads: int, dimension: int, length: int) -> Model:
    """A transformer at random init: what it holds does not depend on its weights."""
    from transformers import BertConfig, BertModel, LlamaConfig, LlamaModel

    torch.manual_seed(0)
    shape = {
        "vocab_size": VOCABULARY,
        "hidden_size": heads * dimension,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 2 * heads * dimension,
        "max_position_embeddings": length,
        "initializer_range": 0.2,
    }
    module = (
        LlamaModel(LlamaConfig(**shape))
        if causal
        else BertModel(BertConfig(**shape), add_pooling_layer=False)
    )
    return el.load(module.eval())


def predicted(
    model: Model, data: str, length: int, inputs: int, only: list[str], workers: int = 0
) -> Memory:
    """The formula, as a study works it out before it starts."""
    options = Options(Request((data,), length, inputs), tuple(only))
    with tempfile.TemporaryDirectory() as folder:
        ready = prepare(model, options.request, Path(folder))
        sites = probe(model, ready, options)
        matrix, _ = matrix_form(sites, ready, options)
        kept = tuple(name for name in only if name != "matrices" or matrix is not None)
        return study_memory(model, ready, sites, replace(options, only=kept), matrix, workers)


def run_of_heads(
    causal: bool, layers: int, heads: int, dimension: int, length: int, inputs: int, only: list[str]
) -> dict:
    model = random_model(causal, layers, heads, dimension, length)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "ids.npy"
        np.save(
            data, np.random.default_rng(0).integers(0, VOCABULARY, (inputs, length), dtype=np.int32)
        )
        memory, before, begin = (
            predicted(model, str(data), length, inputs, only),
            resident_bytes(),
            time.perf_counter(),
        )
        memory.check(free_bytes())
        study = el.study(model, data, max_length=length, max_inputs=inputs, only=only)
    grown = peak_resident_bytes() - before
    by = (
        (study.stored["options"]["matrices_by"] or "left out")
        if "matrices" in only
        else "not asked"
    )
    return {
        "mask": "causal" if causal else "none",
        "heads": layers * heads,
        "length": length,
        "inputs": inputs,
        "matrices": by,
        "formula, MB": memory.needed / MB,
        "measured, MB": grown / MB,
        "measured / formula": grown / memory.needed,
        "at its most when": memory.moment,
        "seconds": time.perf_counter() - begin,
    }


def heads_rows(inputs: int) -> Iterator[dict]:
    for causal in (False, True):
        yield apart(
            "of_heads",
            causal=causal,
            layers=25,
            heads=20,
            dimension=16,
            length=512,
            inputs=inputs,
            only=DEFAULT,
        )


def formula_rows(_: int) -> Iterator[dict]:
    """Children of one process that has the libraries: each has a peak of its own."""
    import transformers

    _ = transformers.BertModel, transformers.LlamaModel  # loaded here once
    shapes = [
        ("rows", 6, 8, 192, 15),
        ("matrices", 3, 8, 96, 100),
        ("matrices", 3, 8, 96, 220),
        ("depth", 2, 16, 256, 8),
    ]
    for causal in (False, True):
        for only, layers, heads, length, inputs in shapes:
            out, into = os.pipe()
            child = os.fork()
            if not child:
                os.write(
                    into,
                    json.dumps(
                        run_of_heads(causal, layers, heads, 8, length, inputs, [only])
                    ).encode(),
                )
                os._exit(0)
            os.waitpid(child, 0)
            os.close(into)
            with open(out) as result:
                yield {"statistic": only, **json.loads(result.read())}


def run_workers(workers: int, inputs: int, length: int, only: list[str]) -> dict:
    """Peaks of the workers of a study, with their libraries, and how this process has grown."""
    memory = predicted(el.load("minilm"), "wikipedia", length, inputs, only, workers)
    there = memory.parts["workers"]
    here, before = memory.needed - there, resident_bytes()
    with el.Dask(workers=workers) as engine:
        el.study("minilm", "wikipedia", max_length=length, max_inputs=inputs, only=only)
        peaks = engine._client.run(peak_resident_bytes).values()
    grown = peak_resident_bytes() - before
    return {
        "statistics": ", ".join(only),
        "workers": workers,
        "inputs": inputs,
        "workers by the formula, MB": there / MB,
        "sum of their peaks, MB": sum(peaks) / MB,
        "here by the formula, MB": here / MB,
        "grown here, MB": grown / MB,
        "measured / formula": (sum(peaks) + grown) / memory.needed,
    }


def worker_rows(inputs: int) -> Iterator[dict]:
    for only in (["rows", "moments", "depth", "diagnostics"], DEFAULT):
        for workers in (1, 2):
            yield apart("workers", workers=workers, inputs=inputs, length=128, only=only)


def run_soak(inputs: int, length: int) -> dict:
    """Resident memory by input: the line through it from a quarter of the fit inputs on."""
    seen: list[tuple[int, int]] = []

    def progress(what: str, done: int, _: int) -> None:
        if what == "fit inputs":
            seen.append((done, resident_bytes()))

    begin = time.perf_counter()
    study = el.study("minilm", "wikipedia", max_length=length, max_inputs=inputs, progress=progress)
    number, size = np.array(seen, dtype=float).T
    later = number > number[-1] / 4
    slope = np.polyfit(number[later], size[later] / MB, 1)[0]
    at = [
        int(size[np.searchsorted(number, share * number[-1])] / MB)
        for share in (0.25, 0.5, 0.75, 1)
    ]
    return {
        "inputs": study.facts.inputs,
        "of them fit": int(number[-1]),
        "MB at 25 %": at[0],
        "50 %": at[1],
        "75 %": at[2],
        "100 %": at[3],
        "MB more a thousand inputs": slope * 1000,
        "peak, MB": peak_resident_bytes() / MB,
        "seconds": time.perf_counter() - begin,
    }


def soak_rows(inputs: int) -> Iterator[dict]:
    yield apart("soak", inputs=inputs, length=64)


def write_text(path: Path, size: int) -> None:
    """Real words in paragraphs.

    The documents of the catalogue's text, their lines in another order each time.
    """
    documents = [document.splitlines() for document in islice(text("python-docs"), 60)]
    draw, written = random.Random(0), 0
    with open(path, "w", encoding="utf-8") as file:
        while written < size:
            for lines in documents:
                draw.shuffle(lines)
                written += file.write("\n".join(lines) + "\n\n")


def run_study(data: str, inputs: int, length: int, only: list[str]) -> dict:
    model = el.load("minilm")
    before, begin = resident_bytes(), time.perf_counter()
    study = el.study(model, data, max_length=length, max_inputs=inputs, only=only)
    return {
        "inputs": study.facts.inputs,
        "with the model, MB": before / MB,
        "peak, MB": peak_resident_bytes() / MB,
        "seconds": time.perf_counter() - begin,
    }


def run_pieces(data: str) -> dict:
    """The whole text read, as a study reads it, without a tokenizer."""
    before, begin = resident_bytes(), time.perf_counter()
    characters = sum(len(piece.text) for piece in pieces([data], section=32 * 128))
    return {
        "characters": characters,
        "before, MB": before / MB,
        "peak, MB": peak_resident_bytes() / MB,
        "seconds": time.perf_counter() - begin,
    }


def run_packed(data: str, length: int) -> dict:
    """All token ids of a file made into inputs."""
    model = el.load("minilm")
    before, begin = resident_bytes(), time.perf_counter()
    inputs = len(np.load(data, mmap_mode="r")) // length
    with tempfile.TemporaryDirectory() as folder:
        ready = prepare(model, Request((data,), length, inputs), Path(folder))
        return {
            "inputs": len(ready.buckets),
            "with the model, MB": before / MB,
            "peak, MB": peak_resident_bytes() / MB,
            "seconds": time.perf_counter() - begin,
        }


def text_rows(_: int) -> Iterator[dict]:
    with tempfile.TemporaryDirectory() as folder:
        for size in (10**7, 10**9):
            path = Path(folder) / f"{size}.txt"
            write_text(path, size)
            megabytes = path.stat().st_size // 10**6
            for what, found in {
                "study": apart(
                    "study", data=str(path), inputs=400, length=128, only=["rows", "moments"]
                ),
                "whole text read": apart("pieces", data=str(path)),
            }.items():
                yield {
                    "file, MB": megabytes,
                    "what": what,
                    "peak, MB": found["peak, MB"],
                    "seconds": found["seconds"],
                }
            path.unlink()


def ids_rows(_: int) -> Iterator[dict]:
    with tempfile.TemporaryDirectory() as folder:
        for number in (10**5, 10**7):
            path = Path(folder) / f"{number}.npy"
            np.save(path, np.random.default_rng(0).integers(1000, 20_000, number, dtype=np.int32))
            for what, found in {
                "study": apart(
                    "study", data=str(path), inputs=400, length=128, only=["rows", "moments"]
                ),
                "all ids made into inputs": apart("packed", data=str(path), length=128),
            }.items():
                row = {
                    "tokens": number,
                    "what": what,
                    "inputs": found["inputs"],
                    "peak, MB": found["peak, MB"],
                }
                yield {**row, "seconds": found["seconds"]}


def apart(function: str, **given: Any) -> dict:
    """A measurement in a process of its own."""
    command = [
        sys.executable,
        __file__,
        "run",
        "--function",
        function,
        "--given",
        json.dumps(given),
    ]
    return json.loads(
        subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()[
            -1
        ]
    )


RUNS: dict[str, Callable[..., dict]] = {
    "of_heads": run_of_heads,
    "workers": run_workers,
    "soak": run_soak,
    "study": run_study,
    "pieces": run_pieces,
    "packed": run_packed,
}
TABLES: dict[str, tuple[Callable[[int], Iterator[dict]], int]] = {
    "heads": (heads_rows, 15),
    "formula": (formula_rows, 0),
    "workers": (worker_rows, 700),
    "soak": (soak_rows, 4000),
    "text": (text_rows, 0),
    "ids": (ids_rows, 0),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=[*TABLES, "run"])
    parser.add_argument("--max-inputs", type=int)
    parser.add_argument("--function", choices=list(RUNS))
    parser.add_argument("--given", default="{}")
    given = parser.parse_args()
    if given.what == "run":
        print(json.dumps(RUNS[given.function](**json.loads(given.given))))
        return
    rows, inputs = TABLES[given.what]
    table(list(rows(given.max_inputs or inputs)))


if __name__ == "__main__":
    main()

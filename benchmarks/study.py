"""What a study costs in time and memory, and what other tools cost.

    python benchmarks/study.py time          ratios to the plain forward pass, in one run
    python benchmarks/study.py memory        peak memory at 400 and at 4,000 inputs
    python benchmarks/study.py long          a long input: memory of its spectra alone
    python benchmarks/study.py others        hooks or output_attentions feeding IncrementalPCA
    python benchmarks/study.py accuracy      the sketch against the exact matrix spectra

Each prints a Markdown table; `benchmarks/study.md` holds what was measured, with the command. Plain
and captured passes take turns batch by batch, so that both meet the same noise of the machine; the
ratio is that of the summed times.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from eigenlens import capture, load
from eigenlens.captures import AttentionCall
from eigenlens.data.inputs import Inputs, Request, prepare
from eigenlens.data.split import FIT
from eigenlens.models.forward import forward_of
from eigenlens.models.load import Model
from eigenlens.spectra.matrices import MatrixAnalysis
from eigenlens.spectra.rows import RowAnalysis
from eigenlens.stats import (
    MatrixGram,
    MatrixProjection,
    MatrixSketch,
    QueryKeyMoments,
    RowMoments,
    WithinSpectra,
)
from eigenlens.studies.survey import WithinForm
from tables import table

RANK, COLUMNS = 64, 80


def data(model: Model, length: int, number: int, source: str = "wikipedia") -> Inputs:
    return prepare(model, Request((source,), length, number), Path(tempfile.mkdtemp()))


def run_time(name: str, length: int, number: int) -> list[dict[str, Any]]:
    """Spectra within one input alone, row spectra alone, and everything.

    Every input is run plainly and with capture, batch by batch in turn.
    """
    model = load(name)
    inputs = data(model, length, number)
    forward, size = forward_of(model), max(1, 4096 // length)
    rows = [run_within(model, inputs)]
    forms = {"row spectra": ("rows",), "all default statistics": ("rows", "moments", "matrices")}
    for label, only in forms.items():
        if (length > 128 and "matrices" in only) or length > 512:
            continue
        plain = captured = 0.0
        fit: dict[str, Any] = {"rows": RowMoments()}
        if "moments" in only:
            fit["moments"] = QueryKeyMoments()
        if "matrices" in only:
            fit["matrices"] = MatrixGram()
        current = fit

        def sink(call: Any) -> None:
            for statistic in current.values():  # noqa: B023
                statistic.update(call)

        warm = True
        for bucket in inputs.groups:
            if bucket == inputs.groups[1]:  # the fit is complete: its bases are part of the cost
                begin = time.perf_counter()
                analysis = RowAnalysis(fit["rows"].result())
                matrices = MatrixAnalysis(fit["matrices"], RANK) if "matrices" in only else None
                bases = matrices.projection_bases if matrices else {}
                eigen = time.perf_counter() - begin
            if bucket != FIT:
                current = {"rows": RowMoments()}
                if "moments" in only:
                    current["moments"] = QueryKeyMoments()
                if "matrices" in only:
                    current["matrices"] = MatrixProjection(bases)
            done = 0
            stages = [
                inputs.batches(bucket, size, 0, COLUMNS),
                inputs.batches(bucket, size, COLUMNS),
            ]
            for count, batch in chain(*stages):
                if bucket == FIT and "matrices" in only and done == COLUMNS:
                    begin = time.perf_counter()
                    current["matrices"] = fit["matrices"] = MatrixSketch.from_pilot(fit["matrices"])
                    captured += time.perf_counter() - begin
                with torch.no_grad():
                    if warm:
                        forward(batch)
                        warm = False
                    begin = time.perf_counter()
                    forward(batch)
                    plain += time.perf_counter() - begin
                    with capture(model.backbone, sink):
                        begin = time.perf_counter()
                        forward(batch)
                        captured += time.perf_counter() - begin
                done += count
            if bucket != FIT:
                begin = time.perf_counter()
                analysis.energies(current["rows"].result())
                if matrices:
                    matrices.energies(current["matrices"].result())
                eigen += time.perf_counter() - begin
        rows.append(
            {
                "model": name,
                "length": length,
                "inputs": len(inputs.buckets),
                "statistics": label,
                "plain forward, s": plain,
                "captured, s": captured,
                "ratio": captured / plain,
                "eigen-analysis at the end, s": eigen,
                "ratio with it": (captured + eigen) / plain,
            }
        )
    return rows


def run_within(model: Model, inputs: Inputs) -> dict[str, Any]:
    """Spectra within one input, on the inputs that a study measures by default.

    In processor time: plain and captured passes in turn, so that other programs do not count.
    """
    forward, size = forward_of(model), max(1, 4096 // inputs.length)
    statistic = WithinSpectra(**asdict(WithinForm.of(inputs.length, len(inputs.buckets))))
    plain = captured = 0.0
    done, warm = 0, True
    with torch.no_grad():
        for bucket in inputs.groups:
            for count, batch in inputs.batches(bucket, size):
                if warm:
                    forward(batch)
                    warm = False
                begin = time.process_time()
                forward(batch)
                plain += time.process_time() - begin
                with capture(model.backbone, partial(_update, statistic, done)):
                    begin = time.process_time()
                    forward(batch)
                    captured += time.process_time() - begin
                done += count
    return {
        "model": model.name,
        "length": inputs.length,
        "inputs": done,
        "statistics": "spectra within one input",
        "plain forward, s": plain,
        "captured, s": captured,
        "ratio": captured / plain,
        "eigen-analysis at the end, s": 0.0,
        "ratio with it": captured / plain,
    }


def _update(statistic: WithinSpectra, start: int, call: AttentionCall) -> None:
    statistic.update(call, start)


def peak(number: int) -> float:
    """Peak resident megabytes of a whole study of `number` inputs, in a process of its own."""
    code = (
        f"import resource, eigenlens as el; el.study('minilm', 'wikipedia', max_inputs={number});"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[-1]) / 1024


def run_memory(few: int, many: int) -> list[dict[str, Any]]:
    rows = [{"inputs": number, "peak MB": peak(number)} for number in (few, many)]
    for row in rows:
        row["ratio"] = row["peak MB"] / rows[0]["peak MB"]
    return rows


def run_long(name: str, length: int) -> list[dict[str, Any]]:
    """Peak memory and processor time of one long input, plain and with its spectra.

    Each in a process of its own, which reads 32 tokens before.
    """
    rows = []
    for way in ("plain forward", "spectra within one input"):
        options = ["--model", name, "--max-length", str(length), "--kind", way]
        command = [sys.executable, __file__, "one", *options]
        run = subprocess.run(command, capture_output=True, text=True, check=True)
        rows.append(json.loads(run.stdout.splitlines()[-1]))
    for row in rows:
        row["× memory"] = row["peak MB"] / rows[0]["peak MB"]
        row["× time"] = row["processor s"] / rows[0]["processor s"]
    return rows


def one_long(name: str, length: int, way: str) -> dict[str, Any]:
    """One input of random tokens, in this process, with growth along all its lengths."""
    model, statistic = load(name), WithinSpectra()
    ids = torch.randint(model.config.vocab_size, (1, length))
    forward = forward_of(model)
    with torch.no_grad():
        forward({"input_ids": ids[:, :32]})
        begin = time.process_time()
        if way == "plain forward":
            forward({"input_ids": ids})
        else:
            with capture(model.backbone, statistic.update):
                forward({"input_ids": ids})
    taken = time.process_time() - begin
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"way": way, "length": length, "peak MB": memory, "processor s": taken}


def other(kind: str, number: int, length: int) -> dict[str, Any]:
    """One way of having the leading row eigenspaces of all heads, timed in this process.

    Eigenvectors are saved.
    """
    from sklearn.decomposition import IncrementalPCA

    model = load("minilm")
    inputs = data(model, length, number)
    forward, size = forward_of(model), max(1, 4096 // length)
    begin = time.perf_counter()
    with torch.no_grad():
        if kind == "eigenlens":
            moments = RowMoments()
            with capture(model.backbone, moments.update):
                for _, batch in inputs.batches(FIT, size):
                    forward(batch)
            from eigenlens.spectra.rows import row_basis

            found = [
                row_basis(sums, "centred").vectors[:, :, :16].numpy()
                for sums in moments.result().values()
            ]
            spaces = np.stack(found)  # (L, H, n, 16)
        elif kind == "plain forward":
            for _, batch in inputs.batches(FIT, size):
                forward(batch)
            spaces = np.zeros(0)
        else:
            model.backbone.set_attn_implementation("eager")
            fits = [[IncrementalPCA(16) for _ in range(12)] for _ in range(6)]
            scores: dict[int, Any] = {}
            hooks = []
            if kind == "hooks on q, k and IncrementalPCA":
                # Scores are not among a model's outputs: hooks on the projections give them, per
                # layer.
                for index, layer in enumerate(model.backbone.encoder.layer):
                    inner = layer.attention.self
                    for part in ("query", "key"):
                        hooks.append(
                            getattr(inner, part).register_forward_hook(
                                lambda _m, _i, out, key=(index, part): scores.__setitem__(key, out)
                            )
                        )
            for _, batch in inputs.batches(FIT, size):
                if kind == "output_attentions and IncrementalPCA":
                    patterns = model.backbone(**batch, output_attentions=True).attentions
                else:
                    forward(batch)
                    patterns = []
                    for index in range(6):
                        q, k = (
                            scores[index, part].unflatten(2, (12, 32)).transpose(1, 2)
                            for part in ("query", "key")
                        )
                        patterns.append(q @ k.transpose(2, 3) / 32**0.5)
                for index, pattern in enumerate(patterns):
                    for head in range(12):
                        fits[index][head].partial_fit(pattern[:, head].flatten(0, 1).numpy())
            for hook in hooks:
                hook.remove()
            spaces = np.stack([[fit.components_.T for fit in layer] for layer in fits])
    seconds = time.perf_counter() - begin
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    path = Path(tempfile.mkdtemp()) / "spaces.npy"
    np.save(path, spaces)
    return {"kind": kind, "seconds": seconds, "peak MB": memory, "spaces": str(path)}


def run_others(number: int, length: int) -> list[dict[str, Any]]:
    """Each in a process of its own.

    Accuracy is the overlap with the eigenspace of a dense float64 decomposition.
    """
    kinds = [
        "plain forward",
        "eigenlens",
        "hooks on q, k and IncrementalPCA",
        "output_attentions and IncrementalPCA",
    ]
    found = []
    for kind in kinds:
        options = ["--kind", kind, "--max-inputs", str(number), "--max-length", str(length)]
        command = [sys.executable, __file__, "other", *options]
        run = subprocess.run(command, capture_output=True, text=True, check=True)
        found.append(json.loads(run.stdout.splitlines()[-1]))
    truth = dense_spaces(number, length)
    rows = []
    for one in found:
        spaces = np.load(one["spaces"])
        overlap: Any = "–"
        if spaces.size and not one["kind"].startswith("output"):
            overlap = float(
                np.mean([np.square(truth[key].T @ spaces[key]).sum() / 16 for key in truth])
            )
        elif spaces.size:
            overlap = "of the pattern: scores are not returned"
        rows.append(
            {
                "way": one["kind"],
                "seconds": one["seconds"],
                "× plain forward": one["seconds"] / found[0]["seconds"],
                "peak MB": one["peak MB"],
                "overlap with the dense eigenspace (16)": overlap,
            }
        )
    return rows


def dense_spaces(number: int, length: int) -> dict[tuple[int, int], np.ndarray]:
    """The 16 leading eigenvectors of the dense score rows of a few heads, in float64."""
    model = load("minilm")
    inputs = data(model, length, number)
    kept: dict[tuple[int, int], list[np.ndarray]] = {
        (layer, head): [] for layer in (0, 2, 5) for head in (0, 5, 9)
    }

    def sink(call: Any) -> None:
        for layer, head in kept:
            if layer == call.layer:
                kept[layer, head].append(call.scores()[:, head].flatten(0, 1).double().numpy())

    with torch.no_grad(), capture(model.backbone, sink):
        for _, batch in inputs.batches(FIT, 32):
            forward_of(model)(batch)
    found = {}
    for key, parts in kept.items():
        x = np.concatenate(parts)
        found[key] = np.linalg.eigh(np.cov(x.T))[1][:, ::-1][:, :16]
    return found


def run_accuracy(number: int) -> list[dict[str, Any]]:
    """The sketch at rank 64 against all samples, on the first two layers."""
    model = load("minilm")
    inputs = data(model, 128, number)
    gram, current = MatrixGram(most=number), []

    def sink(call: Any) -> None:
        if call.layer in (1, 4):
            for statistic in current:
                statistic.update(call)

    pilot: Any = MatrixGram()
    current = [gram, pilot]
    done = 0
    with torch.no_grad(), capture(model.backbone, sink):
        for count, batch in chain(
            inputs.batches(FIT, 32, 0, COLUMNS), inputs.batches(FIT, 32, COLUMNS)
        ):
            if done == COLUMNS:
                current[1] = MatrixSketch.from_pilot(pilot)
            forward_of(model)(batch)
            done += count
    analyses = [MatrixAnalysis(statistic, RANK) for statistic in (gram, current[1])]
    energies = []
    for analysis in analyses:
        groups = []
        bases = analysis.projection_bases
        for bucket in inputs.groups[1:]:
            current = [MatrixProjection(bases)]
            with torch.no_grad(), capture(model.backbone, sink):
                for _, batch in inputs.batches(bucket, 32):
                    forward_of(model)(batch)
            groups.append(analysis.energies(current[0].result()))
        energies.append(analysis.spectra(groups))
    rows = []
    for centring in ("raw", "centred", "row-centred"):
        pairs = [(a, b) for a, b in zip(*energies) if a.level == "head" and a.centring == centring]
        row: dict[str, Any] = {"centring": centring, "heads": len(pairs)}
        for k in (1, 4, 16, 64):
            row[f"λ{k}, sketch / exact"] = float(
                np.median([b.eigenvalues[k - 1] / a.eigenvalues[k - 1] for a, b in pairs])
            )
        for k in (16, 64):
            row[f"held out at {k}, exact"] = float(np.median([a.held_out[k - 1] for a, _ in pairs]))
            row[f"sketch at {k}"] = float(np.median([b.held_out[k - 1] for _, b in pairs]))
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "what", choices=["time", "memory", "long", "one", "others", "other", "accuracy"]
    )
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument("--max-inputs", type=int, default=1000)
    parser.add_argument("--few", type=int, default=400)
    parser.add_argument("--many", type=int, default=4000)
    parser.add_argument("--kind", default="eigenlens")
    given = parser.parse_args()
    if given.what == "time":
        table(run_time(given.model, given.max_length, given.max_inputs))
    elif given.what == "memory":
        table(run_memory(given.few, given.many))
    elif given.what == "long":
        table(run_long(given.model, given.max_length))
    elif given.what == "one":
        print(json.dumps(one_long(given.model, given.max_length, given.kind)))
    elif given.what == "others":
        table(run_others(given.max_inputs, given.max_length))
    elif given.what == "other":
        print(json.dumps(other(given.kind, given.max_inputs, given.max_length)))
    else:
        table(run_accuracy(given.max_inputs))


if __name__ == "__main__":
    main()

"""What diagnostics cost: ratios to the plain forward pass, in one run.

    python benchmarks/diagnostics.py whole   a full study, and what each kind of statistic adds
    python benchmarks/diagnostics.py each    each diagnostic on its inputs, and all of them together

Each prints a Markdown table; `benchmarks/diagnostics.md` holds what was measured, with the command.
`whole` runs plain passes and studies in turn, `each` plain and diagnosed batches. The two forms of
`whole` that are compared from version to version are everything on 1,000 inputs of 128 tokens of
minilm, and a small study of a deeper model:

    python benchmarks/diagnostics.py whole --only everything
    python benchmarks/diagnostics.py whole --only everything --model twelve-layers --max-length 97 \
        --max-inputs 120

`twelve-layers` is a BERT of 12 layers × 12 heads × 384 with random weights and minilm's tokenizer.
The ratio of seconds counts the stages of a study (passes, eigen-analysis, probe), as `study.json`
does; the ratio of processor time counts the whole call, with tokenising and writing, and depends
less on what else the machine does.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertModel

import eigenlens as el
from eigenlens.captures import attention_kinds, capture_layers
from eigenlens.data.inputs import Request, prepare
from eigenlens.diagnostics import DIAGNOSTICS, StudiedModel
from eigenlens.models.forward import forward_of
from eigenlens.models.load import Model
from eigenlens.studies.diagnostic_runner import DiagnosticRunner
from eigenlens.studies.options import Options
from eigenlens.studies.survey import probe
from tables import table

TWELVE = "twelve-layers"
FORMS = {
    "spectra": ("rows", "moments", "matrices"),
    "spectra and depth": ("rows", "moments", "matrices", "depth"),
    "diagnostics alone": ("diagnostics",),
    "all but spectra of whole matrices": ("rows", "moments", "depth", "diagnostics"),
    "everything": ("rows", "moments", "matrices", "depth", "diagnostics"),
}


def twelve_layers() -> Model:
    """A BERT of 12 layers with random weights, on the tokens of minilm."""
    torch.manual_seed(0)
    tokenizer = el.load("minilm").tokenizer
    shape = BertConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=384,
        num_hidden_layers=12,
        num_attention_heads=12,
        intermediate_size=1536,
    )
    with tempfile.TemporaryDirectory() as folder:
        BertModel(shape).eval().save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return el.load(folder)


def run_whole(
    name: str, data: str, length: int, number: int, rounds: int, form: str | None = None
) -> list[dict[str, Any]]:
    """Whole studies, eigen-analysis and probes included, beside plain passes over the same inputs
    before and after each.
    """
    model = twelve_layers() if name == TWELVE else el.load(name)
    request = Request((data,), length, number)
    inputs = prepare(model, request, Path(tempfile.mkdtemp()))
    forward, size = forward_of(model), Options(request).inputs_per_batch(length)

    def plain() -> tuple[float, float]:
        """Seconds, and seconds of the processor."""
        begin, busy = time.perf_counter(), time.process_time()
        with torch.no_grad():
            for bucket in inputs.groups:
                for _, batch in inputs.batches(bucket, size):
                    forward(batch)
        return time.perf_counter() - begin, time.process_time() - busy

    plain()
    rows = []
    for label, only in FORMS.items() if form is None else [(form, FORMS[form])]:
        passes, studies = [plain()], []
        for _ in range(rounds):
            busy = time.process_time()
            made = el.study(model, data, max_length=length, max_inputs=number, only=only)
            studies.append((made.facts.seconds, time.process_time() - busy))
            passes.append(plain())
        mean, busy_plain = (sum(found) / len(found) for found in zip(*passes))
        seconds, busy_study = (sum(found) / len(found) for found in zip(*studies))
        rows.append(
            {
                "model": name,
                "length": length,
                "inputs": number,
                "statistics": label,
                "plain passes, s": mean,
                "study, s": seconds,
                "ratio": seconds / mean,
                "ratio of processor time": busy_study / busy_plain,
            }
        )
        print(rows[-1], file=sys.stderr, flush=True)
    return rows


def run_each(name: str, data: str, length: int, number: int) -> list[dict[str, Any]]:
    """Each diagnostic shown every input, in passes that take turns with plain ones.

    By default a study shows one in 32.
    """
    model = el.load(name)
    options = Options(Request((data,), length, number))
    inputs = prepare(model, options.request, Path(tempfile.mkdtemp()))
    sites = probe(model, inputs, options)
    studied, forward, size = (
        StudiedModel(model, sites),
        forward_of(model),
        options.inputs_per_batch(length),
    )
    batches = [batch for bucket in inputs.groups for _, batch in inputs.batches(bucket, size)]
    every = options.diagnostics_step(length)
    rows = []
    for label in [*DIAGNOSTICS, "all of them"]:
        chosen = {label: {}} if label in DIAGNOSTICS else {one: {} for one in DIAGNOSTICS}
        begin = time.perf_counter()
        diagnosing = DiagnosticRunner.of(studied, chosen, 1)
        begun = time.perf_counter() - begin
        plain = shown = probed = 0.0
        for turn, batch in enumerate([batches[0], *batches]):
            with torch.no_grad():
                begin = time.perf_counter()
                forward(batch)
                middle = time.perf_counter()
                diagnosing.shown(batch, 0)
                with (
                    diagnosing.attached(),
                    capture_layers(
                        studied.module,
                        attention_kinds(sites),
                        diagnosing.layer,
                        calls=diagnosing.call,
                    ),
                ):
                    forward(batch)
                end = time.perf_counter()
            if turn:  # the first is a warm-up
                plain, shown = plain + middle - begin, shown + end - middle
        if diagnosing.that_see("probe"):
            begin = time.perf_counter()
            diagnosing.probe(forward, lambda _done, _total: None)
            probed = time.perf_counter() - begin
        ratio = shown / plain
        rows.append(
            {
                "diagnostic": label,
                "ratio, every input": ratio,
                f"ratio, one in {every}": 1 + (ratio - 1) / every,
                "once: weights and probe, s": begun + probed,
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["whole", "each"])
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--data", default="wikipedia")
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument("--max-inputs", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", choices=list(FORMS), help="one form of `whole` alone")
    given = parser.parse_args()
    if given.what == "whole":
        table(
            run_whole(
                given.model,
                given.data,
                given.max_length,
                given.max_inputs,
                given.rounds,
                given.only,
            )
        )
    else:
        table(run_each(given.model, given.data, given.max_length, given.max_inputs))


if __name__ == "__main__":
    main()

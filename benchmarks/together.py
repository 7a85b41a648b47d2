"""Two equal studies at once on one machine, beside one alone.

    python benchmarks/together.py              three rounds
    python benchmarks/together.py --rounds 1

The model is an encoder of 12 layers × 12 heads; a study reads 120 inputs of 97 tokens.

Every study is a command of its own, as two users of one machine would start them. The seconds are
those of the study itself, without the start of Python. Needs an otherwise idle machine;
`benchmarks/together.md` holds what was measured.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertModel

from eigenlens.models import catalogue
from tables import table

WAITING = {
    "as the command sets it": {},
    # what libgomp takes where nothing is set
    "as OpenMP does by itself": {"GOMP_SPINCOUNT": "300000"},
    "OMP_WAIT_POLICY=passive": {"OMP_WAIT_POLICY": "passive"},
    "GOMP_SPINCOUNT=3000": {"GOMP_SPINCOUNT": "3000"},
}


def encoder(folder: Path) -> Path:
    """12 layers × 12 heads × 384 at random init, with minilm's tokenizer."""
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 384,
        "intermediate_size": 1536,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
    }
    BertModel(
        BertConfig(vocab_size=30_522, initializer_range=0.1, **sizes), add_pooling_layer=False
    ).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(catalogue.model_folder("minilm") / name, folder)
    return folder


def studies(model: Path, number: int, waiting: dict[str, str]) -> list[float]:
    """Seconds of each of `number` equal studies that run at the same time."""
    chosen = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    environment = {
        name: value for name, value in os.environ.items() if name not in chosen
    } | waiting
    quiet = subprocess.DEVNULL
    with tempfile.TemporaryDirectory() as place:
        folders = [Path(place) / str(i) for i in range(number)]
        given = [
            sys.executable,
            "-m",
            "eigenlens.cli",
            "study",
            str(model),
            "python-docs",
            "--max-inputs",
            "120",
            "--max-length",
            "97",
        ]
        running = [
            subprocess.Popen([*given, "-o", str(f)], env=environment, stdout=quiet, stderr=quiet)
            for f in folders
        ]
        if any(process.wait() for process in running):
            raise SystemExit("a study failed")
        return [
            float(json.loads((folder / "study.json").read_text())["seconds"]) for folder in folders
        ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as place:
        model = encoder(Path(place) / "encoder")
        for name, waiting in WAITING.items():
            alone, both = [], []
            for _ in range(rounds):  # in turn, so that both meet the same noise
                alone += studies(model, 1, waiting)
                both += studies(model, 2, waiting)
            one, two = statistics.median(alone), statistics.median(both)
            rows.append(
                {
                    "threads wait": name,
                    "one alone, s": one,
                    "each of two at once, s": two,
                    "ratio": two / one,
                }
            )
    table(rows)


if __name__ == "__main__":
    main()

"""How long commands take that do no work, and what `import eigenlens` adds to `import torch`.

    python benchmarks/start.py              ten rounds
    python benchmarks/start.py --rounds 3

Every start is a process of its own; the figure is the median of the rounds, which take the starts
in turn. Needs an otherwise idle machine; `benchmarks/start.md` holds what was measured.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

from tables import table

COMMAND = [sys.executable, "-m", "eigenlens.cli"]
STARTS = {
    "python": [sys.executable, "-c", "pass"],
    "eigenlens --help": [*COMMAND, "--help"],
    "eigenlens --version": [*COMMAND, "--version"],
    "eigenlens models": [*COMMAND, "models"],
    "eigenlens study --help": [*COMMAND, "study", "--help"],
    "eigenlens study minilm --wrong": [*COMMAND, "study", "minilm", "--wrong"],
    "import torch": [sys.executable, "-c", "import torch"],
    "import torch, eigenlens": [sys.executable, "-c", "import torch, eigenlens"],
    "import eigenlens; eigenlens.study": [sys.executable, "-c", "import eigenlens as e; e.study"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    seconds: dict[str, list[float]] = {name: [] for name in STARTS}
    for _ in range(rounds + 1):  # the first round fills the caches of the disk
        for name, command in STARTS.items():
            begin = time.perf_counter()
            subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            seconds[name].append(time.perf_counter() - begin)
    rows = [
        {
            "start": name,
            "median s": statistics.median(found[1:]),
            "most s": max(found[1:]),
        }
        for name, found in seconds.items()
    ]
    table(rows)


if __name__ == "__main__":
    main()

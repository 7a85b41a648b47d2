"""Damaged and hostile input by the hundred thousand: what every reader makes of it.

python benchmarks/fuzz.py --cases 100000
    random damage that knows the form of the file; `--output` writes the rows as JSON
python benchmarks/fuzz.py --cases 1000 --targets study
    one reader
python benchmarks/fuzz.py --replay study 17
    one case again, with its traceback
python benchmarks/fuzz.py --atheris archive --seconds 300
    coverage-guided, on the bytes of one file
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from tables import table

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))
os.environ.setdefault("HF_HUB_OFFLINE", "1")

SHARES = {
    "archive": 34,
    "text": 26,
    "token_ids": 26,
    "evaluation": 8,
    "explanation": 1.9,
    "plan": 1.5,
    "study": 1,
    "collapse": 0.8,
    "model": 0.6,
    "command": 0.2,
}
"""Percent of the cases.

Readers of bytes are fast and get most of them, a whole study takes a hundred times as long.
"""


INSTRUMENTED = [
    "eigenlens.data",
    "eigenlens.models",
    "eigenlens.run",
    "eigenlens.hints",
    "eigenlens.explanations.result",
    "eigenlens.plans.evaluation",
    "tarfile",
    "zipfile",
    "gzip",
]
"""Modules whose branches guide the choice of bytes."""


def random_cases(cases: int, targets: list[str], start: int) -> list[dict[str, Any]]:
    """Run them, target by target, with a line for each as it ends.

    A failure is printed whole and counted.
    """
    import torch

    from fuzz.cases import run_case
    from fuzz.world import forget, world

    torch.set_num_threads(1)
    world()
    rows = []
    share = sum(SHARES[name] for name in targets)
    for name in targets:
        number = round(cases * SHARES[name] / share)
        outcomes: Counter[str] = Counter()
        begin, slowest = time.process_time(), 0.0
        for seed in range(start, start + number):
            before = time.process_time()
            try:
                outcomes[run_case(name, seed)] += 1
            except Exception:
                outcomes["failed"] += 1
                traceback.print_exc()
            slowest = max(slowest, time.process_time() - before)
        seconds = time.process_time() - begin
        rows.append(
            {
                "target": name,
                "cases": number,
                **{kind: outcomes[kind] for kind in ("refused", "correct", "failed")},
                "seconds": round(seconds, 1),
                "ms a case": round(1000 * seconds / max(number, 1), 1),
                "slowest s": round(slowest, 2),
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    forget()
    return rows


def guided(target: str, seconds: int) -> None:
    """Let atheris choose the bytes by what they reach in our readers and in those of the standard
    library.
    """
    import atheris
    import transformers  # noqa: F401  # large, and not what is looked at

    for name in INSTRUMENTED:  # what was imported before would not be watched
        sys.modules.pop(name, None)
    with atheris.instrument_imports(include=INSTRUMENTED):
        from fuzz.byte_targets import BYTE_TARGETS

        one, seeds = BYTE_TARGETS[target]()
    corpus = Path(os.environ.get("FUZZ_CORPUS", f"/tmp/eigenlens-corpus-{target}"))
    corpus.mkdir(exist_ok=True)
    for i, seed in enumerate(seeds):
        (corpus / f"seed{i}").write_bytes(seed)
    options = [
        f"-max_total_time={seconds}",
        "-max_len=65536",
        "-timeout=60",
        "-rss_limit_mb=4096",
        "-print_final_stats=1",
        "-close_fd_mask=0",
    ]
    atheris.Setup([sys.argv[0], *options, str(corpus)], one)
    atheris.Fuzz()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--targets", default=",".join(SHARES))
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--output", type=Path, help="write the rows as JSON")
    parser.add_argument("--replay", nargs=2, metavar=("TARGET", "SEED"))
    parser.add_argument("--atheris", metavar="TARGET")
    parser.add_argument("--seconds", type=int, default=300)
    given = parser.parse_args()
    if given.replay:
        from fuzz.cases import run_case

        print(run_case(given.replay[0], int(given.replay[1])))
    elif given.atheris:
        guided(given.atheris, given.seconds)
    else:
        rows = random_cases(given.cases, given.targets.split(","), given.start)
        total = {
            key: sum(row[key] for row in rows)
            for key in ("cases", "refused", "correct", "failed", "seconds")
        }
        print(json.dumps({"target": "all", **total}))
        table([*rows, {"target": "together", **total, "ms a case": "", "slowest s": ""}])
        if given.output:
            given.output.write_text(json.dumps(rows, indent=1) + "\n")
        sys.exit(1 if total["failed"] else 0)


if __name__ == "__main__":
    main()

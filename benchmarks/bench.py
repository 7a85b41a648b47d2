"""The tables of `eigenlens bench`, so that they can be recorded as data.

    python benchmarks/bench.py speed             what `eigenlens bench speed` prints, all columns
    python benchmarks/record.py bench speed      the same, kept in `results/benchmarks`

`docs/measurements/mechanisms.md` shows them. An interrupted bench goes on from `bench/NAME`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from eigenlens.bench import run_bench
from tables import table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["speed", "quality", "damage", "spectra", "choose"])
    parser.add_argument("--quick", action="store_true", help="a miniature")
    parser.add_argument("--mechanisms", help="some of them, with commas")
    parser.add_argument("--output", type=Path, default=Path("bench"))
    given = parser.parse_args()
    resume = (given.output / given.what).is_dir()
    found = run_bench(
        given.what, given.output, quick=given.quick, mechanisms=given.mechanisms, resume=resume
    )
    for _, name in found.shown:
        table(found.table(name))


if __name__ == "__main__":
    main()

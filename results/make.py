"""Make the results of papers: `make results`, or `python results/make.py [PAPER…]`.

    make results                                      all that are missing or stale, hours
    make results ONLY="sinks fast"                    two papers
    make results OPTIONS="--engine dask --workers 2"  the parts of each paper on a cluster
    make results OPTIONS="--jobs 2"                   two papers at once, one thread each
    make results OPTIONS=--check                      which are missing or stale

Each paper runs in a process of its own, into `build/results`; one that was interrupted goes on
where it was. A result whose code, the tree of `src/eigenlens`, is the present one is not made
again.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "results")]

from eigenlens import EigenlensError  # noqa: E402
from eigenlens.papers.paper import Size  # noqa: E402
from maker import code, queue  # noqa: E402
from maker.run import Settings  # noqa: E402
from maker.store import RESULTS  # noqa: E402


def main(words: list[str] | None = None) -> int:
    given = _parser().parse_args(words)
    try:
        return _run(given)
    except EigenlensError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Interrupted; the same command goes on from here.", file=sys.stderr)
        return 130


def _run(given: argparse.Namespace) -> int:
    chosen = queue.check_names(given.papers)
    if (given.engine == "dask") != (given.workers is not None):
        raise EigenlensError("--engine dask and --workers N belong together: how many workers?")
    if given.quick and given.output.resolve() == RESULTS:
        raise EigenlensError("a miniature is no result; name another folder with --output")
    size: Size = "quick" if given.quick else "thorough" if given.thorough else "full"
    if given.check:
        found = queue.stale(given.output, code.tree(), chosen, size, given.seed)
        print("\n".join(f"{name}: {why}" for name, why in found.items()) or "All are up to date.")
        return 1 if found else 0
    wanted = queue.stale(given.output, code.committed_tree(), chosen, size, given.seed)
    settings = Settings(given.build, given.output, size, given.seed, given.engine, given.workers)
    names = queue.in_order(list(wanted), given.output)
    failed = queue.make(names, settings, given.jobs, lambda line: print(line, flush=True))
    print(f"{len(names) - len(failed)} made, {len(chosen) - len(names)} up to date.")
    for name, why in failed.items():
        print(f"failed: {name}: {why}", file=sys.stderr)
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("papers", nargs="*", help="papers by name (default: all)")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--thorough", action="store_true", help="the long form of cut-down papers")
    size.add_argument("--quick", action="store_true", help="miniatures, into another --output")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", choices=("local", "dask"), default="local")
    parser.add_argument("--workers", type=int, help="workers of a Dask cluster")
    parser.add_argument("--jobs", type=int, default=1, help="papers at once, one thread each")
    parser.add_argument("--check", action="store_true", help="only list what is missing or stale")
    parser.add_argument("--output", type=Path, default=RESULTS, help="the folder of the results")
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "results")
    return parser


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _interrupted)  # or the papers would run on without us
    sys.exit(main())

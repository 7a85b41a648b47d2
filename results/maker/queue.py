"""Many papers: cheap ones first, some at once, and those whose tables hold times alone."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from eigenlens import EigenlensError
from eigenlens.papers import PAPERS
from eigenlens.papers.paper import Size

from . import code
from .papers import MISSING, missing
from .run import Run, Settings
from .store import RESULTS, papers

TIMED = frozenset({"eigen-analysis", "fast", "hybrid", "induction", "tensorlens"})
"""Papers whose tables hold seconds or milliseconds: nothing else may run beside them."""
CHEAP_FIRST = (
    *("universal-approximation", "multiformer", "mind-the-gap", "qk-eigenspectrum", "hybrid"),
    *("doubly-normalised", "gated", "fast", "tensorlens", "explainability", "over-smoothing"),
    *(
        "convex-duality",
        "induction",
        "within-one-input",
        "rank-versus-heads",
        "sinks",
        "rank-collapse",
    ),
    "eigen-analysis",
)
"""The order of papers that have no result that says what they take."""


def stale(
    folder: Path, tree: str, chosen: Sequence[str], size: Size = "full", seed: int = 0
) -> dict[str, str]:
    """The papers whose result has to be made, with the reason."""
    there, found = papers(folder), {}
    for name in chosen:
        if name not in there:
            found[name] = "missing"
        elif there[name]["code"] != tree:
            found[name] = f"stale: made by commit {there[name]['commit'][:9]}"
        elif (there[name]["size"], there[name]["seed"]) != (size, seed):
            found[name] = f"of another kind: {there[name]['command']}"
    return found


def in_order(names: Sequence[str], folder: Path = RESULTS) -> list[str]:
    """The papers by the seconds that their stored runs took, then by what is known of the rest."""
    took = {name: record["seconds"] for name, record in papers(folder).items()}

    def cost(name: str) -> tuple[float, float]:
        known = CHEAP_FIRST.index(name) if name in CHEAP_FIRST else len(CHEAP_FIRST)
        return (took.get(name, float("inf")), known)

    return sorted(names, key=cost)


def make(
    names: Sequence[str], settings: Settings, jobs: int, tell: Callable[[str], None]
) -> dict[str, str]:
    """Run the papers and store their results; returns what failed, with the reason.

    A paper that fails does not stop the others. On an interrupt the seconds of what runs are noted
    and their parts stay.
    """
    tree = code.committed_tree()
    together = [name for name in names if name not in TIMED] if jobs > 1 else []
    alone = [name for name in names if name not in together]
    shared = replace(settings, threads=1)
    waiting = [
        *(Run(name, shared, tree) for name in together),
        *(Run(name, settings, tree) for name in alone),
    ]
    failed: dict[str, str] = {}
    running: list[Run] = []
    total, ended = len(waiting), 0
    try:
        while waiting or running:
            while waiting and len(running) < (jobs if waiting[0].name in together else 1):
                run = waiting.pop(0)
                run.begin(quiet=jobs > 1 or not sys.stderr.isatty())
                running.append(run)
                tell(f"{run.name}: started{_after(run)}{run.note and f'; {run.note}'}")
            for run in [run for run in running if not run.alive()]:
                running.remove(run)
                ended += 1
                problem = _finish(run)
                if problem:
                    failed[run.name] = problem
                tell(f"{run.name}: {problem or f'done in {_time(run.seconds)}'} [{ended}/{total}]")
            time.sleep(0.2)
    finally:
        for run in running:
            run.stop()
    return failed


def _finish(run: Run) -> str:
    """Store what a run found; returns what is wrong, or nothing."""
    exit_code = run.stop()
    if exit_code:
        said = [line for line in run.log.read_text("utf-8", "replace").splitlines() if line.strip()]
        return f"exit {exit_code}, {run.log}{f': {said[-1]}' if said else ''}"
    try:
        run.store()
    except EigenlensError as error:
        return str(error)
    except Exception as error:  # claims or pictures that do not bear the stored tables
        return f"its result cannot be stored: {type(error).__name__}: {error}"
    if run.settings.output.resolve() == RESULTS:
        left = [name for name in missing() if name != run.name]
        MISSING.write_text("".join(f"{name}\n" for name in left), encoding="utf-8")
    return ""


def _after(run: Run) -> str:
    return f", after {_time(run.before)} before" if run.before else ""


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def check_names(names: Sequence[str]) -> list[str]:
    """The papers that were asked for: all by default."""
    wrong: list[Any] = [name for name in names if name not in PAPERS]
    if wrong:
        raise EigenlensError(f"no paper {wrong[0]!r}; there are {', '.join(PAPERS)}")
    return list(names or PAPERS)

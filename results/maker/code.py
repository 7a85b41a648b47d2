"""Which code is here: a result belongs to the tree of `src/eigenlens` that made it.

The tree's hash, not the commit, says whether a result is up to date: a commit of pages, of tests
or of results makes none of them stale.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from eigenlens import EigenlensError

ROOT = Path(__file__).parents[2]
SOURCE = "src/eigenlens"


def commit(root: Path = ROOT) -> str:
    """The commit that is checked out."""
    return _git(root, "rev-parse", "HEAD")


def tree(root: Path = ROOT) -> str:
    """The hash of `src/eigenlens` in that commit."""
    return _git(root, "rev-parse", f"HEAD:{SOURCE}")


def committed_tree(root: Path = ROOT) -> str:
    """The same, refused where the files differ from the commit: no commit names that code."""
    changed = _git(root, "status", "--porcelain", "--", SOURCE).splitlines()
    if changed:
        raise EigenlensError(
            f"{SOURCE} has changes that are not committed ({changed[0].strip()}"
            f"{f' and {len(changed) - 1} more' if changed[1:] else ''}), so that no commit names"
            " the code of a result; commit them first"
        )
    return tree(root)


def _git(root: Path, *words: str) -> str:
    try:
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True)
    except FileNotFoundError:
        raise EigenlensError("results name the commit that made them; install git") from None
    if done.returncode:
        raise EigenlensError(
            f"results name the commit that made them, and git says of {root}:"
            f" {done.stderr.strip().splitlines()[0]}"
        )
    return done.stdout.strip()

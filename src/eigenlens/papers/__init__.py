"""One file a paper: its claims, what was published beside what is measured here, and a verdict."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import EigenlensError
from . import eigen_analysis, rank_collapse
from .claims import Claim, Reproduction

PAPERS: dict[str, Callable[..., Reproduction]] = {paper.PAPER: paper.reproduce for paper in (eigen_analysis, rank_collapse)}
"""By name, `reproduce(quick, out, seed, report, resume=…, force=…)`."""


def paper(name: str) -> Callable[..., Reproduction]:
    if name not in PAPERS:
        raise EigenlensError(f"no paper {name!r}; there are {', '.join(PAPERS)}")
    return PAPERS[name]


__all__ = ["PAPERS", "Claim", "Reproduction", "paper"]

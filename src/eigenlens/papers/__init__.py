"""One file a paper: its claims, what was published beside what is measured here, and a verdict."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import EigenlensError
from . import eigen_analysis, rank_collapse
from .claims import Claim, Reproduction
from .paper import Paper

RELATED: tuple[Paper, ...] = ()
PAPERS: dict[str, Callable[..., Reproduction]] = {
    eigen_analysis.PAPER: eigen_analysis.reproduce,
    rank_collapse.PAPER: rank_collapse.reproduce,
    **{related.name: related for related in RELATED},
}
"""By name, `reproduce(quick, out, seed, report, resume=…, force=…)`."""


def paper(name: str) -> Callable[..., Reproduction]:
    if name not in PAPERS:
        raise EigenlensError(f"no paper {name!r}; there are {', '.join(PAPERS)}")
    return PAPERS[name]


__all__ = ["PAPERS", "Claim", "Reproduction", "paper"]

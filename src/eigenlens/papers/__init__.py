"""One file a paper: its claims, what was published beside what is measured here, and a verdict."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import EigenlensError
from . import (
    eigen_analysis,
    multiformer,
    over_smoothing,
    qk_eigenspectrum,
    rank_collapse,
    rank_versus_heads,
    universal_approximation,
)
from .claims import Claim, Reproduction
from .doubly_normalised import paper as doubly_normalised
from .fast import paper as fast
from .gated import paper as gated
from .hybrid import paper as hybrid
from .mind_the_gap import paper as mind_the_gap
from .paper import Paper

RELATED: tuple[Paper, ...] = (
    hybrid, doubly_normalised, fast, gated, mind_the_gap, multiformer.paper, over_smoothing.paper,
    qk_eigenspectrum.paper, rank_versus_heads.paper, universal_approximation.paper,
)  # fmt: skip
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

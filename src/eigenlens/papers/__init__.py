"""A folder a paper: its claims, what was published beside what is measured here, and a verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..names import unknown
from . import (
    convex_duality,
    doubly_normalised,
    eigen_analysis,
    explainability,
    fast,
    gated,
    hybrid,
    induction,
    mind_the_gap,
    multiformer,
    over_smoothing,
    qk_eigenspectrum,
    rank_collapse,
    rank_versus_heads,
    sinks,
    tensorlens,
    universal_approximation,
)
from .claims import Claim, Reproduction

RELATED = (
    sinks,
    hybrid,
    gated,
    tensorlens,
    universal_approximation,
    mind_the_gap,
    induction,
    rank_versus_heads,
    fast,
    qk_eigenspectrum,
    convex_duality,
    multiformer,
    over_smoothing,
    explainability,
    doubly_normalised,
)
PAPERS: dict[str, Callable[..., Reproduction]] = {
    eigen_analysis.PAPER: eigen_analysis.reproduce,
    rank_collapse.PAPER: rank_collapse.reproduce,
    **{module.paper.name: module.paper for module in RELATED},
}
"""By name, `reproduce(quick, out, seed, report, resume=…, force=…)`."""
CHECKS: dict[str, Callable[[bool], None]] = {
    eigen_analysis.PAPER: eigen_analysis.check,
    rank_collapse.PAPER: rank_collapse.check,
    **{module.paper.name: module.paper.check for module in RELATED},
}
"""By name, `check(quick)`, which refuses a run whose libraries are not here."""


def paper(name: str) -> Callable[..., Reproduction]:
    if name not in PAPERS:
        raise unknown("paper", name, PAPERS)
    return PAPERS[name]


def check_papers(names: Iterable[str], quick: bool) -> None:
    """Refuse papers whose models and data need libraries that are not here."""
    for name in names:
        if name in CHECKS:
            CHECKS[name](quick)


__all__ = ["PAPERS", "Claim", "Reproduction", "check_papers", "paper"]

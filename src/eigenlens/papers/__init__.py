"""One folder per paper: its claims, what was published beside what is measured here, and a verdict.

Every folder has the same files, so that whoever has read one knows where to look in all:

    __init__.py   what the paper is about, the sizes of the full and the quick run, and the `Paper`
    claims.py     `claims_of(tables, quick)`: what was published, and the criterion of each verdict
    pictures.py   `charts(tables)`: the pictures, the main one first
    other files   what is measured, one idea per file
"""

from __future__ import annotations

from ..names import unknown_name
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
    within_one_input,
)
from .claims import Claim, Reproduction
from .paper import Paper

PAPERS: dict[str, Paper] = {
    module.paper.name: module.paper
    for module in (
        eigen_analysis,
        rank_collapse,
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
        within_one_input,
    )
}
"""Every paper by its name; the order is that of `eigenlens reproduce`."""


def find_paper(name: str) -> Paper:
    """The paper of that name; an error lists the names there are."""
    if name not in PAPERS:
        raise unknown_name("paper", name, PAPERS)
    return PAPERS[name]


__all__ = ["PAPERS", "Claim", "Paper", "Reproduction", "find_paper"]

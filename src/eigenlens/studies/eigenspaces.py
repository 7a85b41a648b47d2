"""The leading eigenvectors of a study, for comparisons."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..captures import Head, Site
from ..errors import EigenlensError
from ..names import unknown_name
from ..spectra.bases import Scope
from ..spectra.centring import Centring
from ..spectra.overlap import Eigenspaces
from ..spectra.rows import sums_by_scope
from ..spectra.spectrum import ANALYSES, LEVELS, Analysis, Level
from .options import KEPT_VECTORS

if TYPE_CHECKING:
    from .result import Study


def eigenspaces_of(
    study: Study, analysis: Analysis, level: Level, rank: int, centring: Centring
) -> Eigenspaces:
    """The leading eigenvectors of every head, layer or stack."""
    for what, given, known_ones in (("analysis", analysis, ANALYSES), ("level", level, LEVELS)):
        if given not in known_ones:
            raise unknown_name(what, given, known_ones)
    at: list[Head | Site | str] = []
    vectors = []
    if analysis == "matrices":
        if centring != "centred" or level != "head" or rank > KEPT_VECTORS:
            raise EigenlensError(
                f"of whole matrices a study keeps only the {KEPT_VECTORS} leading centred"
                " eigenvectors of each head; ask for these, or for rows"
            )
        for site in [site for site in study.ordered_sites if site in study.matrix_results]:
            parts = study.matrix_results[site]
            for head, found in enumerate(parts["vectors"][:, :rank].flatten(2)):
                at.append(Head(site.stack, site.layer, head))
                vectors.append(found.T.double())
        dimensions = next(iter(study.sites.values())).pairs
        return Eigenspaces(tuple(at), torch.stack(same(vectors)), None, None, dimensions)
    scatters, values = [], []
    known = sums_by_scope(study.row_sums())
    for scope in dict.fromkeys(Scope.of(site, level) for site in study.ordered_sites):
        if (sums := known.get(scope)) is None:  # a stack whose layers see different numbers of keys
            continue
        basis = study.row_basis(scope, centring)
        for head in range(len(sums.second)):
            if level == "head" and scope.layer is not None:
                at.append(Head(scope.stack, scope.layer, head))
            else:
                at.append(scope.at)
            u = basis.vectors[head]
            vectors.append(u[:, :rank])
            scatters.append((u * basis.eigenvalues[head]) @ u.T)
            values.append(basis.eigenvalues[head])
    dimensions = vectors[0].shape[0] - (centring == "row-centred")
    if rank > vectors[0].shape[0]:
        raise EigenlensError(
            f"the rank must be at most {vectors[0].shape[0]}, the dimensions of a row, not {rank}"
        )
    return Eigenspaces(
        tuple(at),
        torch.stack(same(vectors)),
        torch.stack(scatters),
        torch.stack(values),
        dimensions,
    )


def same(vectors: list[Tensor]) -> list[Tensor]:
    if len({v.shape for v in vectors}) > 1:
        raise EigenlensError(
            "the layers of this model see different numbers of keys, so their eigenspaces cannot be"
            " compared"
        )
    return vectors

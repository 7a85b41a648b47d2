"""The statistics of a study by site, in the form that estimators are fitted from."""

from __future__ import annotations

import torch

from ..captures import Site
from ..estimators.estimator import MatrixModel, SiteStatistics
from ..studies import Study

NEEDED = ("rows", "moments")
"""The statistics that a plan needs; with `matrices` it has one estimator more."""


def site_statistics(study: Study) -> dict[Site, SiteStatistics]:
    """The statistics of the fit part of a study, by site."""
    rows = study.row_sums() if study.has("rows") else {}
    moments = study.moments() if study.has("moments") else {}
    matrices = _matrices(study) if study.has("matrices") else {}
    return {
        site: SiteStatistics(
            site,
            known.heads,
            known.kv_heads,
            known.queries,
            known.keys,
            known.head_dimension,
            causal=known.mask == "causal",
            rows=rows.get(site),
            moments=moments.get(site),
            matrices=matrices.get(site),
        )
        for site, known in study.sites.items()
    }


def _matrices(study: Study) -> dict[Site, MatrixModel]:
    found = {}
    for site, parts in study.matrix_results.items():
        spectra = study.spectra.select(
            analysis="matrices",
            level="head",
            centring="centred",
            stack=site.stack,
            layer=site.layer,
        )
        kept = parts["vectors"].shape[1]
        values = [torch.from_numpy(spectrum.eigenvalues[:kept]) for spectrum in spectra]
        found[site] = MatrixModel(
            valid=~parts["mean"][0].isnan(),
            mean=parts["mean"].nan_to_num(),
            variance=parts["variance"].nan_to_num(),
            vectors=parts["vectors"],
            eigenvalues=torch.stack(values).float(),
        )
    return found

"""What a study knows of each site, in the form that estimators are fitted from."""

from __future__ import annotations

import torch

from ..estimators.estimator import MatrixModel, SiteStatistics
from ..studies import Study

NEEDED = ("rows", "moments")
"""Without these a study tells a plan too little; `matrices` adds an estimator where they are there.
"""


def site_statistics(study: Study) -> dict[str, SiteStatistics]:
    """The statistics of the fit part of a study, by site."""
    held = {name.removesuffix(".safetensors") for name in study.facts["files"]}
    rows = study.row_sums() if "rows" in held else {}
    moments = study.moments() if "moments" in held else {}
    matrices = _matrices(study) if "matrices" in held else {}
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


def _matrices(study: Study) -> dict[str, MatrixModel]:
    found = {}
    for site, parts in study.matrix_results.items():
        stack, _, layer = site.rpartition("/")
        spectra = study.spectra.select(
            analysis="matrices", level="head", centring="centred", stack=stack, layer=int(layer)
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

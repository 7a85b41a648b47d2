"""The spectrum of every head's query-key matrix, kept beside the spectra of single inputs."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ..anatomy.truncation import projection_norm
from ..captures import Site, SiteInfo
from ..diagnostics import StudiedModel
from ..errors import EigenlensError
from ..models.load import Model
from ..stats import State
from ..stats.within import product_spectrum, within_sums


@torch.no_grad()
def weight_spectra(model: Model, sites: Mapping[Site, SiteInfo]) -> tuple[State, str]:
    """The spectra of `W_QK = W_Q W_Kᵀ` as tensors, and why some have none (or nothing).

    The squared singular values are the eigenvalues of `Lᵀ(W_QᵀW_Q)L` with `LLᵀ = W_KᵀW_K`, so that
    no C × C matrix is made. With rotary positions they are those before the rotation. Biases, and
    the gain of the norm before the projections, are not included.
    """
    studied, reasons = StudiedModel(model, sites), []
    state: State = {}
    for site, info in sites.items():
        try:
            if norm := projection_norm(studied.module.get_submodule(info.name)):
                raise EigenlensError(f"a norm follows its projections ({norm})")
            weights = studied.weights(site)
        except EigenlensError as error:
            reasons.append(str(error))
            continue
        q, k = weights.query.double(), weights.key.double()  # (H, C, D), (G, C, D)
        keys = (k.mT @ k).repeat_interleave(weights.group, 0)
        sums = within_sums(product_spectrum(q.mT @ q, keys))
        state |= {f"{site}/weights|0|{name}": x.cpu() for name, x in sums.items()}
    why = f"some heads have no spectrum of their weights: {reasons[0]}" if reasons else ""
    return state, why

"""How near to rank one the amplifier of a channel is, from all of its squared norm."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ...diagnostics import StudiedModel
from ...diagnostics.amplifier import eigenpairs, gated_branch, matrices

STEPS = 64


@torch.no_grad()
def rank_one_shares(studied: StudiedModel, channels: Mapping[int, int]) -> dict[int, float]:
    """`λ₁² / ‖S_k‖²_F` of one channel k in each of some layers: 1 for a matrix of rank one."""
    made = {}
    for site, block in studied.block_sites().items():
        branch = gated_branch(block)
        if site.layer in channels and branch is not None:
            G, U, W = (x.double() for x in matrices(branch))
            made[site.layer] = rank_one_share(G, U, W[channels[site.layer]])
    return made


def rank_one_share(G: Tensor, U: Tensor, w: Tensor) -> float:
    """`λ₁² / ‖S‖²_F` of `S = (P + Pᵀ)/2`, `P = Σ_i w_i gate_i up_iᵀ`, for G, U (M, C) and w (M,).

    `‖S‖²_F = ½ wᵀ[(GGᵀ) ⊙ (UUᵀ)]w + ½ wᵀ[(GUᵀ) ⊙ (UGᵀ)]w`; no C × C matrix is made.
    """
    mixed = G @ U.T  # (M, M)
    square = (w @ ((G @ G.T) * (U @ U.T)) @ w + w @ (mixed * mixed.T) @ w) / 2
    values, _, _ = eigenpairs(G, U, w[None], STEPS)  # (1, 2)
    return float(values[0, 0].square() / square)

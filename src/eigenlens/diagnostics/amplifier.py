"""Gated MLPs as quadratic amplifiers: which channels they can blow up (arXiv 2603.05498).

And along which direction of the input.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..anatomy.blocks import Block, Branch, Mlp
from ..anatomy.frozen_parts import read_norm
from ..anatomy.head_weights import linear_map
from ..attention.precision import at_least_float32
from ..captures import Site, location_of
from ..errors import EigenlensError
from .constants import Constants
from .finding import Finding, Number
from .studied_model import StudiedModel

MOST = 1e6
"""The largest dominance that is given: λ₂ of a matrix of rank one is only rounding."""
ROWS = 2048
"""How many rows of the M × M Gram matrix are held at once."""
CLOSE = 1e-4
"""The iteration ends when the residual of an eigenvector, relative to λ₁, is below this.

The error of the eigenvalue is of the order of the square of this.
"""


@dataclass(frozen=True)
class AmplifierSettings:
    """How many channels to study, and how long to iterate.

    `channels`: the eigenvalues of this many channels are computed, those with the largest ‖U_k‖.

    `steps`: the largest dimension of the Krylov space.
    """

    channels: int = 4
    steps: int = 64

    def __post_init__(self) -> None:
        if self.channels < 2 or self.steps < 2:
            raise EigenlensError(
                f"channels and steps must be at least 2, not {self.channels} and {self.steps}"
            )


class Amplifier(Constants):
    """The channels that each gated MLP amplifies: `FFN(h)_k ≈ hᵀ S_k h`.

    The approximation holds where the gate's activation is near the identity.

        U_k = Σ_i Wdown[k,i] · gate_i up_iᵀ,   S_k = (U_k + U_kᵀ)/2,   ‖U_k‖²_F = w_kᵀ [(GGᵀ) ⊙
        (UUᵀ)] w_k

    The gain of the norm before the MLP (and its centring, if it has one) is folded into gate and
    up, a scale after the MLP into Wdown; a norm after the MLP is left out. No C × C matrix is made:
    the norms of all C channels come from rows of the M × M Gram matrix (`2048 · M` numbers at once
    besides the C × M of Wdown, at a cost of about 3 M²C); for a few channels the eigenvalues
    largest in magnitude come from a Krylov space of products with G, U and w_k. A ratio of two
    zeros is left out. It keeps the numbers and the top channels of each layer, which are constants
    of the model.
    """

    name = "amplifier"
    title = "Quadratic amplifiers in gated MLPs"
    level = "layer"
    numbers: ClassVar = {
        "gain": "largest eigenvalue |λ₁| of a channel",
        "dominance": "|λ₁| of that channel, divided by its |λ₂|",
        "concentration": "largest norm of a channel, divided by the median norm",
        "shared": "|cosine| between the directions of the top two channels",
    }
    Settings = AmplifierSettings

    @torch.no_grad()
    def begin(self, studied: StudiedModel) -> str:
        try:
            blocks = studied.block_sites()
            found = {
                site: branch
                for site, block in blocks.items()
                if (branch := gated_branch(block)) is not None
            }
            if not found:
                return "no MLP of this model has a gate"
            for site, branch in found.items():
                if not self.known(site):
                    self._look(site, *matrices(branch))
        except EigenlensError as error:
            return str(error)
        return ""

    def _look(self, site: Site, G: Tensor, U: Tensor, W: Tensor) -> None:
        """Keep the numbers of one MLP: gate and up (M, C), down (C, M)."""
        norms = channel_norms(G, U, W)  # (C,)
        if not bool(norms.isfinite().all()):  # products of float32 beyond its range
            G, U, W = G.double(), U.double(), W.double()
            norms = channel_norms(G, U, W)
        if not bool(norms.isfinite().all()):
            raise EigenlensError(
                f"the products of the MLP weights of {site} are not finite: the weights are too"
                " large, or not finite themselves"
            )
        top = norms.topk(min(self.settings.channels, len(norms))).indices
        # (K, 2), (K, C), (K,)
        values, vectors, left = eigenpairs(G, U, W[top], self.settings.steps)
        order = values[:, 0].abs().argsort(descending=True, stable=True)
        top, values, vectors, left = top[order], values[order], vectors[order], left[order]
        first, second = values[0].abs().tolist()
        shared = float((vectors[0] @ vectors[1]).abs()) if len(vectors) > 1 else 1.0
        known = (
            first,
            _times(first, second),
            _times(float(norms.max()), float(norms.median())),
            shared if bool((values[:2, 0] != 0).all()) else torch.nan,
        )
        columns = (top.double(), norms[top], values[:, 0], values[:, 1], left)
        channels = torch.stack([x.double() for x in columns], 1)  # (K, 5)
        self.keep(site, numbers=torch.tensor(known, dtype=torch.float64), channels=channels)

    def found(self) -> Iterator[Number]:
        for site, values in self.of("numbers"):
            for name, x in zip(self.numbers, values.tolist()):
                if math.isfinite(x):
                    yield Number(site.stack, site.layer, None, name, x)

    def top(self) -> list[dict[str, Any]]:
        """Return the top channels of every layer, the one with the largest |λ₁| first."""
        return [
            {
                "stack": site.stack,
                "layer": site.layer,
                "channel": int(row[0]),
                "‖U‖": row[1],
                "λ₁": row[2],
                "λ₂": row[3],
                "residual": row[4],
            }
            for site, rows in self.of("channels")
            for row in rows.tolist()
        ]

    def tables(
        self, finding: Finding, tokens: Mapping[int, str]
    ) -> dict[str, list[dict[str, Any]]]:
        return {"Channels that each MLP amplifies most": self.top()}

    def sentence(self, finding: Finding) -> str:
        gain, dominance, concentration = (
            finding.values(name) for name in ("gain", "dominance", "concentration")
        )
        most = max(gain, key=lambda at: gain[at])
        if not gain[most] > 0:
            return (
                "No MLP amplifies anything: the products of gate, up and down weights are 0 for"
                " every channel."
            )
        channel = next(row["channel"] for row in self.top() if location_of(row) == most)
        kind = (
            "one direction of the input"
            if dominance[most] > 10
            else "several directions of the input"
        )
        return (
            f"The strongest amplifier is the MLP of {finding.labels(most)}: its channel {channel}"
            f" grows with the square of {kind} (|λ₁| = {gain[most]:.3g}, which is"
            f" {dominance[most]:.3g} times |λ₂|). The norm of the largest channel there is"
            f" {concentration[most]:.3g} times that of the median channel."
        )


def _times(large: float, small: float) -> float:
    """Return large / small, at most `MOST`; NaN for two zeros."""
    return min(large / small, MOST) if small > 0 else MOST if large > 0 else math.nan


def gated_branch(block: Block) -> Branch | None:
    """Return the branch of the block's MLP, or None if that has no gate."""
    for stage in block.stages:
        for branch in stage.branches:
            if isinstance(branch.linear, Mlp) and (
                branch.linear.gate is not None or branch.linear.fused
            ):
                return branch
    return None


@torch.no_grad()
def matrices(branch: Branch) -> tuple[Tensor, Tensor, Tensor]:
    """Return gate and up (M, C) with the norm's gain, and down (C, M) with the scale after it."""
    mlp = branch.linear
    assert isinstance(mlp, Mlp)
    up, down = linear_map(mlp.wide)[0], linear_map(mlp.narrow)[0]
    gate, up = up.chunk(2) if mlp.fused else (linear_map(mlp.gate)[0], up)  # type: ignore[arg-type]
    C = up.shape[1]
    if branch.before is not None and not isinstance(branch.before, torch.nn.Identity):
        draw = torch.Generator().manual_seed(0)
        # any tokens that are not centred show the norm's kind
        x = (1 + torch.randn(1, 4, C, generator=draw)).to(up)
        gain, _, centred, _ = read_norm(branch.before, x)
        gate, up = gate * gain, up * gain
        if centred:
            gate, up = (w - w.mean(1, keepdim=True) for w in (gate, up))
    if branch.scale is not None:
        down = down * branch.scale(torch.ones_like(down[:, 0]))[:, None]
    return at_least_float32(gate), at_least_float32(up), at_least_float32(down)


def channel_norms(G: Tensor, U: Tensor, W: Tensor, rows: int = ROWS) -> Tensor:
    """Return `‖U_k‖_F` of every channel, (C,) float64, from rows of the M × M Gram matrix."""
    squares = torch.zeros(len(W), dtype=torch.float64, device=W.device)
    for some in range(0, len(G), rows):
        part = slice(some, some + rows)
        gram = (G[part] @ G.T).mul_(U[part] @ U.T)  # (rows, M)
        squares += ((W[:, part] @ gram) * W).sum(1, dtype=torch.float64)
    return squares.clamp_min(0).sqrt()


def eigenpairs(G: Tensor, U: Tensor, w: Tensor, steps: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the two eigenvalues of `S_k` largest in magnitude (K, 2).

    Also the vector of the first (K, C) and its residual (K,).

    `S_k x = ½ (Gᵀ(w_k ⊙ Ux) + Uᵀ(w_k ⊙ Gx))` for K channels w (K, M) side by side. Each basis of a
    Krylov space is orthogonalised twice; a space that is exhausted goes on with a random vector.
    The residual is relative to λ₁; the larger residual of the two eigenpairs decides when to stop.
    """
    K, C = len(w), G.shape[1]
    steps = min(steps, C)
    draw = torch.Generator().manual_seed(0)
    noise = torch.randn(K, C, steps, generator=draw).to(G)
    V = G.new_zeros(K, C, steps)  # the basis
    SV = torch.zeros_like(V)
    x = noise[..., 0]
    for j in range(steps):
        if j:
            x = SV[..., j - 1]
            size = x.norm(dim=1)
            x = _orthogonal(x, V[..., :j])
            spent = x.norm(dim=1) <= 1e-5 * size
            if bool(spent.any()):
                x = torch.where(spent[:, None], _orthogonal(noise[..., j], V[..., :j]), x)
        V[..., j] = x / x.norm(dim=1, keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)
        SV[..., j] = 0.5 * (((V[..., j] @ U.T) * w) @ G + ((V[..., j] @ G.T) * w) @ U)
        if j == steps - 1 or (j >= 3 and j % 4 == 3):
            values, vectors, residual = _ritz(V[..., : j + 1], SV[..., : j + 1])
            if bool((residual <= CLOSE).all()):
                break
    return values, vectors, residual.amax(1)


def _orthogonal(x: Tensor, V: Tensor) -> Tensor:
    """Return x (K, C) without its part in the span of V (K, C, j)."""
    for _ in range(2):
        x = x - (V @ (V.transpose(1, 2) @ x[..., None]))[..., 0]
    return x


def _ritz(V: Tensor, SV: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return two eigenvalues (K, 2) of the projected matrix, the first's vector, both residuals."""
    small = (V.transpose(1, 2) @ SV).double()
    theta, y = torch.linalg.eigh((small + small.transpose(1, 2)) / 2)  # (K, j), (K, j, j)
    order = theta.abs().argsort(1, descending=True)[:, :2]
    values = theta.gather(1, order)  # (K, 2)
    y = y.gather(2, order[:, None].expand(-1, y.shape[1], -1)).to(V)  # (K, j, 2)
    x, Sx = V @ y, SV @ y  # (K, C, 2)
    residual = (Sx.double() - x.double() * values[:, None]).norm(dim=1)
    scale = values[:, :1].abs().clamp_min(torch.finfo(torch.float64).tiny)
    return values, x[..., 0].double(), residual / scale

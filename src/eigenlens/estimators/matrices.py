"""Estimate all scores of a matrix from the exact scores of a few pairs."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from ..captures import AttentionCall
from ..errors import EigenlensError
from ..stats import Pairs
from .columns import pair_scores
from .estimator import Cost, Estimate, Estimator, MatrixModel, SiteStatistics
from .row_model import chosen_number
from .selection import Rule
from .selection import select_pairs as choose

FLOOR = 1e-3


class MatrixConditional(Estimator):
    """The conditional mean of a matrix in the model `F Fᵀ + diag ψ`, given some exact scores.

    The exact scores are those of the pairs P.

        ŝ = μ + F z,    z = (I + F_PᵀΨ_P⁻¹F_P)⁻¹ F_PᵀΨ_P⁻¹ (s_P − μ_P)

    F (N, r) are the leading eigenvectors of the study times the root of their eigenvalues. ψ is the
    remaining variance of each pair, at least `floor` of the mean variance of the head. Pairs that
    the mask excludes are not among the N; a padded input uses those pairs of P that it has, with
    its own r × r solve. Tensors: `pairs (H, m)` as `i·S + j`, `mean (H, T, S)`, `factor (H, r, T,
    S)`, `noise (H, m)`, `valid (H, T, S)`. Cost: `m·d + n²·r + m·r`; fit: `N·r²` for each of about
    60 rounds of choices. Memory: `N·r` per head.
    """

    name = "matrices-lmmse"
    causal = False  # a computed pair of a later query tells of it
    needs = ("matrices",)
    breaks_even = "m < n²(d−r)/(d+r), for m·d + n²·r + m·r multiply-adds against n²·d"

    @classmethod
    def fit(  # type: ignore[override]
        cls,
        statistics: SiteStatistics,
        pairs: int | None = None,
        share: float | None = None,
        rule: Rule = "a-optimal",
        rank: int | None = None,
        seed: int = 0,
        floor: float = FLOOR,
    ) -> Self:
        model: MatrixModel = statistics.need("matrices")
        known = model.eigenvalues.shape[1]
        if rank is not None and not 1 <= rank <= known:
            raise EigenlensError(
                f"rank must be from 1 to {known}, the number of eigenvectors that the study has for"
                f" {statistics.site.full_label}, not {rank}"
            )
        r = known if rank is None else rank
        at = Pairs(model.valid)
        m = chosen_number(at.number, pairs, share, "pairs")
        matrices = (
            model.vectors[:, :r].double()
            * model.eigenvalues[:, :r, None, None].double().clamp_min(0).sqrt()
        )
        F = at.vectors(matrices).transpose(1, 2)  # (H, N, r)
        variance = at.vectors(model.variance.double())  # (H, N)
        least = floor * variance.mean(1, keepdim=True)
        noise = torch.maximum(variance - F.square().sum(2), torch.where(least > 0, least, 1))
        chosen = choose(rule, F.float(), noise.float(), m, seed)  # (H, m) of N
        settings: dict[str, Any] = {"pairs": m, "rule": rule, "rank": r} | (
            {"seed": seed} if seed else {}
        )
        return cls(
            settings,
            {
                "pairs": at.index[chosen],
                "mean": model.mean.double(),
                "factor": matrices,
                "noise": noise.gather(1, chosen),
                "valid": model.valid.expand(len(F), -1, -1).clone(),
            },
        )

    @cached_property
    def _at_pairs(self) -> Tensor:
        """F_P: (H, m, r)."""
        factor, pairs = self.tensors["factor"].flatten(2), self.tensors["pairs"]  # (H, r, T·S)
        return factor.gather(2, pairs[:, None].expand(-1, factor.shape[1], -1)).transpose(1, 2)

    @cached_property
    def _gain(self) -> Tensor:
        """`(I + F_PᵀΨ_P⁻¹F_P)⁻¹ F_PᵀΨ_P⁻¹`: (H, r, m)."""
        scaled = (self._at_pairs / self.tensors["noise"][..., None]).transpose(1, 2)
        eye = torch.eye(scaled.shape[1], dtype=scaled.dtype, device=scaled.device)
        return torch.linalg.solve(eye + scaled @ self._at_pairs, scaled)

    def estimate(self, call: AttentionCall) -> Estimate:
        device, dtype = call.q.device, call.q.dtype
        pairs, mean, factor = (
            self.tensors[name].to(device) for name in ("pairs", "mean", "factor")
        )
        (B, H, T, d), S = call.q.shape, call.k.shape[2]
        valid = self._valid(call).expand(B, H, T, S)
        m, r = pairs.shape[1], factor.shape[1]
        exact = pair_scores(call, pairs)  # (B, H, m)
        position = pairs.expand(B, H, m)
        available = valid.flatten(2).gather(2, position)
        residual = (exact - mean.flatten(1).gather(1, pairs).to(dtype)).masked_fill(~available, 0)
        if bool(available.all()):
            z = torch.einsum("hrm,bhm->bhr", self._gain.to(device, dtype), residual)
        else:
            F_P, noise = self._at_pairs.to(device), self.tensors["noise"].to(device)
            scaled = F_P / noise[..., None] * available[..., None]  # (B, H, m, r)
            inner = torch.eye(r, dtype=F_P.dtype, device=device) + scaled.transpose(2, 3) @ F_P
            right = scaled.transpose(2, 3) @ residual.to(F_P.dtype)[..., None]
            z = torch.linalg.solve(inner, right)[..., 0].to(dtype)
        flat = mean.flatten(1).to(dtype) + torch.einsum(
            "bhr,hrp->bhp", z, factor.flatten(2).to(dtype)
        )
        flat.scatter_(2, position, torch.where(available, exact, flat.gather(2, position)))
        number, total = available.sum((0, 2)), valid.sum((0, 2, 3)).clamp_min(1)
        work = (number * (d + r) + total * r) / (total * d)
        return Estimate(flat.unflatten(2, (T, S)), number / total, work)

    def _valid(self, call: AttentionCall) -> Tensor:
        """Return the valid pairs of a call, if they are those of the study without padding."""
        valid, known = call.valid(), self.tensors["valid"].to(call.q.device)
        if valid.shape[2:] != known.shape[1:]:
            have, want = "×".join(map(str, valid.shape[2:])), "×".join(map(str, known.shape[1:]))
            raise EigenlensError(
                f"{self.name} of {call.site.full_label} was fitted on matrices of {want}, but this"
                f" call has {have}; pad to that length or make a study of this one"
            )
        # queries and keys that are no padding
        there = valid.any(3, keepdim=True) & valid.any(2, keepdim=True)
        if not torch.equal(valid.expand_as(there & known), there & known):
            raise EigenlensError(
                f"{self.name} of {call.site.full_label} was fitted under another mask than that of"
                " this call; make a study with this mask"
            )
        return valid

    def cost(self, n: int, d: int) -> Cost:
        share = self.settings["pairs"] / int(self.tensors["valid"][0].sum())
        m, r = share * n * n, self.settings["rank"]
        return Cost(share, m * d + n * n * r + m * r)

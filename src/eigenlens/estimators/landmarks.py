"""Estimate all scores from the rows and columns of a few landmark tokens of each input."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from ..captures import AttentionCall
from ..errors import EigenlensError
from ..names import unknown_name
from .columns import chosen_keys, chosen_queries
from .estimator import Cost, Estimate, Estimator, SiteStatistics
from .row_model import chosen_number, row_model
from .selection import RULES, Rule, middles, rank_keys

RCOND = 0.03
"""Singular values below this share of the largest are dropped.

Error over variance of MiniLM, n = 128: .07 with 16 landmarks (.10 at a bound of .01), .018 with 32
(.013).
"""


class Landmarks(Estimator):
    """CUR (Nyström) of each input: `Ŝ = S_:J pinv(S_IJ) S_I:` with landmark queries I and keys J.

    It is exact if the rank of S is at most that of `S_IJ`, so with m ≥ d landmarks in general
    position. It is unstable if m is about the effective rank, which is why singular values of
    `S_IJ` below `rcond` of the largest are left out. Products of masked pairs are as good as any,
    so the estimate under a causal mask is as good; but a row then depends on later tokens, so a
    plan does not use it for a causal model. Landmarks are tokens that the mask allows. The plain
    products are factorised; cap, position bias and additive mask are applied afterwards, exactly.
    Landmark queries are evenly spaced (or random); keys follow the rule, with the row covariance of
    the study if the rule needs one. Computed rows and columns keep their values. Tensors: `order
    (H, n)`, the keys by preference. Cost: `2·n·m·d + n²·m + n·m² + m³`. Evenly spaced or random
    landmarks need no fit.
    """

    name = "cur"
    needs = ()
    causal = False
    breaks_even = "2·m·d + n·m + m² + m³/n < n·d, about m < nd/(n+2d) for small m"

    @classmethod
    def fit(  # type: ignore[override]
        cls,
        statistics: SiteStatistics,
        landmarks: int | None = None,
        share: float | None = None,
        rule: Rule = "uniform",
        seed: int = 0,
        rcond: float = RCOND,
    ) -> Self:
        n = statistics.keys
        m = chosen_number(min(n, statistics.queries), landmarks, share, "landmarks")
        if rule not in RULES:
            raise unknown_name("selection rule", rule, RULES)
        if rule in {"uniform", "random"}:
            order = torch.arange(n).expand(statistics.heads, n)
        else:
            model = row_model(statistics)
            order = model.by_head(rank_keys(rule, model.covariance, n, seed))
        settings: dict[str, Any] = {"landmarks": m, "rule": rule}
        given = {"seed": (seed, 0), "rcond": (rcond, RCOND)}
        settings |= {name: value for name, (value, default) in given.items() if value != default}
        return cls(settings, {"order": order.clone()})

    def estimate(self, call: AttentionCall) -> Estimate:
        (B, H, T, d), S, m = call.q.shape, call.k.shape[2], self.settings["landmarks"]
        valid = call.valid().expand(B, H, T, S)
        queries, keys = valid.any(3), valid.any(2)  # (B, H, T), (B, H, S)
        self._check(call, queries, keys)
        I = self._spread(queries, 1)
        if self.settings["rule"] in {"uniform", "random"}:
            J = self._spread(keys, 2)
        else:
            self.check_length(call, self.tensors["order"].shape[1])
            J = self._preferred(keys)
        columns = call.scaled_q @ chosen_keys(call, J).transpose(2, 3)  # S_:J (B, H, T, m)
        rows = chosen_queries(call, I) @ call.keys.transpose(2, 3)  # S_I: (B, H, m, S)
        inner = rows.gather(3, J[:, :, None].expand(B, H, m, m))
        inverse = torch.linalg.pinv(
            inner.float() if inner.dtype != torch.float64 else inner,
            rtol=self.settings.get("rcond", RCOND),
        )
        products = (columns @ inverse.to(columns.dtype)) @ rows
        products.scatter_(3, J[:, :, None].expand(B, H, T, m), columns)
        products.scatter_(2, I[..., None].expand(B, H, m, S), rows)
        computed = (
            torch.zeros_like(queries).scatter(2, I, True)[..., None]
            | torch.zeros_like(keys).scatter(2, J, True)[:, :, None]
        )
        total = valid.sum((0, 2, 3)).clamp_min(1)
        tokens_q, tokens_k = queries.sum((0, 2)), keys.sum((0, 2))
        work = (tokens_q + tokens_k) * m * d + total * m + tokens_q * m * m + B * m**3
        return Estimate(
            call.shaped(products), (computed & valid).sum((0, 2, 3)) / total, work / (total * d)
        )

    def _spread(self, tokens: Tensor, salt: int) -> Tensor:
        """Return m of the valid tokens (B, H, n), evenly spaced or random: (B, H, m), sorted."""
        m, number = self.settings["landmarks"], tokens.sum(2)
        if self.settings["rule"] == "random":
            rng = torch.Generator().manual_seed(2 * self.settings.get("seed", 0) + salt)
            priority = (
                torch.rand(tokens.shape[2], generator=rng).to(tokens.device).expand(tokens.shape)
            )
            return priority.masked_fill(~tokens, 2).topk(m, 2, largest=False).indices.sort(2).values
        places = torch.stack([middles(int(n), m) for n in number.flatten().tolist()]).view(
            *number.shape, m
        )
        position = (
            torch.where(
                tokens, torch.arange(tokens.shape[2], device=tokens.device), tokens.shape[2]
            )
            .sort(2)
            .values
        )
        return position.gather(2, places.to(tokens.device))

    def _preferred(self, tokens: Tensor) -> Tensor:
        """Return the first m valid tokens in the order of the study: (B, H, m)."""
        order = self.tensors["order"].to(tokens.device)
        rank = order.argsort(1)[:, : tokens.shape[2]].expand(tokens.shape)  # of each position
        return (
            rank.masked_fill(~tokens, order.shape[1])
            .topk(self.settings["landmarks"], 2, largest=False)
            .indices.sort(2)
            .values
        )

    def _check(self, call: AttentionCall, queries: Tensor, keys: Tensor) -> None:
        m = self.settings["landmarks"]
        for what, tokens in (("queries", queries), ("keys", keys)):
            if (fewest := int(tokens.sum(2).min())) < m:
                raise EigenlensError(
                    f"an input of {call.site.full_label} has {fewest} valid {what}, fewer than the"
                    f" {m} landmarks; leave out such short inputs or choose fewer landmarks"
                )

    def cost(self, n: int, d: int) -> Cost:
        m = min(self.settings["landmarks"], n)
        return Cost(1 - (1 - m / n) ** 2, float(2 * n * m * d + n * n * m + n * m * m + m**3))

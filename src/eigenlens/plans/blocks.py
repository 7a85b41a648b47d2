"""Fitting block-adaptive attention: a threshold for each key-value head of each layer.

Every threshold `τ` of a ladder is tried on calibration calls, and for each key-value head the error
it makes and the pairs it costs are noted. Heads differ enormously: some lose almost nothing at the
highest threshold, and a few still err at the lowest. With errors `E_g(τ)` and costs
`C_g(τ)`, as shares of causal attention, the plan solves

    min Σ_g E_g(τ_g)   subject to   mean_g C_g(τ_g) ≤ budget        by   τ_g = argmin E_g + λ C_g,

`λ` found by bisection; "dense" (error 0, cost 1) is one of the choices of every head. The error of
output `Δ_i` at query `i` is `(∂loss/∂out_i · Δ_i)²` where the gradients of the loss are given, the
second-order view of what it does to the loss, and `‖Δ_i‖²` relative to the head's output where they
are not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..attention.block_selection import BlockSettings, attended_pairs, block_mass, select
from ..attention.blocks import block_attention, dense_attention, gathered_attention, work_shares
from ..captures import AttentionCall, Site, replace_attention
from ..errors import EigenlensError
from .choose import on_hull

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LADDER = (8e-3, 2e-3, 1e-3, 5e-4, 2.5e-4, 1.2e-4, 6e-5, 3e-5)
"""Thresholds that are tried: probability per pair.

Uniform attention over 4,096 tokens gives each 2.4e-4.
"""

DENSE = 0.0


@dataclass(frozen=True)
class BlockPlan:
    """The settings of every site; a site without settings attends densely."""

    sites: dict[Site, BlockSettings]
    # share of causal attention's work at fitting, and error
    expected: dict[str, float] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """The plan as plain JSON values."""
        sites = {
            str(site): asdict(settings) | {"thresholds": list(settings.thresholds)}
            for site, settings in self.sites.items()
        }
        return {"sites": sites, "expected": dict(self.expected)}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> BlockPlan:
        sites = {
            Site.parse(key): BlockSettings(**{**s, "thresholds": tuple(s["thresholds"])})
            for key, s in record["sites"].items()
        }
        return cls(sites, dict(record.get("expected", {})))

    def attend(self, call: AttentionCall) -> Tensor | None:
        """The output of a call under the plan, `(B, H, T, E)`.

        None if the model has to attend as before: with masks, caps, biases, sinks, and in the steps
        of a decoder with a cache.
        """
        settings = self._settings(call)
        return (
            None
            if settings is None
            else block_attention(call.q, call.k, call.v, settings, call.scale)
        )

    def shares(self, call: AttentionCall) -> Tensor:
        """The work of each head in this call, as a share of causal attention's, `(H,)`.

        It is 1 if the model attends as before.
        """
        settings = self._settings(call)
        if settings is None:
            return torch.ones(call.heads, dtype=torch.float64)
        return work_shares(call.q, call.k, settings, call.scale)

    def _settings(self, call: AttentionCall) -> BlockSettings | None:
        plain = call.linear and call.sinks is None and call.mask_shape.form == "causal"
        return self.sites.get(call.site) if plain else None


@dataclass
class Curves:
    """Error and cost of each key-value head of a site at every threshold, summed over calls."""

    settings: BlockSettings
    error: Tensor  # (thresholds, G)
    # (thresholds, G): pairs attended by each query head, sampled rows at half a pair (they meet no
    # values)
    pairs: Tensor
    causal: float  # pairs of causal attention


def measure(
    call: AttentionCall,
    base: BlockSettings,
    ladder: Sequence[float] = LADDER,
    gradient: Tensor | None = None,
) -> Curves:
    """Try every threshold on one causal call.

    `gradient (B, H, T, E)` is the gradient of the loss with respect to the heads' output.
    """
    if call.mask_shape.form != "causal" or not call.linear:
        raise EigenlensError(
            f"{call.site.full_label}: block-adaptive attention needs plain causal calls"
            " without padding"
        )
    whole = call.q.shape[2] // base.query_block * base.query_block
    q, (k, v) = (
        call.q[:, :, :whole].contiguous(),
        (x[:, :, :whole].contiguous() for x in (call.k, call.v)),
    )
    (B, H, T, _), G = q.shape, k.shape[1]
    true = dense_attention(q, k, v, call.scale)
    uniform = replace(base, thresholds=(1.0,) * G)
    mass = block_mass(q, k, uniform, call.scale)
    errors, pairs = [], []
    for threshold in ladder:
        settings = replace(base, thresholds=(threshold,) * G)
        batches = select(mass, settings)
        gap = gathered_attention(q, k, v, batches, settings, call.scale) - true
        if gradient is not None:
            error = (gap * gradient[:, :, :whole]).sum(3).square().sum((0, 2))  # (H,)
        else:
            error = gap.square().sum((0, 2, 3)) / true.square().sum((0, 2, 3))
        errors.append(error.unflatten(0, (G, H // G)).sum(1))
        pairs.append(attended_pairs(batches, (B, G, T // base.query_block), settings))
    return Curves(uniform, torch.stack(errors).double(), torch.stack(pairs).double(), B * T * T / 2)


def fit(
    calls: Iterable[AttentionCall],
    budget: float = 0.3,
    *,
    gradients: Mapping[Site, Tensor] | None = None,
    base: BlockSettings | None = None,
    ladder: Sequence[float] = LADDER,
) -> BlockPlan:
    """The plan that spends the budget where it helps most; one call per site.

    `budget` is the mean share of the work of causal attention.
    """
    base = base or BlockSettings(())
    curves = {}
    for call in calls:
        curves[call.site] = measure(
            call, base, ladder, None if gradients is None else gradients[call.site]
        )
    if not curves:
        raise EigenlensError("there was no attention call to fit the blocks on; give at least one")
    return allocate(curves, budget, ladder)


def allocate(
    curves: Mapping[Site, Curves], budget: float, ladder: Sequence[float] = LADDER
) -> BlockPlan:
    """Choose `argmin_τ E_g(τ) + λ C_g(τ)` for every key-value head, with `λ` by the budget."""
    thresholds = torch.tensor([*ladder, DENSE])
    heads = {site: c.error.shape[1] for site, c in curves.items()}
    error = torch.cat([c.error for c in curves.values()], 1)  # (thresholds, all heads)
    share = torch.cat([c.pairs / c.causal for c in curves.values()], 1).clamp_max(1)
    error = torch.cat([error, torch.zeros_like(error[:1])])
    share = torch.cat([share, torch.ones_like(share[:1])])
    if (least := float(share.min(0).values.mean())) > budget:
        raise EigenlensError(
            f"blocks cannot stay within a budget of {budget:g} here, they take at least"
            f" {least:.3g}; raise the budget"
        )
    choice = torch.from_numpy(on_hull(error.numpy(), share.numpy(), budget))
    chosen = thresholds[choice].split(list(heads.values()))
    sites = {
        site: replace(c.settings, thresholds=tuple(t.tolist()))
        for (site, c), t in zip(curves.items(), chosen)
    }
    expected = {
        "share": share.gather(0, choice[None]).mean().item(),
        "error": error.gather(0, choice[None]).sum().item(),
        "dense_heads": float((thresholds[choice] == DENSE).sum()),
    }
    return BlockPlan(sites, expected)


def loss_gradients(model: PreTrainedModel, ids: Tensor) -> dict[Site, Tensor]:
    """The gradients `(B, H, T, E)` of a language model's summed loss, by site.

    They are with respect to the heads' outputs, from one forward and one backward pass through `ids
    (B, T)`; gradients of parameters are not computed.
    """
    outputs: dict[Site, Tensor] = {}

    def attend(call: AttentionCall) -> Tensor:
        out = dense_attention(call.q, call.k, call.v, call.scale)
        out.retain_grad()
        outputs[call.site] = out
        return out

    wanted = {p: p.requires_grad for p in model.parameters()}
    embed = model.get_input_embeddings().register_forward_hook(
        lambda module, given, out: out.requires_grad_(True)
    )
    try:
        for p in wanted:
            p.requires_grad_(False)
        with torch.enable_grad(), replace_attention(model.base_model, attend):
            logits = model(ids, use_cache=False).logits
            nn.functional.cross_entropy(
                logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="sum"
            ).backward()
    finally:
        embed.remove()
        for p, flag in wanted.items():
            p.requires_grad_(flag)
    return {site: out.grad for site, out in outputs.items() if out.grad is not None}

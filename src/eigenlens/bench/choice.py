"""A mechanism for every head, by what the head contributes and what each mechanism changes.

    minimise Σ_h r_h e_{h,c(h)}   with   Σ_h cost_{c(h)} ≤ budget · Σ_h cost_full

r is the relevance of a head (arXiv 2205.07100), e the relative error of its output under a
candidate, both measured in a trained model with full attention.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from ..attention import Mechanism, find, make
from ..attention.relevance import head_relevance, relevance_map
from ..attention.softmax import Softmax
from ..errors import EigenlensError
from ..lab import Transformer
from ..names import split_names
from .entrants import FULL, SMALL, fits, settings_for

INPUTS = 64
SEED = 1 << 20
"""Seed of the inputs to choose on; no training draws from it."""


@dataclass(frozen=True)
class HeadChoice:
    """What one head gets: its relevance, and the error and cost of its mechanism.

    The cost is in multiply-adds per input.
    """

    layer: int
    head: int
    mechanism: str
    relevance: float
    error: float
    cost: int


@dataclass(frozen=True)
class Chosen:
    """A mechanism for every head. `mechanism` and `settings` go into a lab `Config` as they are.

    >>> chosen = choose(model, task, budget=0.5)
    >>> replace(model.config, mechanism=chosen.mechanism, mechanism_settings=chosen.settings)
    """

    heads: tuple[HeadChoice, ...]
    settings: Mapping[str, Mapping[str, Any]]
    full_cost: int

    @property
    def mechanism(self) -> tuple[tuple[tuple[str, int], ...], ...]:
        """One list of (name, heads) per layer: neighbours with the same mechanism share it."""
        layers: dict[int, list[tuple[str, int]]] = {}
        for head in self.heads:
            row = layers.setdefault(head.layer, [])
            if row and row[-1][0] == head.mechanism:
                row[-1] = (head.mechanism, row[-1][1] + 1)
            else:
                row.append((head.mechanism, 1))
        return tuple(tuple(row) for _, row in sorted(layers.items()))

    @property
    def share(self) -> float:
        """Cost of all heads, as a share of full attention's."""
        return sum(head.cost for head in self.heads) / self.full_cost

    @property
    def error(self) -> float:
        """`Σ r e`, what was minimised."""
        return sum(head.relevance * head.error for head in self.heads)

    def rows(self) -> list[dict[str, Any]]:
        return [asdict(head) for head in self.heads]


def choose(
    model: Transformer,
    task: Any,
    budget: float = 0.5,
    candidates: str | Sequence[str] | None = None,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    inputs: int = INPUTS,
) -> Chosen:
    """A mechanism for every head of a trained lab model, within a share of the cost.

    The model has full attention; the share is of its attention's cost.

    `candidates` are mechanisms without weights of their own (default: all that fit the model's
    direction); `settings` are theirs by name. Relevance and errors are measured on `inputs` that
    the task draws for training; held-out ones are left for measuring what was chosen.
    """
    if not 0 < budget <= 1:
        raise EigenlensError(f"the budget is a share above 0 and at most 1, not {budget}")
    config = model.config
    if any(not isinstance(mechanism, Softmax) for mechanism in model.mechanisms):
        raise EigenlensError(
            "mechanisms are chosen for a model that was trained with full attention in every layer"
        )
    made = _candidates(candidates, config.causal, settings or SMALL)
    drawn = task.batch(inputs, SEED, 0).inputs
    relevance, errors = measured(model, list(made.values()), drawn)  # (L, H), (L, H, C)
    costs = [mechanism.cost(task.length, config.head_width) for mechanism in made.values()]
    full = Softmax().cost(task.length, config.head_width)
    L, H = relevance.shape
    which = assign(
        relevance.flatten().tolist(), errors.flatten(0, 1).tolist(), costs, budget * full * L * H
    )
    names = list(made)
    heads = tuple(
        HeadChoice(
            i // H,
            i % H,
            names[c],
            float(relevance.flatten()[i]),
            float(errors.flatten(0, 1)[i, c]),
            costs[c],
        )
        for i, c in enumerate(which)
    )
    kept = {
        name: asdict(made[name].settings) for name in sorted({head.mechanism for head in heads})
    }
    return Chosen(heads, kept, full * L * H)


def _candidates(
    names: str | Sequence[str] | None, causal: bool, settings: Mapping[str, Mapping[str, Any]]
) -> dict[str, Mechanism]:
    from ..attention import mechanisms

    if names is None:
        chosen = [
            name
            for name, kind in mechanisms().items()
            if fits(name, causal) and not kind.own_weights
        ]
    else:
        chosen = [find(name).name for name in split_names(names)]
    for name in chosen:
        if find(name).own_weights:
            raise EigenlensError(
                f"{name} has weights of its own: what it would change is not known before it is"
                " trained"
            )
        if not fits(name, causal):
            raise EigenlensError(
                f"{name} does not run {'causal' if causal else 'both ways'}, as the model does"
            )
    if not chosen:
        raise EigenlensError("no candidate is left to choose from; name other mechanisms")
    return {name: make(name, **settings_for(name, settings)) for name in dict.fromkeys(chosen)}


@torch.no_grad()
def measured(
    model: Transformer, candidates: Sequence[Mechanism], inputs: Tensor
) -> tuple[Tensor, Tensor]:
    """Relevance `(L, H)` of every head, and the relative error of its output `(L, H, C)`.

    The error is `‖z_c − z‖ / ‖z‖`.
    """
    relevance, errors = [], []
    for attention, x in zip(model.attentions, model.attended(inputs)):
        z = attention.head_outputs(x)  # (B, H, T, E)
        relevance.append(head_relevance(z, attention.w_o))
        q, k, v = attention.queries_keys_values(x)
        size = z.square().sum((0, 2, 3))  # (H,)
        layer = []
        for mechanism in candidates:
            other = attention.gated("G1", x, mechanism(q, k, v, causal=model.config.causal))
            layer.append(((other - z).square().sum((0, 2, 3)) / size.clamp_min(1e-30)).sqrt())
        errors.append(torch.stack(layer, 1))  # (H, C)
    return relevance_map(relevance), torch.stack(errors)


def assign(
    weights: Sequence[float],
    errors: Sequence[Sequence[float]],
    costs: Sequence[float],
    budget: float,
) -> list[int]:
    """For each of N heads one of C candidates: the least `Σ w e` whose costs are within the budget.

    The result is exact.

    Head by head, of the partial choices of equal cost the one of least error is kept, and of those
    none that costs more for no less. The number of costs stays small, since heads share the
    candidates: at most `(N+C−1 choose C−1)`.

    >>> assign([1.0, 3.0], [[0.0, 1.0], [0.0, 1.0]], [10, 1], 11)
    [1, 0]
    """
    kept: list[tuple[float, float, tuple[int, ...]]] = [(0.0, 0.0, ())]  # cost, error, choices
    for weight, row in zip(weights, errors):
        grown = sorted(
            (cost + costs[c], error + weight * e, (*chosen, c))
            for cost, error, chosen in kept
            for c, e in enumerate(row)
        )
        kept, best = [], float("inf")
        for state in grown:
            if state[1] < best and state[0] <= budget:
                kept.append(state)
                best = state[1]
    if not kept:
        least = min(costs) * len(weights)
        raise EigenlensError(
            f"the budget of {budget:.4g} multiply-adds is below the {least:.4g} of the cheapest"
            " choice"
        )
    return list(kept[-1][2])  # the errors fall as the costs rise


def uniform(name: str, layers: int, heads: int) -> tuple[tuple[tuple[str, int], ...], ...]:
    """The same mechanism for every head, in the form of `Chosen.mechanism`."""
    return tuple(((find(name).name, heads),) for _ in range(layers))


__all__ = ["FULL", "Chosen", "HeadChoice", "assign", "choose", "measured", "uniform"]

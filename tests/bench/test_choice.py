"""A mechanism for each head.

The choice is the best of all within the budget, and what it rests on is measured rightly.
"""

import itertools
import random
from dataclasses import replace

import pytest
import torch

from eigenlens.attention import make
from eigenlens.bench import assign, choose
from eigenlens.bench.assigned import shuffled, with_mechanisms
from eigenlens.bench.choice import measured, uniform
from eigenlens.errors import EigenlensError
from eigenlens.lab import NextBytes, Transformer


def best_by_enumeration(weights, errors, costs, budget):
    found = None
    for chosen in itertools.product(range(len(costs)), repeat=len(weights)):
        if sum(costs[c] for c in chosen) <= budget:
            loss = sum(w * row[c] for w, row, c in zip(weights, errors, chosen))
            found = loss if found is None else min(found, loss)
    return found


@pytest.mark.parametrize("seed", range(25))
def test_the_assignment_is_the_best_of_all(seed):
    """Costs and errors at random: no order among the candidates, ties included."""
    rng = random.Random(seed)
    N, C = rng.randint(1, 6), rng.randint(1, 4)
    costs = [rng.randint(1, 9) for _ in range(C)]
    weights = [rng.random() for _ in range(N)]
    errors = [[rng.choice([0.0, 0.5, rng.random()]) for _ in range(C)] for _ in range(N)]
    budget = rng.uniform(min(costs) * N, max(costs) * N)
    chosen = assign(weights, errors, costs, budget)
    assert sum(costs[c] for c in chosen) <= budget
    loss = sum(w * row[c] for w, row, c in zip(weights, errors, chosen))
    assert loss == pytest.approx(best_by_enumeration(weights, errors, costs, budget))


def test_many_heads_stay_exact_and_small():
    """144 heads of three mechanisms, against the bound of the relaxed problem that one head at most
    is split in.
    """
    rng = random.Random(1)
    weights = [rng.random() for _ in range(144)]
    errors = [[0.0, 0.2 + rng.random() / 10, 1.0] for _ in weights]
    chosen = assign(weights, errors, [100, 30, 10], 0.5 * 100 * 144)
    assert sum([100, 30, 10][c] for c in chosen) <= 7200
    swapped = sum(w * row[c] for w, row, c in zip(weights, errors, chosen))
    greedy = list(range(144))
    greedy.sort(key=lambda i: weights[i] * errors[i][1])
    # only full and the second, the least relevant get the second
    cheap = set(greedy[: -(-(14400 - 7200) // 70)])
    assert swapped <= sum(weights[i] * errors[i][1] for i in cheap) + 1e-12


def test_a_budget_below_everything_is_refused():
    with pytest.raises(EigenlensError, match=r"below the 6 of the cheapest choice"):
        assign([1.0, 1.0], [[0.0, 1.0]] * 2, [5, 3], 5)


@pytest.fixture(scope="module")
def lab():
    words = [
        f"the {a} of the {b} is a {a}{b}. " * 30
        for a in ("dog", "cat", "sun")
        for b in ("sea", "sky", "hill")
    ]
    task = NextBytes(words[:6], words[6:], length=24, windows=4)
    torch.manual_seed(0)
    return task, Transformer(task.config(width=16, layers=2, heads=4))


@torch.no_grad()
def test_errors_and_relevance_are_those_of_loops(lab):
    task, model = lab
    inputs = task.batch(3, 5, 0).inputs
    local = make("local", window=3)
    relevance, errors = measured(model, [make("softmax"), local], inputs)
    assert float(errors[..., 0].max()) < 1e-6
    i = torch.arange(24)
    near = ((i[:, None] - i) < 3) & (i[:, None] >= i)
    for layer, (attention, x) in enumerate(zip(model.attentions, model.attended(inputs))):
        q, k, v = attention.queries_keys_values(x)
        shares = []
        for head in range(4):
            scores = q[:, head] @ k[:, head].mT / 2  # heads of width 4
            z = scores.masked_fill(i[:, None] < i, -torch.inf).softmax(-1) @ v[:, head]
            other = scores.masked_fill(~near, -torch.inf).softmax(-1) @ v[:, head]
            assert float(errors[layer, head, 1]) == pytest.approx(
                float((other - z).norm() / z.norm()), rel=1e-4
            )
            rows = model.blocks[layer].attention.out.weight[:, 4 * head : 4 * head + 4]
            shares.append((z @ rows.T).abs().sum(-1))
        parts = torch.stack(shares) / torch.stack(shares).sum(0)  # (H, B, T)
        expected = parts.quantile(0.5, dim=2).quantile(0.5, dim=1)
        torch.testing.assert_close(relevance[layer], expected, atol=1e-5, rtol=1e-4)


def test_the_choice_is_a_configuration_that_runs(lab):
    task, model = lab
    chosen = choose(model, task, 0.6, ["softmax", "local"], {"local": {"window": 3}}, inputs=4)
    assert chosen.share <= 0.6 and len(chosen.heads) == 8
    config = replace(model.config, mechanism=chosen.mechanism, mechanism_settings=chosen.settings)
    assert sum(count for layer in chosen.mechanism for _, count in layer) == 8
    other = Transformer(config)
    assert other.attention_cost(24) == pytest.approx(
        chosen.share * model.attention_cost(24), rel=1e-6
    )
    assert other(task.batch(2, 0, 0).inputs).shape == (2, 24, 256)
    assert {"layer", "head", "mechanism", "relevance", "error", "cost"} == set(chosen.rows()[0])


def test_the_whole_budget_is_full_attention(lab):
    task, model = lab
    chosen = choose(model, task, 1.0, ["local", "softmax"], {"local": {"window": 3}}, inputs=4)
    assert chosen.mechanism == uniform("full", 2, 4) and chosen.error == pytest.approx(0, abs=1e-5)


@torch.no_grad()
def test_a_copy_has_the_weights_and_other_mechanisms(lab):
    task, model = lab
    chosen = choose(model, task, 0.6, ["softmax", "local"], {"local": {"window": 3}}, inputs=4)
    other = with_mechanisms(model, chosen.mechanism, {"local": {"window": 9}}, chosen.settings)
    inputs = task.batch(2, 0, 0).inputs
    again = with_mechanisms(other, "softmax")
    torch.testing.assert_close(again(inputs), model(inputs))
    assert float((other(inputs) - model(inputs)).abs().max()) > 1e-4
    windows = {
        m.settings.window
        for layer in other.mechanisms
        for m in layer.modules()
        if m is not layer and hasattr(m, "settings") and hasattr(m.settings, "window")
    }
    assert windows <= {3}


def test_shuffled_costs_the_same(lab):
    task, model = lab
    chosen = choose(model, task, 0.7, ["softmax", "local"], {"local": {"window": 3}}, inputs=4)
    other = shuffled(chosen, 3)
    count = sorted(head.mechanism for head in chosen.heads)
    assert (
        sorted(head.mechanism for head in other.heads) == count
        and other.settings == chosen.settings
    )
    assert any(shuffled(chosen, seed).mechanism != chosen.mechanism for seed in range(5))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"budget": 0.0}, "a share above 0 and at most 1, not 0.0"),
        ({"budget": 0.01, "candidates": ["softmax"]}, "cheapest choice"),
        ({"candidates": ["gated"]}, "weights of its own"),
        ({"candidates": ["sinkhorn"]}, "does not run causal"),
        ({"candidates": []}, "no candidate is left"),
    ],
)
def test_what_cannot_be_chosen_is_said(lab, given, told):
    task, model = lab
    with pytest.raises(EigenlensError, match=told):
        choose(model, task, **{"inputs": 2, **given})


def test_only_a_model_with_full_attention_is_the_measure(lab):
    task, model = lab
    other = Transformer(replace(model.config, mechanism="local"))
    with pytest.raises(EigenlensError, match="trained with full attention"):
        choose(other, task, 0.5)

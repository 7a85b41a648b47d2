"""Random paths.

Their probabilities, that estimates are unbiased, and single paths against forwards and products by
hand.
"""

import copy
from collections import Counter
from itertools import combinations, product

import numpy as np
import pytest
import torch
from scipy import stats

from collapses.by_hand import On, distance, forward, masks, model_of
from collapses.graphs import batch, graphs
from eigenlens.anatomy import freeze
from eigenlens.captures.precision import stays_double
from eigenlens.collapses.sampling import (
    PathSample,
    draw_paths,
    estimated_term,
    frozen_terms,
    head_sizes,
    pattern_residuals,
    rerun_paths,
)
from eigenlens.errors import EigenlensError

L, H = 3, 4
WEIGHTS = torch.tensor(
    [[1.0, 2.0, 0.5, 0.1], [3.0, 1.0, 1.0, 0.7], [0.2, 0.3, 4.0, 1.0]], dtype=torch.float64
)


def every_path(hops, layers=L):
    """All (layers, heads) of so many hops."""
    return [
        (taken, heads)
        for taken in combinations(range(layers), hops)
        for heads in product(range(H), repeat=hops)
    ]


def probabilities(weights, hops):
    """`Π w_{l,h}` over its sum over all paths of that length."""
    size = {
        path: np.prod([float(weights[l, h]) for l, h in zip(*path)])
        for path in every_path(hops, len(weights))
    }
    return {path: value / sum(size.values()) for path, value in size.items()}


def sample_of(paths):
    layers, heads = (
        torch.tensor([path[part] for path in paths]).view(len(paths), -1) for part in (0, 1)
    )
    return PathSample(layers, heads, torch.zeros(len(paths), dtype=torch.float64))


def drawn(sample):
    return [
        (tuple(layers), tuple(heads))
        for layers, heads in zip(sample.layers.tolist(), sample.heads.tolist())
    ]


@pytest.mark.parametrize("weights", [torch.ones(L, H), WEIGHTS], ids=["equal", "unlike"])
@pytest.mark.parametrize("hops", range(L + 1))
def test_paths_come_as_often_as_their_probability(hops, weights):
    sample, want = draw_paths(weights, hops, 20_000, seed=3), probabilities(weights, hops)
    assert len(sample) == 20_000 and sample.layers.shape == sample.heads.shape == (20_000, hops)
    paths, message = drawn(sample), {}
    for path, log_p in zip(paths, sample.log_probability.tolist()):
        assert np.exp(log_p) == pytest.approx(want[path])
        message[path] = np.exp(log_p)
    seen = Counter(paths)
    rare = [path for path in want if path not in message]
    assert sum(message.values()) == pytest.approx(1 - sum(want[path] for path in rare), abs=1e-9)
    assert sum(want[path] for path in rare) < 1e-3
    often = [path for path in want if want[path] * 20_000 >= 5]
    counts, expected = (
        np.array([seen[path] for path in often]),
        np.array([want[path] * 20_000 for path in often]),
    )
    if len(often) > 1:
        assert ((counts - expected) ** 2 / expected).sum() < stats.chi2.ppf(
            1 - 1e-6, len(often) - 1
        )


def test_hops_are_in_order_and_found_by_layer():
    sample = draw_paths(WEIGHTS, 2, 500, seed=1)
    assert bool((sample.layers[:, 0] < sample.layers[:, 1]).all())
    for layer in range(L):
        want = [dict(zip(*path)).get(layer, -1) for path in drawn(sample)]
        assert sample.head_at(layer).tolist() == want


def test_a_seed_gives_the_same_paths_again():
    one, same, other = (draw_paths(WEIGHTS, 2, 200, seed=seed) for seed in (5, 5, 6))
    assert drawn(one) == drawn(same) != drawn(other)
    state = torch.get_rng_state()
    draw_paths(WEIGHTS, 2, 200, seed=5)
    assert torch.equal(torch.get_rng_state(), state)  # the caller's random numbers are not touched


@pytest.mark.parametrize("hops", [-1, 4])
def test_hops_that_no_path_has(hops):
    with pytest.raises(EigenlensError, match=f"3 layers has 0 to 3 attention hops, not {hops}"):
        draw_paths(WEIGHTS, hops, 10)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan")])
def test_weights_that_would_bias(bad):
    weights = WEIGHTS.clone()
    weights[1, 2] = bad
    with pytest.raises(EigenlensError, match="must be positive"):
        draw_paths(weights, 1, 10)


def by_hand_term(by_hand, x, path):
    """A path's term from forwards with only some of its heads on.

    Inclusion and exclusion over its hops.
    """
    total = 0
    for some in product((0, 1), repeat=len(path[0])):
        gates = torch.zeros(L, H, dtype=torch.float64)
        for on, layer, head in zip(some, *path):
            gates[layer, head] = on
        sign = (-1) ** (len(some) - sum(some))
        total = total + sign * (by_hand(x, heads=gates) - by_hand(torch.zeros_like(x), heads=gates))
    return total


@torch.no_grad()
@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama", "gpt_neox", "gpt_neox-sequential"])
def test_frozen_terms_are_those_of_the_forward_by_hand(kind):
    graph, x, by_hand = graphs(kind)
    for hops in range(L + 1):
        sample = draw_paths(WEIGHTS, hops, 3, seed=hops)
        found = frozen_terms(graph, sample)
        assert found.shape == (3, *x.shape)
        for term, path in zip(found, drawn(sample)):
            assert distance(term, by_hand_term(by_hand, x, path)) < 1e-8, path


def terms_by_hand(by_hand, x):
    """(L+1, B, T, C): the coefficients of the forward with all heads times 0, 1, …, L."""
    ones, zero = torch.ones(L, H, dtype=torch.float64), torch.zeros_like(x)
    values = torch.stack(
        [by_hand(x, heads=a * ones) - by_hand(zero, heads=a * ones) for a in range(L + 1)]
    )
    return torch.tensordot(
        torch.from_numpy(np.linalg.inv(np.vander(np.arange(L + 1.0), increasing=True))), values, 1
    )


@torch.no_grad()
@pytest.mark.parametrize("kind", ["bert", "gpt2", "gpt_neox"])
def test_the_expectation_over_all_paths_is_the_term(kind):
    graph, x, by_hand = graphs(kind)
    weights = head_sizes(graph)
    for hops, term in enumerate(terms_by_hand(by_hand, x)):
        p = probabilities(weights, hops)
        assert sum(p.values()) == pytest.approx(1)
        chance = torch.tensor(list(p.values()), dtype=torch.float64).view(-1, 1, 1, 1)
        every = frozen_terms(graph, sample_of(list(p)))
        assert distance((chance * (every / chance)).sum(0), term) < 1e-8
        if hops:  # and what is drawn says these very probabilities
            sample = draw_paths(weights, hops, 50)
            want = torch.tensor([p[path] for path in drawn(sample)], dtype=torch.float64)
            torch.testing.assert_close(sample.log_probability.exp(), want)


@torch.no_grad()
@pytest.mark.parametrize("importance", [True, False])
@pytest.mark.parametrize("hops", range(L + 1))
def test_estimates_lie_within_five_standard_errors(hops, importance):
    graph, x, by_hand = graphs("bert")
    want, number = terms_by_hand(by_hand, x)[hops], 400
    found = estimated_term(graph, hops, number, importance=importance, seed=7)
    p = probabilities(head_sizes(graph) if importance else torch.ones(L, H), hops)
    every = frozen_terms(graph, sample_of(list(p)))
    directions = torch.randn(20, *x.shape, dtype=torch.float64)
    values = torch.einsum("dbtc,sbtc->ds", directions, every)  # of each path along each direction
    chance = torch.tensor(list(p.values()), dtype=torch.float64)
    variance = (values.square() / chance).sum(1) - values.sum(1).square()
    error = ((found - want) * directions).sum((1, 2, 3))
    if hops == 0:
        assert distance(found, want) < 1e-9
    else:
        assert bool((error.abs() < 5 * (variance / number).sqrt()).all())
        assert float((error / (variance / number).sqrt()).abs().max()) > 0.05  # it is an estimate


@torch.no_grad()
def test_importance_wastes_fewer_paths_where_one_head_does_most():
    model = model_of("bert")
    for layer in model.encoder.layer:
        # only the first head of four writes much
        layer.attention.output.dense.weight[:, 8:] *= 0.02
    graph, x, by_hand = graphs("bert", model=model)
    want = terms_by_hand(by_hand, x)[2]
    errors = {
        importance: np.mean(
            [
                distance(estimated_term(graph, 2, 50, importance=importance, seed=seed), want)
                for seed in range(8)
            ]
        )
        for importance in (True, False)
    }
    assert errors[True] < errors[False] / 2


@torch.no_grad()
@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_sizes_of_heads_at_the_models_own_streams(kind):
    model, given = model_of(kind), batch(kind)
    with stays_double():
        found = head_sizes(freeze(model, given)[0])
        out = model(**given, output_hidden_states=True, output_attentions=True)
    assert found.shape == (L, H)
    for layer in range(L):
        x, P = out.hidden_states[layer].numpy(), out.attentions[layer].numpy()
        if kind == "bert":
            block = model.encoder.layer[layer].attention
            V, O = block.self.value.weight.numpy().T, block.output.dense.weight.numpy().T
            u = x
        else:
            block = model.h[layer]
            V, O = block.attn.c_attn.weight.numpy()[:, 64:], block.attn.c_proj.weight.numpy()
            u = (
                (x - x.mean(-1, keepdims=True))
                / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
                * block.ln_1.weight.numpy()
            )
        for head in range(H):
            mine = slice(8 * head, 8 * head + 8)
            added = P[:, head] @ u @ V[:, mine] @ O[mine]
            assert float(found[layer, head]) == pytest.approx(
                np.linalg.norm(added) / np.linalg.norm(x)
            )


def composite(X):
    return np.sqrt(np.abs(X).sum(0).max() * np.abs(X).sum(1).max())


@torch.no_grad()
@pytest.mark.parametrize(
    ("kind", "padding"), [("bert", "none"), ("bert", "right"), ("llama", "left")]
)
@pytest.mark.parametrize("hops", range(L + 1))
def test_residuals_of_products_of_patterns(kind, padding, hops):
    model, given = model_of(kind), batch(kind, padding)
    with stays_double():
        graph = freeze(model, given)[0]
        patterns = [P.numpy() for P in model(**given, output_attentions=True).attentions]
    sample, real = draw_paths(WEIGHTS, hops, 5, seed=2), masks(given)[0].numpy()
    found = pattern_residuals(graph, sample)
    assert found.shape == (5, 2)
    for s, path in enumerate(drawn(sample)):
        for b in range(2):
            there = real[b]
            matrix = np.eye(there.sum())
            for layer, head in zip(*path):
                # the first hop is nearest to the input
                matrix = patterns[layer][b, head][there][:, there] @ matrix
            want = composite(matrix - matrix.mean(0)) / composite(matrix)
            assert float(found[s, b]) == pytest.approx(want, rel=1e-8), path


def alone(kind, model, path):
    """A copy of the model with only the path's head writing in its layers, and the switches that
    leave only it there.
    """
    model, hops = copy.deepcopy(model), dict(zip(*path))
    switches = []
    for layer in range(L):
        if layer not in hops:
            switches.append(On(attention=False))
            continue
        # side by side, the hop passes the MLP by
        switches.append(On(attention_skip=False, mlp=kind != "gpt_neox"))
        others = [c for c in range(32) if c // 8 != hops[layer]]
        if kind == "bert":
            model.encoder.layer[layer].attention.output.dense.weight.data[:, others] = 0
        elif kind == "gpt2":
            model.h[layer].attn.c_proj.weight.data[others] = 0
        elif kind == "llama":
            model.layers[layer].self_attn.o_proj.weight.data[:, others] = 0
        else:
            model.layers[layer].attention.dense.weight.data[:, others] = 0
    return model, switches


@torch.no_grad()
@pytest.mark.parametrize(
    ("kind", "padding"),
    [
        ("bert", "none"),
        ("bert", "right"),
        ("gpt2", "none"),
        ("gpt2", "right"),
        ("llama", "none"),
        ("gpt_neox", "none"),
        ("gpt_neox-sequential", "none"),
    ],
)
def test_a_path_that_runs_again_is_a_network_of_its_own(kind, padding):
    model, given = model_of(kind), batch(kind.partition("-")[0], padding)
    real = masks(given)[0]
    with stays_double():
        plain = model(**given)[0]
        for hops in range(L + 1):
            sample = draw_paths(WEIGHTS, hops, 2, seed=hops)
            found = rerun_paths(model, given, sample)
            assert found.shape == (2, *plain.shape)
            for one, path in zip(found, drawn(sample)):
                small, switches = alone(kind, model, path)
                assert (
                    distance(one, forward(kind, small, given, layers=switches)[0], real) < 1e-10
                ), path
        assert torch.equal(model(**given)[0], plain)


@torch.no_grad()
def test_a_rerun_is_not_the_frozen_term():
    model, given = model_of("bert"), batch("bert")
    sample = sample_of([((0, 2), (1, 3))])
    with stays_double():
        graph = freeze(model, given)[0]
        assert distance(rerun_paths(model, given, sample), frozen_terms(graph, sample)) > 0.1


@torch.no_grad()
def test_a_stack_is_chosen_by_its_name():
    model, given = model_of("t5"), batch("t5")
    sample = sample_of([((0,), (2,))])
    with stays_double():
        found = rerun_paths(model, given, sample, stack="encoder")[0]
    small = copy.deepcopy(model)
    small.encoder.block[0].layer[0].SelfAttention.o.weight.data[
        :, [c for c in range(32) if c // 8 != 2]
    ] = 0
    want = forward("t5", small, given, layers=[On(attention_skip=False), On(attention=False)])[0]
    assert distance(found, want) < 1e-10
    with pytest.raises(EigenlensError, match="no stack 'middle'; there are encoder, decoder"):
        rerun_paths(model, given, sample, stack="middle")

"""Metrics along depth against a numpy loop over inputs, and the contract of a statistic.

One pass, shards, files.
"""

import math

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from scipy.stats import t as student

from captures.families import build, inputs
from eigenlens import EigenlensError
from eigenlens.captures import AttentionCall, Layer, Site, attention_names, capture, capture_layers
from eigenlens.stats import DepthMetrics, geometry
from eigenlens.stats.depth import ATTENTION_METRICS, TOKEN_METRICS
from stats.by_hand import attention_by_hand, by_hand

SINKS = {"all": (0, 0), "without sinks": (1, 2)}


def a_pass(batch=5, length=9, width=6, heads=3, depth=2, padded=False, seed=0):
    """The blocks of one forward pass, with tokens and queries drawn at random.

    Each block takes what the last one gave.
    """
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    real = (
        torch.arange(length)[None] < torch.randint(5, length + 1, (batch, 1), generator=draw)
        if padded
        else None
    )
    mask = None if real is None else real[:, None, None, :].expand(batch, 1, length, length)
    layers, x = [], normal(batch, length, width)
    for i in range(depth):
        q, k = normal(batch, heads, length, 4), normal(batch, heads, length, 4)
        call = AttentionCall(
            Site("encoder", i), "self", "", q, k, k, 1.0, mask=mask, query_valid=real
        )
        y = normal(batch, length, width) + 0.5
        layers.append(Layer(call.site, x, y, (call,), real))
        x = y
    return layers


def measured(passes, **settings):
    metrics = DepthMetrics(**settings)
    for layers, start in passes:
        for layer in layers:
            metrics.update(layer, start)
    return metrics


def numbers_of(x, P, tokens):
    """All numbers of one input by hand.

    Tokens x (n, C) that are real, patterns P (H, n, n) among them.
    """
    front, end = SINKS[tokens]
    kept = slice(front, len(x) - end)
    found = by_hand(x[kept])
    P = P[:, kept, kept] / P[:, kept, kept].sum(-1, keepdims=True)
    energy, entropy, ratio = zip(*(attention_by_hand(p, x[kept]) for p in P))
    names = ("effective_rank", "stable_rank", "participation_ratio")
    return {
        "residual": found["residual"],
        "cosine": found["cosine"],
        "high_frequency": found["high"],
        **dict(zip(names, found["ranks"])),
        "dirichlet": energy,
        "entropy": entropy,
        "singular_ratio": ratio,
    }


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("every", [1, 2, 3])
def test_means_and_intervals_of_every_metric(padded, every):
    batches = [(a_pass(padded=padded, seed=seed), 5 * seed) for seed in range(3)]
    result = measured(batches, sinks=SINKS["without sinks"], every=every).result()
    expected = {}
    for layers, start in batches:
        for layer in layers:
            # of each input among its real tokens
            softmax = torch.softmax(layer.calls[0].q @ layer.calls[0].k.mT, -1)
            for b in range(5):
                if (start + b) % every:
                    continue
                n = 9 if layer.valid is None else int(layer.valid[b].sum())
                P = softmax[b, :, :n, :n] / softmax[b, :, :n, :n].sum(-1, keepdim=True)
                for tokens in SINKS:
                    for place, X in (("input", layer.inputs), ("output", layer.outputs)):
                        for metric, value in numbers_of(
                            X[b, :n].numpy(), P.numpy(), tokens
                        ).items():
                            if metric in TOKEN_METRICS:
                                expected.setdefault(
                                    (layer.site.layer, place, tokens, metric, None), []
                                ).append(value)
                            elif place == "input":
                                for head, of_head in (*enumerate(value), (None, np.mean(value))):
                                    key = (layer.site.layer, "attention", tokens, metric, head)
                                    expected.setdefault(key, []).append(of_head)
    assert {(r.layer, r.place, r.tokens, r.metric, r.head) for r in result} == set(expected)
    assert (
        len(result)
        == len(expected)
        == 2 * 2 * (2 * len(TOKEN_METRICS) + 4 * len(ATTENTION_METRICS))
    )
    for r in result:
        values = expected[r.layer, r.place, r.tokens, r.metric, r.head]
        assert r.number == len(values) == math.ceil(15 / every)
        low, high = student.interval(
            0.95, len(values) - 1, np.mean(values), np.std(values, ddof=1) / math.sqrt(len(values))
        )
        assert (r.mean, r.low, r.high) == pytest.approx(
            (np.mean(values), low, high), rel=1e-7, abs=1e-9
        )


def test_shards_merge_to_the_same_numbers():
    batches = [(a_pass(seed=seed, padded=True), 5 * seed) for seed in range(4)]
    settings = {"sinks": (1, 1), "every": 2}
    whole = measured(batches, **settings)
    shards = [
        measured(batches[:1], **settings),
        measured(batches[1:3], **settings),
        measured(batches[3:], **settings),
    ]
    before = {name: x.clone() for name, x in shards[2].state().items()}
    shards[1].merge(shards[2])
    shards[0].merge(shards[1])
    assert all(torch.equal(x, before[name]) for name, x in shards[2].state().items())
    assert shards[0].state().keys() == whole.state().keys()
    for name, x in whole.state().items():
        torch.testing.assert_close(shards[0].state()[name], x, rtol=1e-12, atol=1e-12)


def test_a_run_that_goes_on_from_a_file_is_the_same_to_the_last_bit():
    batches = [(a_pass(seed=seed), 5 * seed) for seed in range(4)]
    whole = measured(batches, every=3)
    resumed = DepthMetrics.from_state(load(save(measured(batches[:2], every=3).state())), every=3)
    for layers, start in batches[2:]:
        for layer in layers:
            resumed.update(layer, start)
    assert resumed.state().keys() == whole.state().keys()
    assert all(torch.equal(x, whole.state()[name]) for name, x in resumed.state().items())
    assert resumed.result() == whole.result()


def test_memory_does_not_grow_with_inputs():
    sizes = [
        sum(x.numel() for x in measured([(a_pass(seed=i), 0) for i in range(n)]).state().values())
        for n in (1, 5)
    ]
    assert sizes[0] == sizes[1]


def test_a_stream_between_two_blocks_is_measured_once(monkeypatch):
    seen, ranks = [], geometry.ranks
    monkeypatch.setattr(geometry, "ranks", lambda X, valid: seen.append(X) or ranks(X, valid))
    layers = a_pass(depth=4)
    shared = measured([(layers, 0)])
    assert len(seen) == 2 * 5  # two sets of tokens of five streams
    apart = [Layer(x.site, x.inputs.clone(), x.outputs, x.calls, x.valid) for x in layers]
    again = measured([(apart, 0)])
    assert len(seen) == 2 * 5 + 2 * 8
    assert shared.result() == again.result()


def test_inputs_without_tokens_are_not_counted():
    (layer,) = a_pass(depth=1, padded=True)
    layer.valid[:3] = torch.arange(9)[None] < torch.tensor([[0], [1], [3]])
    layer.calls[0].mask = layer.valid[:, None, None, :].expand(5, 1, 9, 9)
    layer.calls[0].query_valid = layer.valid
    layer.inputs[~layer.valid], layer.outputs[~layer.valid] = math.nan, math.inf
    result = measured([([layer], 0)], sinks=(1, 2)).result()
    assert {r.number for r in result if r.tokens == "all"} == {4}
    assert {r.number for r in result if r.tokens == "without sinks"} == {2}
    assert all(math.isfinite(x) for r in result for x in (r.mean, r.low, r.high))


def test_one_token_has_no_interval_and_no_spread():
    (layer,) = a_pass(batch=1, length=1, depth=1)
    result = measured([([layer], 0)], sinks=(0, 0)).result()
    ones = {"effective_rank", "stable_rank", "participation_ratio", "cosine"}
    assert {(r.metric, round(r.mean, 12), r.low, r.high, r.number) for r in result} == {
        (m, float(m in ones), None, None, 1) for m in (*TOKEN_METRICS, *ATTENTION_METRICS)
    }


def test_heads_in_parts_are_the_same(monkeypatch):
    whole = measured([(a_pass(), 0)])
    monkeypatch.setattr("eigenlens.stats.depth.PAIRS", 5 * 9 * 9 * 2)
    for name, x in measured([(a_pass(), 0)]).state().items():
        torch.testing.assert_close(x, whole.state()[name], rtol=1e-12, atol=1e-12)


def test_half_precision_is_measured_in_more():
    (layer,) = a_pass(depth=1)
    for name in ("q", "k", "v"):
        setattr(layer.calls[0], name, getattr(layer.calls[0], name).bfloat16())
    exact = torch.softmax(layer.calls[0].q.double() @ layer.calls[0].k.double().mT, -1)
    expected = -(exact * exact.log()).sum(-1).mean()
    found = next(
        r
        for r in measured([([layer], 0)]).result()
        if (r.metric, r.tokens, r.head) == ("entropy", "all", None)
    )
    assert found.mean == pytest.approx(expected.item(), rel=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("name", ["bert", "albert", "llama", "gemma2"])
def test_a_model_by_its_own_hidden_states_and_patterns(name):
    """Padding on the right.

    The model's own outputs say what its blocks take and how they attend.
    """
    model, given = build(name), inputs(name, "right")
    own = model(**given, output_hidden_states=True, output_attentions=True)
    with capture(model) as calls:
        model(**given)
    metrics = DepthMetrics(sinks=SINKS["without sinks"])
    with capture_layers(model, attention_names(calls), metrics.update):
        model(**given)
    lengths = given["attention_mask"].sum(1).tolist()
    found = {(r.layer, r.place, r.tokens, r.metric, r.head): r for r in metrics.result()}
    for i, pattern in enumerate(own.attentions):
        for tokens in SINKS:
            each = [
                numbers_of(
                    own.hidden_states[i][b, :n].double().numpy(),
                    pattern[b, :, :n, :n].double().numpy(),
                    tokens,
                )
                for b, n in enumerate(lengths)
            ]
            for metric in TOKEN_METRICS:
                mean = np.mean([numbers[metric] for numbers in each])
                assert found[i, "input", tokens, metric, None].mean == pytest.approx(
                    mean, rel=1e-3, abs=1e-4
                )
                if i:
                    assert found[i - 1, "output", tokens, metric, None].mean == pytest.approx(
                        mean, rel=1e-3, abs=1e-4
                    )
            for metric in ATTENTION_METRICS:
                for head in range(4):
                    mean = np.mean([numbers[metric][head] for numbers in each])
                    assert found[i, "attention", tokens, metric, head].mean == pytest.approx(
                        mean, rel=1e-3, abs=1e-4
                    )


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(EigenlensError, match=r"not \(-1, 0\)"):
        DepthMetrics(sinks=(-1, 0))
    with pytest.raises(
        EigenlensError, match=r"every must be at least 1 \(every n-th input is measured\), not 0"
    ):
        DepthMetrics(every=0)
    (layer,) = a_pass(depth=1)
    layer.outputs[2, 3] = math.nan
    with pytest.raises(EigenlensError, match=r"tokens of block encoder L0 are not finite"):
        DepthMetrics().update(layer)
    with pytest.raises(EigenlensError, match="was seen with shapes"):
        measured([(a_pass(heads=3), 0), (a_pass(heads=2), 0)])

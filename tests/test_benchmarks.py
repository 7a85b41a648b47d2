"""What the benchmarks are made of: other ways to choose keys, texts, and sums of what they found."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from eigenlens.attention.kept_attention import attend_kept, reference

FOLDER = Path(__file__).parents[1] / "benchmarks"


def benchmark(name):
    """A benchmark under a name of its own: folders of tests are called the same."""
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", FOLDER / f"{name}.py")
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(FOLDER))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(FOLDER))
    return module


selections, attention, plans = map(benchmark, ("selections", "attention", "plans"))
PEERS = selections.PEERS
LENGTHS = (640, 700)
KNOBS = (0.2, 0.5, 0.95)
"""Shares or masses that every selection takes."""


def example(T):
    q, k, v = torch.randn(1, 4, T, 32), torch.randn(1, 2, T, 32), torch.randn(1, 2, T, 32)
    return 2 * q, k, v


@pytest.mark.parametrize("T", LENGTHS)
@pytest.mark.parametrize("name", PEERS)
def test_a_selection_lists_keys_in_order_before_the_near_ones(name, T):
    q, k, v = example(T)
    for value in KNOBS[::2]:
        kept = PEERS[name].choose(q, k, v, value)
        assert kept.causal and kept.block == selections.BLOCK
        assert kept.ranges.shape == (1, 4, -(-T // kept.block), 2)
        for h in range(4):
            for block, count in enumerate(kept.counts[0, h].tolist()):
                keys = kept.keys[0, h, block, :count].tolist()
                low, high = kept.ranges[0, h, block].tolist()
                assert keys == sorted(set(keys)) and 0 <= low <= high == block * kept.block
                assert not keys or (keys[0] >= 0 and keys[-1] < low)


@pytest.mark.parametrize("name", PEERS)
def test_what_a_selection_attends_to_is_the_dense_masked_formula(name):
    q, k, v = example(700)
    kept = PEERS[name].choose(q, k, v, KNOBS[1])
    scale = selections.scale_of(q)
    expected = reference(q, k, v, kept, scale)
    assert not kept.mask(700, 700).triu(1).any()
    assert (attend_kept(q, k, v, kept, scale) - expected).abs().max() <= 1e-5


@pytest.mark.parametrize("name", PEERS)
def test_a_higher_knob_keeps_more_and_all_of_it_is_full_attention(name):
    q, k, v = example(700)
    choose = PEERS[name].choose
    pairs = [float(choose(q, k, v, value).pairs(700).sum()) for value in KNOBS]
    assert pairs == sorted(pairs) and pairs[0] < pairs[-1]
    full = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    out = attend_kept(q, k, v, choose(q, k, v, 1.0), selections.scale_of(q))
    assert (out - full).abs().max() <= 1e-5


def test_exact_rows_correct_a_window_to_full_attention_where_they_are():
    q, k, v = example(700)
    out = attend_kept(q, k, v, selections.window(q, k, v, 0.1), selections.scale_of(q))
    full = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    mended = selections.delta(q, k, v, out)
    assert (mended[:, :, ::64] - full[:, :, ::64]).abs().max() <= 1e-5
    assert torch.allclose((mended - out)[:, :, 65], (full - out)[:, :, 64], atol=1e-5)


@pytest.mark.parametrize("name", ["window", "window + Δ", "window + Δ of 16"])
def test_selections_that_say_so_see_no_later_token(name):
    q, k, v = example(700)
    peer, scale, place = PEERS[name], selections.scale_of(q), 600

    def output(q, k, v):
        out = attend_kept(q, k, v, peer.choose(q, k, v, 0.2), scale)
        return out if peer.correct is None else peer.correct(q, k, v, out)

    before = output(q, k, v)
    for x in (q, k, v):
        x[:, :, place:] += 1
    assert torch.allclose(output(q, k, v)[:, :, :place], before[:, :, :place], atol=1e-6)


def test_the_oracle_keeps_the_keys_with_the_most_attention():
    q, k, v = example(640)
    kept = selections.oracle(q, k, v, 0.3)
    later = torch.ones(640, 640, dtype=torch.bool).triu(1)
    scores = q[:, 3] @ k[:, 1].transpose(1, 2) * selections.scale_of(q)
    mass = torch.softmax(scores.masked_fill(later, -torch.inf), -1)[0, 512:640].mean(0)
    count, low = int(kept.counts[0, 3, 4]), int(kept.ranges[0, 3, 4, 0])
    chosen = set(kept.keys[0, 3, 4, :count].tolist()) - set(range(selections.FIRST))
    best = mass[:low].argsort(descending=True)[: len(chosen) + selections.FIRST].tolist()
    assert 0 < len(chosen) < low and chosen <= set(best)


def test_a_needle_stands_at_its_depth_and_the_question_at_the_end():
    text, hidden, end = torch.arange(1000), torch.arange(2000, 2010), torch.arange(3000, 3005)
    found = plans.hide(text, hidden, end, 415, 0.25)
    assert len(found) == 415 and found[-5:].tolist() == end.tolist()
    assert found[100:110].tolist() == hidden.tolist()
    assert found[[99, 110, 409]].tolist() == [99, 100, 399]


def test_accuracies_are_means_by_task_length_and_depth():
    rows = [
        {"task": "copy", "tokens": 64, "depth": depth, "plain": 1.0, "planned": planned}
        for depth, planned in (("first third", 0.5), ("last third", 1.0), ("last third", 0.0))
    ]
    found = {row["depth"]: row for row in plans.accuracies(rows)}
    assert found["all"]["texts"] == 3 and found["all"]["planned"] == 0.5
    assert found["first third"]["planned"] == found["last third"]["planned"] == 0.5
    assert all(row["plain"] == 1.0 for row in found.values())


def test_a_point_of_the_frontier_has_the_seconds_of_all_its_passes():
    passes = {"length": 64, "knob": 0.2, "share": 0.3, "torch": 4.0, "choosing": 1.0}
    points = [
        {**passes, "selection": name, "document": d, "rise": 0.01 * d, "attending": d, "total": 10}
        for name in ("plan", "oracle")
        for d in (1, 2)
    ]
    rows = attention.summary({"points": points}, 64)
    assert [row["selection"] for row in rows] == ["oracle (choice not counted)", "plan"]
    assert [row["times faster"] for row in rows] == pytest.approx([8 / 3, 8 / 5])
    # 20 seconds of which torch took 8, choosing 2 and attending 3
    assert [row["end to end"] for row in rows] == pytest.approx([15 / 10, 15 / 12])
    assert all(row["perplexity, %"] == pytest.approx(1.5) for row in rows)


def test_numbers_of_documents_may_be_ranges():
    numbers_of = sys.modules["documents"].numbers_of
    assert numbers_of("1,4-6") == [1, 4, 5, 6] and numbers_of("") == []

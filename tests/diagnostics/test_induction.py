"""Induction heads: exact scores of heads made by hand, and passes over several inputs."""

import pytest
import torch

from diagnostics.induction_by_loop import NAMES, by_loop
from eigenlens import EigenlensError, load
from eigenlens.captures import AttentionCall, Site
from eigenlens.diagnostics import DIAGNOSTICS, CallView, Induction
from eigenlens.diagnostics.induction import scores
from eigenlens.diagnostics.induction_probe import layout_of, probe_batch, uniform_scores
from tiny import small_llama


def of_pattern(A, ids, n):
    return dict(zip(NAMES, scores(A[None, None].double(), ids[None], n)[0, :, 0].tolist()))


def block_ids(n, repeats):
    return torch.randperm(1000)[:n].repeat(repeats)


def test_a_head_that_always_looks_behind_the_same_place_has_stripe_and_prefix_one():
    n, ids, A = 50, block_ids(50, 2), torch.zeros(100, 100)
    for i in range(100):
        A[i, i - n + 1 if i >= n - 1 else i] = 1
    assert of_pattern(A, ids, n) == {
        "stripe": 1.0,
        "prefix": 1.0,
        "duplicate": 0.0,
        "previous": 0.0,
    }


def test_the_stripe_is_the_whole_diagonal_and_the_prefix_leaves_out_the_first_entry():
    """As TransformerLens averages it: 51 entries of a block of 50 twice, the first of them of the
    first block.
    """
    n, ids = 50, block_ids(50, 2)
    A = torch.rand(100, 100).double().tril().softmax(1)
    diagonal = torch.diagonal(A, offset=1 - n)
    found = of_pattern(A, ids, n)
    assert len(diagonal) == n + 1 and found["stripe"] == pytest.approx(
        float(diagonal.mean()), rel=1e-12
    )
    assert found["prefix"] == pytest.approx(float(diagonal[1:].mean()), rel=1e-12)
    rests = torch.zeros(100, 100)
    rests[:, 0] = 1  # a head that rests on the first token, and does no induction
    assert (
        of_pattern(rests, ids, n)["stripe"] == pytest.approx(1 / 51)
        and of_pattern(rests, ids, n)["prefix"] == 0.0
    )


def test_heads_that_do_one_other_thing_score_one_there():
    ids = block_ids(50, 2)
    copy, before = torch.zeros(100, 100), torch.zeros(100, 100)
    for i in range(100):
        copy[i, max(i - 50, 0)] = before[i, max(i - 1, 0)] = 1
    assert (
        of_pattern(copy, ids, 50)["duplicate"] == 1.0 and of_pattern(copy, ids, 50)["prefix"] == 0.0
    )
    assert (
        of_pattern(before, ids, 50)["previous"] == 1.0
        and of_pattern(before, ids, 50)["stripe"] == 0.0
    )


@pytest.mark.parametrize(("n", "repeats"), [(50, 2), (20, 3), (8, 4)])
def test_uniform_attention_scores_what_is_said(n, repeats):
    T = n * repeats
    A, ids = torch.ones(T, T).tril() / torch.arange(1, T + 1)[:, None], block_ids(n, repeats)
    assert of_pattern(A, ids, n) == pytest.approx(by_loop(A, ids, n, 0), rel=1e-6)
    assert uniform_scores(n, repeats) == pytest.approx(by_loop(A, ids, n, 0), rel=1e-6)


def test_uniform_attention_over_a_block_of_50_is_about_014_and_thresholds_are_ten_times_that():
    exact = sum(1 / t for t in range(51, 101)) / 50
    found = uniform_scores(50, 2)
    assert found["prefix"] == pytest.approx(exact) and round(exact, 3) == 0.014
    assert found["stripe"] == pytest.approx((50 * exact + 1 / 50) / 51)
    settings = Induction().settings
    for name in NAMES:
        assert getattr(settings, name) == pytest.approx(10 * found[name], abs=0.005)
    assert uniform_scores(50, 2, before=1)["stripe"] == pytest.approx(
        sum(1 / t for t in range(51, 102)) / 51
    )


def test_random_patterns_with_chance_repeats_are_the_loop():
    A, ids = torch.rand(30, 30).softmax(1), torch.randint(6, (15,)).repeat(2)
    assert of_pattern(A, ids, 15) == pytest.approx(by_loop(A, ids, 15, 0), rel=1e-6)


def test_of_three_blocks_the_stripe_is_the_nearest_and_the_prefix_all():
    ids, A = block_ids(10, 3), torch.zeros(30, 30)
    for i in range(30):
        A[i, i - 19 if i >= 19 else i] = 1
    found = of_pattern(A, ids, 10)
    # behind the occurrence before the last, which half of them have
    assert found["stripe"] == 0.0 and found["prefix"] == 0.5
    assert found == pytest.approx(by_loop(A, ids, 10, 0))


def seen_of(A, ids, special):
    """A call whose pattern is A (B, H, T, T): its scores are the logarithms."""
    B, H, T, _ = A.shape
    eye = torch.eye(T).expand(B, H, T, T)
    return CallView(
        AttentionCall(Site("self", 0), "self", "x", A.clamp_min(1e-30).log(), eye, eye, 1.0),
        ids,
        50,
    )


def test_splits_merge_to_one_pass_and_a_state_is_read_back_exactly():
    model = load(small_llama())
    layout = layout_of(model, 12, 2)
    ids = probe_batch(layout, 6, 0)["input_ids"]
    A = torch.rand(6, 3, 24, 24).tril()
    A = A / A.sum(-1, keepdim=True)

    def fed(*parts):
        made = Induction(block=12)
        made.begin(type("StudiedModel", (), {"model": model})())
        for part in parts:
            made.update(seen_of(A[part], ids[part], layout.special))
        return made

    whole = fed(slice(0, 6))
    left, middle, right = fed(slice(0, 2)), fed(slice(2, 3)), fed(slice(3, 6))
    left.merge(middle)
    left.merge(right)
    other, last = fed(slice(2, 3)), fed(slice(3, 6))
    other.merge(last)
    first = fed(slice(0, 2))
    first.merge(other)
    for name, x in whole.sums.items():
        torch.testing.assert_close(left.sums[name], x)
        torch.testing.assert_close(first.sums[name], x)
    again = Induction.from_state(left.state(), block=12)
    assert again.result().record() == left.result().record()
    loops = [by_loop(A[b, 1], ids[b].tolist(), 12, 0)["prefix"] for b in range(6)]
    assert whole.result().value("prefix", "self", 0, 1) == pytest.approx(sum(loops) / 6, rel=1e-5)


def test_cross_attention_and_calls_without_ids_are_skipped():
    model = load(small_llama())
    made = Induction(block=12)
    A, ids = (
        torch.rand(1, 2, 24, 24).softmax(-1),
        probe_batch(layout_of(model, 12, 2), 1, 0)["input_ids"],
    )
    with pytest.raises(EigenlensError, match="begin"):
        made.update(seen_of(A, ids, ()))
    made.begin(type("StudiedModel", (), {"model": model})())
    made.update(seen_of(A, None, ()))
    short = seen_of(A[:, :, :10, :10], ids[:, :10], ())
    made.update(short)
    assert not made.sums


def test_settings_are_checked_and_it_is_registered():
    assert DIAGNOSTICS["induction"] is Induction
    for wrong in (
        {"block": 3},
        {"repeats": 1},
        {"inputs": 0},
        {"prefix": 0.0},
        {"previous": 1.5},
        {"blok": 3},
    ):
        with pytest.raises(EigenlensError):
            Induction(**wrong)

"""Whole matrices: the sketch, the exact form, and vectors of valid pairs."""

import numpy as np
import pytest
import torch

from eigenlens import EigenlensError
from eigenlens.captures import Site
from eigenlens.spectra.matrices import MatrixAnalysis
from eigenlens.stats import MatrixGram, MatrixSketch, Pairs
from stats.calls import call


def test_vectors_and_matrices_are_two_views():
    pairs = Pairs(torch.ones(4, 4, dtype=torch.bool).tril())
    x = torch.randn(2, 3, pairs.number)
    assert pairs.number == 10
    assert torch.equal(pairs.vectors(pairs.matrices(x)), x)
    assert torch.isnan(pairs.matrices(x, fill=torch.nan)[..., 0, 1]).all()


@pytest.mark.parametrize("causal", [False, True])
def test_row_means_are_over_valid_keys(causal):
    valid = torch.ones(5, 5, dtype=torch.bool)
    pairs = Pairs(valid.tril() if causal else valid)
    x = torch.randn(2, pairs.number, dtype=torch.float64)
    less = pairs.matrices(pairs.less_row_means(x))
    torch.testing.assert_close(less.sum(-1), torch.zeros(2, 5, dtype=torch.float64))
    torch.testing.assert_close(
        pairs.less_row_means(pairs.less_row_means(x)), pairs.less_row_means(x)
    )


@pytest.mark.parametrize("form", ["padded", "causal padded"])
def test_padded_inputs_are_left_out(form):
    gram = MatrixGram()
    each = call(form, batch=24, seed=3)
    complete = int(each.query_valid.all(1).sum())
    assert 0 < complete < 24
    gram.update(each)
    sums = gram.result()[Site("self", 0)]
    assert int(sums.number) == complete
    if form == "causal padded":
        assert torch.equal(sums.valid, torch.ones(9, 9, dtype=torch.bool).tril())
        return
    torch.testing.assert_close(
        sums.sketch, each.scores()[each.query_valid.all(1)].flatten(2).transpose(0, 1)
    )


@pytest.mark.parametrize("form", ["full", "causal"])
def test_the_sketch_never_overstates_and_is_exact_for_few_inputs(form):
    calls = [call(form, batch=10, seed=seed) for seed in range(4)]
    gram, pilot = MatrixGram(), MatrixGram()
    for each in calls:
        gram.update(each)
    pilot.update(calls[0])
    sketch = MatrixSketch.from_pilot(pilot)
    few = MatrixAnalysis(sketch, rank=8).spectra([])
    exact_few = MatrixAnalysis(pilot, rank=8).spectra([])
    for ours, theirs in zip(few, exact_few):  # ten inputs, ten columns: nothing is missed
        np.testing.assert_allclose(ours.eigenvalues, theirs.eigenvalues, rtol=1e-4, atol=1e-6)
    for each in calls[1:]:
        sketch.update(each)
    for ours, theirs in zip(
        MatrixAnalysis(sketch, rank=8).spectra([]), MatrixAnalysis(gram, rank=8).spectra([])
    ):
        if ours.level != "head":
            continue  # those of a layer are bounds themselves
        assert (ours.eigenvalues <= theirs.eigenvalues * (1 + 1e-6) + 1e-9).all()
        assert abs(ours.total / theirs.total - 1) < 1e-9


def test_too_many_inputs_for_the_exact_form_are_refused():
    gram = MatrixGram(most=5)
    with pytest.raises(EigenlensError, match="at most 5 inputs"):
        gram.update(call("full", batch=6))


@pytest.mark.parametrize("like", [torch.float32, torch.float64])
def test_memory_that_is_used_again_does_not_change_a_sketch(like):
    """What was in it does not matter, and memory of another kind is not used."""
    pilot = MatrixGram()
    pilot.update(call("full", batch=6, seed=1))
    tests = MatrixSketch.from_pilot(pilot).tests
    (site,) = tests
    fresh, again = (MatrixSketch(dict(tests)) for _ in range(2))
    again.spare[site] = spare = torch.full_like(tests[site], torch.nan, dtype=like)
    for sketch in (fresh, again):
        for seed in (2, 3):
            sketch.update(call("full", batch=6, seed=seed))
    assert torch.equal(again.sites[site].sketch, fresh.sites[site].sketch)
    assert not again.spare
    used = again.sites[site].sketch.data_ptr() == spare.data_ptr()
    assert used == (like == fresh.sites[site].sketch.dtype)

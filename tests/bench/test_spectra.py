"""Patterns as rows of an eigen-analysis, and their rank, gap and sinks, against loops in numpy."""

import numpy as np
import pytest
import torch

from eigenlens.bench.spectra import calls_of, head_rows, measures_of, row_dimensions
from eigenlens.lab import Sort, Transformer


def patterns(B=8, H=2, T=6, causal=False, layers=2):
    torch.manual_seed(0)
    scores = torch.randn(layers, B, H, T, T, dtype=torch.float64)
    if causal:
        scores = scores.masked_fill(~torch.ones(T, T, dtype=torch.bool).tril(), -torch.inf)
    return list(scores.softmax(-1))


@pytest.mark.parametrize("causal", [False, True])
def test_the_scores_of_the_call_are_the_patterns(causal):
    given = patterns(causal=causal)
    for layer, (call, A) in enumerate(zip(calls_of(given, causal), given)):
        torch.testing.assert_close(call.scores(fill=0.0), A)
        assert call.site.layer == layer


def test_dimensions_are_those_of_a_principal_component_analysis():
    given = patterns(B=12)
    found = row_dimensions(given, causal=False)
    for layer, A in enumerate(given):
        for head in range(2):
            fit, held = (
                A[part, head].reshape(-1, 6).numpy() for part in (slice(0, 6), slice(6, 12))
            )
            mean = fit.mean(0)
            values, vectors = np.linalg.eigh(np.cov(fit.T))
            vectors = vectors[:, ::-1]
            energy = (((held - mean) @ vectors) ** 2).sum(0)
            share = energy.cumsum() / energy.sum()
            assert found[layer, head] == int(np.argmax(share >= 0.9)) + 1


def test_a_pattern_that_is_constant_has_no_dimensions_to_speak_of():
    A = torch.eye(5, dtype=torch.float64).expand(8, 1, 5, 5)
    # five one-hot rows about their mean: four equal directions
    assert row_dimensions([A], causal=False)[0, 0] == 4


@pytest.mark.parametrize("causal", [False, True])
def test_measures_are_those_of_loops(causal):
    A = patterns(causal=causal)[0][:, 1] - (0.0 if causal else 0.1)  # weights below zero, too
    found = measures_of(A)
    ranks, gaps, tops, first, heavy, entropy = [], [], [], [], [], []
    for matrix in A.numpy():
        s = np.linalg.svd(matrix, compute_uv=False)
        p = s / s.sum()
        ranks.append(np.exp(-(p * np.log(p)).sum()))
        gaps.append(s[1] / s[0])
        tops.append(s[0])
        rows = np.abs(matrix) / np.abs(matrix).sum(1, keepdims=True)
        first.append(rows[:, 0].mean())
        heavy.append(max(rows[:, j].mean() for j in range(6)))
        for i, row in enumerate(rows):
            keys = i + 1 if causal else 6
            if keys > 1:
                entropy.append(-sum(x * np.log(x) for x in row if x > 0) / np.log(keys))
    expected = {
        "effective_rank": ranks,
        "gap": gaps,
        "first_singular_value": tops,
        "first_key": first,
        "largest_column": heavy,
        "entropy": entropy,
    }
    assert found == {name: pytest.approx(np.mean(values)) for name, values in expected.items()}


def test_known_patterns():
    sink = torch.zeros(1, 5, 5, dtype=torch.float64)
    sink[:, :, 0] = 1
    found = measures_of(sink)
    assert found["first_key"] == found["largest_column"] == 1 and found[
        "effective_rank"
    ] == pytest.approx(1)
    assert found["gap"] == pytest.approx(0, abs=1e-9)
    unit = measures_of(torch.eye(5, dtype=torch.float64)[None])
    assert unit["effective_rank"] == pytest.approx(5) and unit["gap"] == pytest.approx(1)


def test_every_head_of_a_model_has_a_row():
    torch.manual_seed(0)
    task = Sort(train=20, test=12)
    model = Transformer(task.config(width=16, layers=2, heads=4))
    rows = head_rows(model, task.test.inputs)
    assert [(row["layer"], row["head"]) for row in rows] == [
        (i, j) for i in range(2) for j in range(4)
    ]
    A = model.patterns(task.test.inputs)[1][:, 2].double()
    assert rows[6]["effective_rank"] == pytest.approx(measures_of(A)["effective_rank"], rel=1e-6)

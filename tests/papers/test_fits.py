"""Slopes and rank correlations, against scipy's."""

import math

import numpy as np
import pytest
from scipy.stats import spearmanr

from eigenlens.papers.fits import power_law_exponent, rank_correlation, rank_correlation_interval


@pytest.mark.parametrize("power", [1.5, -1.7])
def test_the_exponent_of_a_power_is_that_power(power):
    rows = [{"n": n, "t": 3e-4 * n**power} for n in (10, 20, 80)]
    assert power_law_exponent(rows, "n", "t") == pytest.approx(power)
    assert math.isnan(power_law_exponent(rows[:1], "n", "t"))


def test_rank_correlation_is_scipys_with_ties_too():
    generator = np.random.default_rng(0)
    for _ in range(5):
        left, right = generator.integers(6, size=12).tolist(), generator.normal(size=12).tolist()
        assert rank_correlation(left, right) == pytest.approx(spearmanr(left, right).statistic)
    assert math.isnan(rank_correlation([1, 1, 1, 1], [0, 1, 2, 3]))


def test_the_interval_holds_the_value_and_narrows_with_more_pairs():
    generator = np.random.default_rng(1)
    widths = []
    for number in (10, 200):
        left = generator.normal(size=number)
        right = left + generator.normal(size=number)
        low, high = rank_correlation_interval(left.tolist(), right.tolist(), draws=300)
        assert low < rank_correlation(left.tolist(), right.tolist()) < high
        widths.append(high - low)
    assert widths[1] < 0.5 * widths[0]

"""Growth and crossings of times that are made up, so that both are known."""

import math

import pytest

from eigenlens.bench.fit import crossover, exponent

LENGTHS = [256, 512, 1024, 2048, 4096, 8192, 16384]


@pytest.mark.parametrize("power", [0.0, 1.0, 1.15, 2.0])
def test_the_exponent_is_that_of_a_power_law(power):
    times = {n: 3e-6 * n**power for n in LENGTHS}
    assert exponent(times) == pytest.approx(power, abs=1e-9)


def test_what_is_below_the_start_does_not_count():
    """A constant of a call bends the short lengths, and is left out with them."""
    times = {n: 1e-3 + 1e-6 * n for n in LENGTHS}
    assert exponent(times, start=256) < exponent(times, start=4096) < 1
    assert exponent({n: 99.0 if n < 2048 else n**2 for n in LENGTHS}) == pytest.approx(2)


def test_least_squares_by_hand():
    times = {2048: 1.0, 4096: 3.0, 8192: 3.5}
    x, y = [11, 12, 13], [math.log2(t) for t in times.values()]
    mean = sum(y) / 3
    slope = sum((a - 12) * (b - mean) for a, b in zip(x, y)) / 2
    assert exponent(times) == pytest.approx(slope)


def test_one_length_has_no_exponent():
    assert exponent({16384: 1.0}) is None and exponent({256: 1.0, 512: 2.0}) is None


def test_a_line_crosses_a_parabola_where_they_are_equal():
    line, parabola = {n: 5.0 * n for n in LENGTHS}, {n: 0.004 * n * n for n in LENGTHS}
    # logarithms of powers are straight
    assert crossover(line, parabola) == pytest.approx(5 / 0.004)


def test_below_from_the_first_length_and_never_below():
    assert crossover(dict.fromkeys(LENGTHS, 1.0), dict.fromkeys(LENGTHS, 2.0)) == 256
    assert crossover(dict.fromkeys(LENGTHS, 2.0), dict.fromkeys(LENGTHS, 1.0)) is None
    assert crossover({}, {256: 1.0}) is None


def test_it_has_to_stay_below():
    """Below at 512, above at 2048, below for good from between 2048 and 4096 on."""
    yard = {512: 1.0, 2048: 1.0, 4096: 1.0, 8192: 1.0}
    found = crossover({512: 0.5, 2048: 4.0, 4096: 0.25, 8192: 0.2}, yard)
    assert found == pytest.approx(2048 * 2**0.5)


def test_only_lengths_that_both_have_count():
    assert crossover({256: 9.0, 1024: 1.0}, {1024: 2.0, 2048: 0.1}) == 1024

"""How numbers travel to the page: arrays in one block of bytes, rows in columns, charts apart from
their data.
"""

import altair as alt
import numpy as np
import pytest

from eigenlens.reports.figures import Arrays, columns, figure, plain


def read(block, place):
    """An array of the block, as its place says."""
    kind = np.dtype(place["type"]).newbyteorder("<")
    count = int(np.prod(place["shape"]))
    return np.frombuffer(block, kind, count, place["at"]).reshape(place["shape"])


def test_arrays_come_back_as_they_were():
    rng = np.random.default_rng(0)
    given = [
        rng.normal(size=(3, 5)).astype(np.float32),
        rng.integers(0, 255, (7,)).astype(np.uint8),
        rng.integers(-100, 100, (2, 3, 1)).astype(np.int16),
        np.zeros((0, 4), np.float32),
        rng.normal(size=(4, 6)).astype(np.float32).T,
    ]
    arrays = Arrays()
    places = [arrays.add(array) for array in given]
    block = arrays.block()
    assert len(block) == arrays.size
    for array, place in zip(given, places):
        assert place["at"] % 4 == 0
        np.testing.assert_array_equal(read(block, place), array)


@pytest.mark.parametrize(("kind", "steps"), [(np.int8, 127), (np.int16, 32767)])
def test_scaled_arrays_are_within_half_a_step(kind, steps):
    """Each line has its own scale; what is not a number stays so."""
    x = (
        np.random.default_rng(0).normal(size=(5, 4, 6))
        * np.array([1e-6, 1.0, 1e4, 0.0, 3.0])[:, None, None]
    )
    x[1, 2, 3] = np.nan
    arrays = Arrays()
    place = arrays.add_scaled(x, kind)
    block = arrays.block()
    whole, scale = read(block, place), read(block, place["scale"])
    found = np.where(whole == np.iinfo(kind).min, np.nan, whole * scale[:, None, None])
    assert np.isnan(found[1, 2, 3])
    assert np.isnan(found).sum() == 1
    largest = np.nanmax(np.abs(x), (1, 2))
    error = np.nanmax(np.abs(found - x), (1, 2))
    assert (error <= 0.501 * largest / steps + 1e-7 * largest).all()
    assert (found[3] == 0).all()


def test_a_map_of_nothing_stays_nothing():
    arrays = Arrays()
    place = arrays.add_scaled(np.full((1, 2, 2), np.nan), np.int8)
    assert (read(arrays.block(), place) == -128).all()


def test_rows_become_columns():
    rows = [
        {"a": 1, "b": 0.123456789},
        {"a": None, "c": "x"},
        {"a": float("nan"), "b": float("inf"), "c": True},
    ]
    assert columns(rows) == {
        "a": [1, None, None],
        "b": [0.1234568, None, None],
        "c": [None, "x", True],
    }


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1 / 3, 0.3333333),
        (np.float32(0.5), 0.5),
        (np.int64(7), 7),
        (float("-inf"), None),
        ("a", "a"),
        (1e-30, 1e-30),
    ],
)
def test_numbers_are_json(value, expected):
    found = plain(value)
    assert found == expected
    assert type(found) is type(expected)


def test_a_chart_is_taken_apart_and_the_same_rows_are_kept_once():
    rows = [{"x": i, "y": i * i} for i in range(5)]
    base = alt.Chart(alt.Data(values=rows)).encode(x="x:Q", y="y:Q")
    other = alt.Chart(alt.Data(values=rows[:2])).mark_point().encode(x="x:Q")
    found = figure("key", (base.mark_line() + base.mark_point()) | other, "title", "text")
    assert sorted(map(len, found.data.values())) == [2, 5]
    assert "values" not in str(found.spec)
    assert set(found.data) == {"key-0", "key-1"}
    record = found.record()
    assert {"x": [0, 1, 2, 3, 4], "y": [0, 1, 4, 9, 16]} in record["data"].values()
    assert found.wide

"""What attention takes on this machine: measured, kept, read again, and compared."""

import json
from dataclasses import replace

import pytest

from eigenlens.errors import EigenlensWarning
from eigenlens.plans import calibration
from eigenlens.plans.calibration import DENSE, FORMS, GATHERED, HEADS, calibrate, calibrations

SHORT = {"width": 8, "longest": 256}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, and a machine without a compiler."""
    monkeypatch.setattr(calibration, "LENGTHS", (128, 256, 100_000))
    monkeypatch.setenv("EIGENLENS_CACHE", str(tmp_path))
    monkeypatch.setenv("EIGENLENS_NATIVE", "0")
    return tmp_path / "calibrations"


@pytest.fixture
def measured(cache):
    return calibrate(**SHORT)


@pytest.fixture
def kept(cache, measured):
    """The file that keeps what was measured."""
    (path,) = cache.iterdir()
    return path


def test_it_has_every_form_in_both_directions_at_every_length(measured):
    rows = measured.rows()
    assert {row["form"] for row in rows} == set(FORMS) and len(rows) == len(FORMS) * 2 * 2
    assert len(rows) == len(measured.timings) and all(row["torch ms"] > 0 for row in rows)
    assert measured.per_pair(DENSE, True, 128) > 0


def test_it_is_measured_once(measured, kept):
    assert calibrate(**SHORT) == measured and calibrations() == [measured]
    again = calibrate(**SHORT, again=True)
    assert again.timings != measured.timings and calibrations() == [again]


def test_longer_inputs_are_measured_when_they_are_asked_for(cache):
    short = calibrate(8, longest=100)
    assert {t.length for t in short.timings} == {128}
    longer = calibrate(8, longest=200)
    assert {t.length for t in longer.timings} == {128, 256}
    assert longer.timings[: len(short.timings)] == short.timings


def test_that_of_another_machine_or_of_other_threads_is_not_listed(measured, kept):
    for name, value in {"machine": "another", "threads": 99, "kernel": "other"}.items():
        other = replace(measured, **{name: value}).record()
        kept.with_name(f"{name}.json").write_text(json.dumps({"version": 1, **other}))
    assert calibrations() == [measured]


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"null", b"7", b"[]", b"{}", b"\xff\xfe", b"[[[[", b'{"version": 1}'],
    ids=str,
)
def test_a_file_that_is_no_calibration_is_passed_over(kept, content):
    kept.write_bytes(content)
    assert calibrations() == []


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 2},
        {"width": "8"},
        {"timings": [{"form": DENSE}]},
        {"timings": [{"by": "torch"}] * 3},
        {"kernel": 3},
        {"more": 1},
    ],
    ids=str,
)
def test_nor_is_one_that_was_changed(measured, kept, changes):
    kept.write_text(json.dumps({"version": 1, **measured.record(), **changes}))
    assert calibrations() == []


def test_what_is_kept_without_all_forms_is_measured_anew(measured, kept):
    kept.write_text(json.dumps({"version": 1, **measured.record(), "timings": []}))
    assert len(calibrate(**SHORT).timings) == len(measured.timings)


def test_a_folder_in_the_place_of_a_file_is_passed_over(kept):
    kept.unlink()
    kept.mkdir()
    assert calibrations() == []


def test_where_it_cannot_be_kept_it_is_measured_nevertheless(cache):
    cache.write_text("a file")
    with pytest.warns(EigenlensWarning, match="is not kept: .*calibrations cannot be written"):
        assert calibrate(**SHORT).timings
    assert calibrations() == []


def test_native_and_torch_stand_side_by_side(measured):
    by_torch = next(t for t in measured.timings if t.form == GATHERED and t.causal)
    native = replace(by_torch, by="native", seconds=by_torch.seconds / 4)
    both = replace(measured, timings=(native, *measured.timings))
    rows = both.rows()
    assert [row["form"] for row in rows[:4]] == [DENSE] * 4 and len(rows) == len(measured.timings)
    (row,) = (row for row in rows if row["torch / native"] is not None)
    assert row["torch / native"] == pytest.approx(4)
    assert (row["form"], row["direction"], row["tokens"]) == (GATHERED, "causal", by_torch.length)
    assert row["torch ns"] == by_torch.nanoseconds
    assert row["torch ms"] == 1e3 * by_torch.seconds / HEADS
    assert row["native ms"] == pytest.approx(row["torch ms"] / 4)
    alone = measured.rows()
    assert {row["native ms"] for row in alone} == {None}

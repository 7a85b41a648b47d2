"""What the speed bench says of times that are given, what it leaves out, and that its forms
agree.
"""

import pytest
import torch

from eigenlens.bench import speed as module
from eigenlens.bench.speed import (
    YARDSTICK,
    SpeedScale,
    _call,
    _sdpa_call,
    _too_much,
    recurrence_race,
    sentence,
    summarised,
)

CPU = torch.device("cpu")
TINY = SpeedScale(
    lengths=(16, 32), heads=2, head_width=4, recurrence=24, races=(1, 2), seconds=0.0, rounds=1
)


def row(name, n, ms, direction="causal", mb=1.0, skipped=""):
    return {
        "mechanism": name,
        "direction": direction,
        "tokens": n,
        "milliseconds": ms,
        "megabytes": mb,
        "rounds": 3,
        "skipped": skipped,
    }


def test_the_summary_holds_each_against_the_yardstick_of_its_direction():
    rows = [row(YARDSTICK, n, n * n / 1e4) for n in (1024, 2048, 4096)]
    rows += [row(YARDSTICK, n, n * n / 1e3, "both ways") for n in (1024, 2048, 4096)]
    rows += [row("straight", n, n / 5) for n in (1024, 2048, 4096)]
    rows += [row("other", n, n / 5, "both ways") for n in (1024, 2048)]
    rows += [row("other", 4096, None, "both ways", skipped="too long")]
    found = {(r["mechanism"], r["direction"]): r for r in summarised(rows)}
    assert found["straight", "causal"]["exponent"] == pytest.approx(1)
    assert found["straight", "causal"]["crossover"] == pytest.approx(2000)  # n/5 = n²/10⁴
    assert found["straight", "causal"]["times_sdpa"] == pytest.approx(2000 / 4096)
    assert (
        found["other", "both ways"]["crossover"] == 1024
        and found["other", "both ways"]["longest"] == 2048
    )
    assert found["other", "both ways"]["exponent"] is None
    assert (
        found[YARDSTICK, "causal"]["exponent"] == pytest.approx(2)
        and found[YARDSTICK, "causal"]["crossover"] is None
    )


def test_a_mechanism_that_was_left_out_everywhere_has_no_figures():
    found = summarised([row("huge", 4096, None, skipped="too long")])
    assert (
        found[0]["longest"] is None
        and found[0]["milliseconds"] is None
        and found[0]["exponent"] is None
    )


def test_the_sentence_counts_those_below():
    summary = [
        {"mechanism": YARDSTICK, "crossover": None},
        {"mechanism": "a", "crossover": 3456.0},
        {"mechanism": "b", "crossover": None},
        {"mechanism": "c", "crossover": 256.0},
    ]
    race = [
        {"tokens": 4096, "times_faster": 18.2},
        {"tokens": 4096, "times_faster": 41.7},
    ]
    message = sentence(summary, race)
    assert message.startswith(
        "2 of 3 mechanisms end up faster than torch's own attention (the earliest: c from 260"
        " tokens on; "
    )
    assert "the latest: a from 3,500 tokens on)" in message
    assert message.endswith("18 to 42 times as fast as token by token at 4,096 tokens.")
    assert (
        "1 of 2 mechanisms end up faster than torch's own attention (a from 3,500 tokens on);"
        in sentence(summary[:3], race)
    )
    assert "0 of 1 mechanisms end up faster than torch's own attention;" in sentence(
        summary[2:3], race
    )


@pytest.mark.parametrize(
    ("mb", "ms", "told"),
    [(1500.0, 1.0, "hold about 6 GB"), (1.0, 3000.0, "take about 12 s"), (1.0, 1.0, None)],
)
def test_a_length_that_would_take_too_much_is_left_out(mb, ms, told):
    """Full attention takes four times as much at twice the length."""
    why = _too_much("softmax", 2048, TINY, True, [row("softmax", 1024, ms, mb=mb)], CPU)
    assert why is None if told is None else told in why
    linear = _too_much("local", 2048, TINY, True, [row("local", 1024, ms, mb=mb)], CPU)
    assert linear is None  # twice 1.5 GB and twice 3 s are within the limits


def test_what_was_left_out_once_stays_out():
    before = [row("softmax", 512, 1.0), row("softmax", 1024, None, skipped="from 1024 tokens on")]
    assert _too_much("softmax", 2048, TINY, True, before, CPU) == "from 1024 tokens on"


def test_without_a_shorter_length_a_small_one_is_tried(monkeypatch):
    monkeypatch.setattr(module, "PROBE", 16)
    monkeypatch.setattr(
        module, "peak_bytes", lambda call, device: 2_000_000_000 if call().shape[2] == 16 else 0
    )
    assert "GB" in _too_much("softmax", 64, TINY, True, [], CPU)
    assert _too_much("softmax", 16, TINY, True, [], CPU) is None


def test_the_calls_are_attention_of_the_same_inputs():
    torch.testing.assert_close(
        _sdpa_call(16, TINY, True, CPU)(), _call("softmax", 16, TINY, True, CPU)()
    )
    assert _call("gated-delta", 16, TINY, True, CPU)().shape == (1, 2, 16, 4)


def test_the_two_forms_of_the_recurrence_agree():
    rows = recurrence_race(TINY, CPU)
    assert [(r["heads"], r["pass"]) for r in rows] == [
        (h, p) for h in (1, 2) for p in ("forward", "forward and backward")
    ]
    for row in rows:
        assert row["largest_difference"] < 1e-5
        assert row["times_faster"] == pytest.approx(
            row["loop_milliseconds"] / row["chunks_milliseconds"]
        )


def test_linear_mechanisms_are_held_to_how_they_grow_and_where_they_cross():
    rows = [
        {"mechanism": "local", "exponent": 1.1, "crossover": 900.0},
        {"mechanism": "fastmax", "exponent": 1.3, "crossover": 5000.0},
        {"mechanism": "softmax", "exponent": 2.0, "crossover": None},
    ]
    message = sentence(rows, [{"tokens": 4096, "times_faster": 20.0}])
    assert (
        "of 2 linear ones 1 grow with an exponent of at most 1.15 and 1 are faster from below 4,096"
        " tokens on" in message
    )
    assert "linear one" not in sentence(
        [{**row, "exponent": None} for row in rows], [{"tokens": 64, "times_faster": 2.0}]
    )

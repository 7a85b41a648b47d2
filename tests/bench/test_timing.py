"""Rounds by a clock that is made up, and bytes of calls whose tensors are known."""

import torch

from eigenlens.bench.timing import Pace, in_rounds, medians, peak_bytes

CPU = torch.device("cpu")


class Clock:
    """Time that passes only when a call says so."""

    def __init__(self):
        self.now, self.log = 0.0, []

    def __call__(self):
        return self.now

    def takes(self, name, *seconds):
        left = list(seconds)

        def call():
            self.log.append(name)
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return call


def test_everyone_has_a_turn_in_each_round():
    clock = Clock()
    found = in_rounds(
        {"a": clock.takes("a", 0.1), "b": clock.takes("b", 0.2)}, Pace(0.25, 3, 50, 9.0), clock
    )
    assert clock.log == ["a", "b"] * 3
    assert {name: len(times) for name, times in found.items()} == {"a": 3, "b": 3}


def test_rounds_go_on_until_the_fastest_has_had_its_time_and_the_slow_sit_out():
    clock = Clock()
    found = in_rounds(
        {"fast": clock.takes("fast", 0.01), "slow": clock.takes("slow", 0.5)},
        Pace(0.095, 2, 50, 0.9),
        clock,
    )
    assert len(found["fast"]) == 10 and len(found["slow"]) == 2


def test_there_is_an_end_for_calls_that_take_no_time():
    clock = Clock()
    assert len(in_rounds({"none": clock.takes("none", 0.0)}, Pace(1.0, 3, 7), clock)["none"]) == 7


def test_the_median_leaves_one_slow_round_out():
    clock = Clock()
    found = in_rounds({"a": clock.takes("a", 0.1, 9.0, 0.1)}, Pace(0.2, 3), clock)
    assert abs(medians(found)["a"] - 0.1) < 1e-9


def test_the_peak_is_what_lives_at_once():
    def call():
        x = torch.ones(300, 500)  # 600,000 bytes
        y = x * 2
        del x
        return y + 1  # y and the result live

    assert 0 <= peak_bytes(call, CPU) - 2 * 600_000 < 100  # and a few bytes of scalars


def test_a_product_on_the_way_is_counted_and_freed_memory_is_not():
    a = torch.randn(256, 64)

    def call():
        total = torch.zeros(())
        for _ in range(5):
            total = total + (a @ a.T).sum()  # 262,144 bytes each, one at a time
        return total

    assert 262_144 <= peak_bytes(call, CPU) < 2 * 262_144


def test_what_was_there_before_does_not_count():
    held = torch.ones(1_000_000)
    assert peak_bytes(lambda: held[:10] + 1, CPU) < 10_000

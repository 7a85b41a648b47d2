"""What progress says of rate and time left."""

import pytest

from eigenlens.run.progress import Rate, progress_bar


@pytest.mark.parametrize(
    ("seconds", "done", "total", "words"),
    [
        (10, 50, 100, "5 per second, 0:10 left"),
        (100, 10, 1000, "0.1 per second, 2:45:00 left"),
        (4, 4, 4, "1 per second, 0:00 left"),
    ],
)
def test_rate_and_time_left_are_those_since_the_first_word(seconds, done, total, words):
    times = iter([100.0, 100.0 + seconds])
    rate = Rate(lambda: next(times))
    assert rate.words("fit inputs", 0, total) == ""
    assert rate.words("fit inputs", done, total) == words


def test_a_run_that_goes_on_counts_only_what_it_did_itself():
    times = iter([0.0, 10.0])
    rate = Rate(lambda: next(times))
    rate.words("fit inputs", 400, 1000)
    assert rate.words("fit inputs", 500, 1000) == "10 per second, 0:50 left"


def test_without_a_terminal_every_tenth_is_a_line(capsys):
    with progress_bar() as report:
        for done in range(101):
            report("fit inputs", done, 100)
    lines = capsys.readouterr().err.strip().splitlines()
    assert (
        len(lines) == 11
        and lines[0] == "fit inputs: 0 of 100"
        and lines[5].startswith("fit inputs: 50 of 100 (")
    )

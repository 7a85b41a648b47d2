"""What progress says of rate and time left."""

import io
import sys
import time

import pytest

from eigenlens.run.progress import OneOf, Rate, progress_bar


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


def test_a_stage_that_begins_again_is_timed_anew():
    times = iter([0.0, 10.0, 100.0, 110.0])
    rate = Rate(lambda: next(times))
    words = [rate.words("training softmax", done, 100) for done in (1, 100, 1, 51)]
    assert words[2:] == ["", "5 per second, 0:10 left"]


def test_equal_pieces_of_work_are_one_stage():
    seen = []
    for number in range(2):
        report = OneOf(lambda *message: seen.append(message), "training 2 models", number, 2)
        for step in (1, 2):
            report("training a model", step, 2)
    assert seen == [("training 2 models", done, 4) for done in (1, 2, 3, 4)]


def test_without_a_terminal_every_stage_is_one_line(capsys):
    with progress_bar() as progress:
        for what in ("reading 100 texts", "computing eigenvalues"):
            for done in range(101):
                progress(what, done, 100)
    assert capsys.readouterr().err.splitlines() == ["reading 100 texts", "computing eigenvalues"]


def test_in_a_terminal_one_line_moves(monkeypatch):
    screen = io.StringIO()
    screen.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with progress_bar() as progress:
        for done in range(0, 301, 100):
            progress("reading 300 texts", done, 300)
            time.sleep(0.15)
    frames = screen.getvalue()
    assert "reading 300 texts" in frames and "200/300" in frames and "per second" in frames
    assert frames.count("\n") <= 1, "the line moves, and others do not pile up"

"""Bad input ends with one sentence, and nothing is written."""

import re
import shutil

import numpy as np
import pytest

from cli.commands.bad_commands import BAD, command_of
from cli.commands.damages import damaged, flipped


def contents(*folders):
    return {
        p: p.read_bytes() if p.is_file() else None
        for folder in folders
        for p in sorted(folder.rglob("*"))
    }


@pytest.mark.parametrize("case", BAD)
def test_bad_input_ends_with_one_sentence_and_nothing_written(run, world, tmp_path, case):
    args = command_of(case, world, tmp_path)
    before = contents(tmp_path, world.home)
    ended = run(*args)
    assert ended.code == 2
    assert ended.out == "" or args[0] == "show"
    assert ended.err.count("\n") == 1, ended.err
    assert re.match(rf"eigenlens: .*({BAD[case][1]})", ended.err), ended.err
    assert contents(tmp_path, world.home) == before


@pytest.mark.parametrize("case", ["no such model", "weights with NaN"])
def test_bad_input_in_a_shell(world, warm, tmp_path, case):
    """The same in a process of its own, where libraries warn on standard error if they are let."""
    args = command_of(case, world, tmp_path)
    ended = warm("--threads", 1, *args)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert re.fullmatch(rf"eigenlens: .*({BAD[case][1]}).*\n", ended.stderr), ended.stderr
    assert not (tmp_path / "out").exists()


def test_any_flipped_bit_of_the_record_is_noticed(run, world, tmp_path):
    size = (world.study / "study.json").stat().st_size
    for at in np.random.default_rng(0).integers(0, size, 25).tolist():
        folder = damaged(world, tmp_path, "study.json", lambda content, at=at: flipped(content, at))
        ended = run("show", folder)
        shutil.rmtree(folder)
        assert (ended.code, ended.err.count("\n")) == (2, 1), (at, ended)

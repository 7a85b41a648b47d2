"""A checkpoint is whole or is noticed not to be, and the one before is there."""

import os
import warnings

import pytest
import torch

from eigenlens import EigenlensError
from eigenlens.errors import EigenlensWarning
from eigenlens.run import checkpoints, files
from eigenlens.run.checkpoints import Checkpoints


def state_of(number):
    return {"sum": torch.full((5,), float(number)), "none": torch.zeros(0)}


def saved(folder, number, built_on=()):
    """Checkpoints 1 … number."""
    kept = Checkpoints(folder)
    for i in range(1, number + 1):
        kept.save({"at": i}, state_of(i), built_on)
    return kept


def found(folder):
    """The number of the checkpoint that is used, after a look at its tensors; 0 for none."""
    got = Checkpoints(folder).load()
    if got is None:
        return 0
    standing, state = got
    assert state["sum"].tolist() == [float(standing["at"])] * 5
    return standing["at"]


@pytest.mark.parametrize("number", range(5))
def test_the_last_one_is_used_without_a_word(tmp_path, number):
    saved(tmp_path, number)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert found(tmp_path) == number


def damages(path):
    """The file cut at several places (before its last line break), empty, and with one bit of
    several bytes flipped.
    """
    whole = path.read_bytes()
    for length in sorted({0, 1, len(whole) // 2, len(whole) - 2}):
        yield whole[:length]
    for place in sorted({0, 9, len(whole) // 3, len(whole) // 2, len(whole) - 2}):
        changed = bytearray(whole)
        changed[place] ^= 1 << place % 8
        yield bytes(changed)


@pytest.mark.parametrize("kind", ["json", "safetensors"])
@pytest.mark.parametrize("number", [2, 3])
def test_one_that_is_damaged_is_noticed_and_the_one_before_is_used(tmp_path, kind, number):
    saved(tmp_path, number)
    path = tmp_path / f"checkpoint-{(number - 1) % 2}.{kind}"
    whole = path.read_bytes()
    for damage in damages(path):
        path.write_bytes(damage)
        with pytest.warns(EigenlensWarning, match="damaged .*going on from the older checkpoint"):
            assert found(tmp_path) == number - 1
    path.unlink()
    if kind == "safetensors":
        with pytest.warns(EigenlensWarning, match="going on from the older checkpoint"):
            assert found(tmp_path) == number - 1
    path.write_bytes(whole)
    assert found(tmp_path) == number


def test_an_older_one_that_is_damaged_does_not_matter_but_is_told(tmp_path):
    saved(tmp_path, 3)
    path = tmp_path / "checkpoint-1.json"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.warns(EigenlensWarning, match=r"checkpoint-1\.json"):
        assert found(tmp_path) == 3


def test_where_both_are_damaged_the_run_begins_anew(tmp_path):
    saved(tmp_path, 4)
    for path in tmp_path.glob("*.safetensors"):
        path.write_bytes(b"")
    with pytest.warns(EigenlensWarning, match="starting again from the beginning"):
        assert found(tmp_path) == 0


def test_the_files_that_a_checkpoint_builds_on_are_looked_at_too(tmp_path):
    base = tmp_path / "base"
    base.write_bytes(b"what all of it stands on")
    kept = saved(tmp_path, 1)
    kept.save({"at": 2}, state_of(2), ["base"])
    assert found(tmp_path) == 2
    for damage in damages(base):
        base.write_bytes(damage)
        with pytest.warns(
            EigenlensWarning,
            match="base has changed since it was written.*going on from the older checkpoint",
        ):
            assert found(tmp_path) == 1
    base.unlink()
    with pytest.warns(EigenlensWarning, match="going on from the older checkpoint"):
        assert found(tmp_path) == 1


def test_a_file_of_the_folder_that_is_written_anew_counts_as_it_is_now(tmp_path):
    """After a checkpoint was damaged, the stage before writes its file again, with the same
    content.
    """
    base = tmp_path / "base"
    base.write_bytes(b"one")
    kept = saved(tmp_path, 1)
    kept.save({"at": 2}, state_of(2), ["base"])
    base.write_bytes(b"damaged")
    again = Checkpoints(tmp_path)
    with pytest.warns(EigenlensWarning):
        assert again.load() is not None
    base.write_bytes(b"one")
    again.save({"at": 2}, state_of(2), ["base"])
    assert found(tmp_path) == 2


@pytest.mark.parametrize("number", [1, 2, 5])
def test_one_that_cannot_be_written_leaves_the_one_before(tmp_path, monkeypatch, number):
    """At every file and every step of writing it."""
    kept = saved(tmp_path, number)
    for name in ("replace", "chmod", "fsync"):
        for at in (1, 2):
            calls, real = [], getattr(os, name)

            def fails(*args, real=real, at=at, calls=calls):
                calls.append(args)
                if len(calls) == at:
                    raise OSError(28, "No space left on device")
                return real(*args)

            with monkeypatch.context() as patch:
                patch.setattr(files.os, name, fails)
                with pytest.raises(EigenlensError, match="the disk is full"):
                    kept.save({"at": number + 1}, state_of(number + 1))
            assert found(tmp_path) >= number
    kept.save({"at": number + 1}, state_of(number + 1))
    assert found(tmp_path) == number + 1
    assert not list(tmp_path.glob("*.part"))


def test_writing_takes_a_twentieth_of_the_time_at_most(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(checkpoints.time, "monotonic", lambda: now[0])
    kept = Checkpoints(tmp_path, seconds=30, _last=0.0)

    def slow(path, content, write=checkpoints.write_json):
        now[0] += 10
        write(path, content)

    monkeypatch.setattr(checkpoints, "write_json", slow)
    now[0] = 29.0
    assert not kept.due()
    now[0] = 31.0
    assert kept.due()
    kept.save({"at": 1}, state_of(1))
    now[0] = 41.0 + 199
    assert not kept.due()
    now[0] = 41.0 + 201
    assert kept.due()


def test_a_large_first_one_waits_until_it_takes_a_twentieth_too(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(checkpoints.time, "monotonic", lambda: now[0])
    kept = Checkpoints(tmp_path, seconds=30, _last=0.0)
    kept.expect(int(5 * checkpoints.WRITTEN_PER_SECOND))
    now[0] = 99.0
    assert not kept.due()
    now[0] = 101.0
    assert kept.due()
    kept.save({"at": 1}, state_of(1))  # it took no time at all
    kept.expect(int(5 * checkpoints.WRITTEN_PER_SECOND))
    now[0] = 101.0 + 31
    assert kept.due()

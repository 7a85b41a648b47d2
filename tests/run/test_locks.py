"""A folder belongs to one process at a time, and its lock leaves no trace in a result."""

import errno
import os
import signal
import subprocess
import sys
import threading

import pytest

from eigenlens import EigenlensError
from eigenlens.run.files import LOCK, is_empty, locked
from eigenlens.run.parts import Parts
from eigenlens.run.result_folder import check_output_dir
from eigenlens.studies.folder import StudyFolder

HOLD = """
import sys, time
from pathlib import Path
from eigenlens.run.files import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def names(folder):
    return {path.name for path in folder.iterdir()}


def test_a_second_one_is_refused_and_the_lock_goes_with_the_first(tmp_path):
    with locked(tmp_path):
        with (
            pytest.raises(EigenlensError, match=f"^another process is working in {tmp_path};"),
            locked(tmp_path),
        ):
            pytest.fail("two at work in one folder")
        assert names(tmp_path) == {LOCK} and is_empty(tmp_path)
    assert names(tmp_path) == set()
    with locked(tmp_path):
        pass


def test_an_error_frees_the_folder_and_comes_through(tmp_path):
    with pytest.raises(OSError, match="of the work"), locked(tmp_path):
        raise OSError("an error of the work")
    assert names(tmp_path) == set()


def test_the_folder_may_be_deleted_while_it_is_locked(tmp_path):
    folder = tmp_path / "study"
    folder.mkdir()
    with locked(folder):
        (folder / LOCK).unlink()
        folder.rmdir()
    assert not folder.exists()


@pytest.mark.slow
def test_the_lock_of_a_killed_process_is_free_and_its_file_is_nothing(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(EigenlensError, match="another process"), locked(tmp_path):
            pass
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        holder.stdout.close()
    assert names(tmp_path) == {LOCK}
    assert StudyFolder(tmp_path).state == "new"
    assert check_output_dir(tmp_path, False, "plan") == tmp_path
    with Parts.held(tmp_path, {"seed": 0}, what="bench"):
        assert names(tmp_path) == {LOCK, "bench-request.json"}
    assert names(tmp_path) == {"bench-request.json"}


def test_a_run_that_begins_anew_keeps_its_own_lock(tmp_path):
    with Parts.held(tmp_path, {"seed": 0}, what="bench") as parts:
        parts.write("one", 1)
    with Parts.held(tmp_path, {"seed": 1}, overwrite=True, what="bench"):
        assert names(tmp_path) == {LOCK, "bench-request.json"}
        with pytest.raises(EigenlensError, match="another process"), locked(tmp_path):
            pass


def test_there_is_never_more_than_one_inside(tmp_path):
    """Eight threads come and go; each deletes the lock's file while others are opening it."""
    inside, most, entered = [], [], []

    def come_and_go():
        for _ in range(150):
            try:
                with locked(tmp_path):
                    inside.append(1)
                    most.append(len(inside))
                    entered.append(1)
                    inside.pop()
            except EigenlensError:
                pass

    threads = [threading.Thread(target=come_and_go) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(most) == {1} and len(entered) >= 8
    assert names(tmp_path) == set()


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EROFS])
def test_a_disk_that_knows_no_locks_is_worked_on_without(tmp_path, monkeypatch, number):
    import fcntl

    def flock(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    with locked(tmp_path):
        (tmp_path / "done").touch()
    assert "done" in names(tmp_path)

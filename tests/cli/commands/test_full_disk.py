"""Disks that are full, fill up or are read-only: said in one sentence, and gone on from."""

import os
import re
import subprocess

import pytest

from cli.commands.typed import SMALL, strict


@pytest.fixture
def disk(tmp_path):
    """A small disk of its own: `disk(size)` mounts or resizes it."""
    place = tmp_path / "disk"
    place.mkdir()

    def mount(size, *options):
        how = ",".join(["remount"] * place.is_mount() + [f"size={size}", *options])
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", how, "tmpfs", place], capture_output=True, text=True
        )
        if done.returncode:
            pytest.skip(f"a disk of a given size cannot be mounted here: {done.stderr.strip()}")
        return place

    yield mount
    if place.is_mount():
        subprocess.run(["umount", "--lazy", place], check=True)


def test_a_disk_too_full_to_begin_is_said_and_left_empty(run, world, disk):
    place = disk("8k")
    ended = run(
        "study",
        world.model,
        world.text,
        "-o",
        place / "out",
        "--max-inputs",
        200,
        "--max-length",
        16,
    )
    assert ended.code == 2
    assert re.fullmatch(r"eigenlens: the disk is full: .*\n", ended.err)
    assert list(place.iterdir()) == []


def test_a_disk_that_fills_up_is_said_and_the_study_goes_on_when_there_is_space(run, world, disk):
    place = disk("40k")
    ended = run("study", world.model, world.text, "-o", place / "out", *SMALL)
    assert ended.code == 2
    assert ended.err.splitlines()[-1].startswith("eigenlens: the disk is full: ")
    assert "Traceback" not in ended.err
    assert "was interrupted" in run("show", place / "out").err
    disk("8m")
    ended = run("study", world.model, world.text, "-o", place / "out", *SMALL, "--resume", "--json")
    assert ended.code == 0
    assert strict(ended.out)["heads"] == world.record["heads"]


def test_a_full_place_for_temporary_files_is_said(world, tmp_path, disk, warm):
    place = disk("16k")
    args = (
        "study",
        world.model,
        world.text,
        "-o",
        tmp_path / "out",
        "--max-inputs",
        600,
        "--max-length",
        16,
    )
    ended = warm("--threads", 1, *args, env={**os.environ, "TMPDIR": str(place)})
    assert ended.returncode == 2
    assert re.fullmatch(r"eigenlens: the disk is full: .*\n", ended.stderr), ended.stderr
    assert not (tmp_path / "out").exists()


def test_a_disk_that_is_read_only_is_said(run, world, disk):
    disk("1m")
    place = disk("1m", "ro")
    ended = run("study", world.model, world.text, "-o", place / "out", *SMALL)
    assert ended.code == 2
    assert re.fullmatch(r"eigenlens: .*/out cannot be written: Read-only file system\n", ended.err)

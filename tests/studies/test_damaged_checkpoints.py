"""Checkpoints that are damaged, disks that are full or cannot be written to.

Nothing is lost, and it is told.
"""

import contextlib
import os
import resource
import shutil
import subprocess
import warnings
from pathlib import Path

import pytest

from eigenlens import EigenlensError, Study, load, study
from eigenlens.errors import EigenlensWarning
from eigenlens.run.checkpoints import Checkpoints
from studies.identical import assert_identical
from studies.stages import stage_of
from tiny import some_text, tiny_bert

SKETCH = {
    "max_length": 8,
    "max_inputs": 90,
    "batch_size": 6,
    "shard_size": 4,
    "rank": 2,
    "only": ["rows", "moments", "matrices"],
}
"""72 fit inputs, of which 18 are the pilot of the sketch."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("damage")
    some_text(folder / "a.txt")
    tiny_bert(folder / "tiny")
    return folder


@pytest.fixture(scope="module")
def make(place):
    model = load(place / "tiny")
    return lambda folder, **more: study(model, place / "a.txt", folder, **SKETCH, **more)


@pytest.fixture(scope="module")
def undisturbed(place, make):
    return make(place / "undisturbed").folder


@pytest.fixture
def often(monkeypatch):
    """A checkpoint after every shard."""
    monkeypatch.setattr(Checkpoints, "due", lambda _: True)


class Stop(Exception):
    """The work ends here."""


def interrupted(make, folder, stage, number):
    def progress(what, done, _total):
        if stage_of(what) == stage and done > number:
            raise Stop

    with pytest.raises(Stop):
        make(folder, progress=progress)
    return folder / "unfinished"


@pytest.fixture(scope="module")
def halves(place, make):
    """Studies that ended in the first stage, in the second and in the last, with checkpoints of all
    shards before.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoints, "due", lambda _: True)
        moments = {
            "pilot": ("fit inputs", 14),
            "fit": ("fit inputs", 50),
            "held": ("held-out inputs", 82),
        }
        return {
            name: interrupted(make, place / name, *moment).parent
            for name, moment in moments.items()
        }


def latest(folder):
    """The mark of the last checkpoint."""
    return max(
        folder.glob("checkpoint-*.json"),
        key=lambda mark: int(mark.read_text().split('"number": ')[1].split(",")[0]),
    )


def damage(path, how, at=2 / 3):
    content = bytearray(path.read_bytes())
    if how == "cut":
        del content[int(len(content) * at) :]
    else:
        content[int(len(content) * at)] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("how", ["cut", "flipped"])
@pytest.mark.parametrize(
    ("stage", "file", "then"),
    [
        ("fit", "state", "going on from the older checkpoint"),
        ("fit", "mark", "going on from the older checkpoint"),
        ("held", "state", "going on from the older checkpoint"),
        (
            "held",
            "fit.safetensors",
            "starting again from the beginning",
        ),  # both checkpoints need it
        ("fit", "pilot.safetensors", "starting again from the beginning"),
    ],
)
def test_a_damaged_checkpoint_is_noticed(
    make, undisturbed, halves, often, tmp_path, stage, file, then, how
):
    shutil.copytree(halves[stage], tmp_path / "s")
    work = tmp_path / "s" / "unfinished"
    mark = latest(work)
    damage({"state": mark.with_suffix(".safetensors"), "mark": mark}.get(file, work / file), how)
    with pytest.warns(EigenlensWarning, match=f"a checkpoint is damaged .*{then}"):
        make(tmp_path / "s", resume=True)
    assert_identical(undisturbed, tmp_path / "s")


def test_the_command_tells_of_it_in_one_line(place, run, halves, tmp_path):
    shutil.copytree(halves["fit"], tmp_path / "s")
    damage(latest(tmp_path / "s" / "unfinished"), "cut")
    options = [
        f"--{name.replace('_', '-')}={','.join(value) if name == 'only' else value}"
        for name, value in SKETCH.items()
    ]
    ended = run(
        "--threads",
        1,
        "study",
        place / "tiny",
        place / "a.txt",
        "-o",
        tmp_path / "s",
        *options,
        "--resume",
    )
    assert ended.code == 0
    message = [line for line in ended.err.splitlines() if "damaged" in line]
    assert len(message) == 1
    assert message[0].startswith("eigenlens: a checkpoint is damaged (")


@pytest.mark.parametrize("how", ["cut", "flipped"])
@pytest.mark.parametrize("stage", ["pilot", "held"])
def test_where_all_checkpoints_are_damaged_it_begins_anew(
    make, undisturbed, halves, tmp_path, stage, how
):
    shutil.copytree(halves[stage], tmp_path / "s")
    for state in (tmp_path / "s" / "unfinished").glob("checkpoint-*.safetensors"):
        damage(state, how)
    with pytest.warns(
        EigenlensWarning, match="a checkpoint is damaged .*starting again from the beginning"
    ):
        make(tmp_path / "s", resume=True)
    assert_identical(undisturbed, tmp_path / "s")


@pytest.mark.parametrize("how", ["cut", "flipped"])
@pytest.mark.parametrize(
    ("file", "at"),
    [
        ("ids.npy", 0.6),
        ("rows.npy", 0.3),
        ("rows.npy", 0.93),
        ("documents.json", 0.5),
        ("request.json", 0.05),
    ],
)
def test_damaged_inputs_are_never_gone_on_with(make, undisturbed, halves, tmp_path, file, at, how):
    """There is one copy of them: the way out is to begin anew."""
    shutil.copytree(halves["fit"], tmp_path / "s")
    damage(tmp_path / "s" / "unfinished" / file, how, at)
    with pytest.raises(EigenlensError, match=r"--overwrite|cannot be read|another"):
        make(tmp_path / "s", resume=True)
    make(tmp_path / "s", overwrite=True)
    assert_identical(undisturbed, tmp_path / "s")


@contextlib.contextmanager
def mounted(folder, *options):
    """A small disk of its own in memory, for those who may have one."""
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(folder)], capture_output=True
    )
    if done.returncode:
        pytest.skip("disks of its own need a privileged user")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextlib.contextmanager
def small_files():
    """No file may grow beyond 2 kB, for every user."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2048, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextlib.contextmanager
def full_disk(folder):
    with mounted(folder, "size=16m"):

        def fill():
            with contextlib.suppress(OSError), open(folder / "ballast", "wb") as file:
                while True:
                    file.write(bytes(4096))
                    file.flush()

        yield fill
        if (folder / "ballast").exists():
            (folder / "ballast").unlink()


@contextlib.contextmanager
def read_only(folder):
    """A disk that becomes read-only while files are open for writing on it, as one that fails does.

    `mount -o remount,ro` is refused then; a read-only view of the disk is laid over it instead.
    """

    def lay_over():
        subprocess.run(["mount", "--bind", str(folder), str(folder)], check=True)
        subprocess.run(["mount", "-o", "remount,bind,ro", str(folder)], check=True)

    with mounted(folder, "size=16m"):
        try:
            yield lay_over
        finally:
            mounts = Path("/proc/self/mountinfo").read_text().splitlines()
            if sum(line.split()[4] == str(folder) for line in mounts) > 1:
                subprocess.run(["umount", "-l", str(folder)], check=True)


def spoilt(how, disk, stack):
    """A disk, and how to spoil it."""
    if how == "small files":
        disk.mkdir()
        return stack.enter_context(small_files())
    return stack.enter_context({"full": full_disk, "read-only": read_only}[how](disk))


SENTENCES = {
    "small files": "the disk is full: .* could not be written; free some space",
    "full": "the disk is full: .* could not be written; free some space",
    "read-only": "cannot be written: Read-only file system",
}


@pytest.mark.parametrize("how", sorted(SENTENCES))
@pytest.mark.parametrize(("stage", "number"), [("fit inputs", 40), ("eigen-analysis", 0)])
def test_a_disk_that_fails_in_the_middle_loses_nothing(
    make, undisturbed, often, monkeypatch, tmp_path, how, stage, number
):
    """In a checkpoint, and when the study itself is written."""
    disk = tmp_path / "disk"
    with contextlib.ExitStack() as mounts:
        with contextlib.ExitStack() as fault:
            spoil = spoilt(how, disk, mounts if how != "small files" else fault)
            spoilt_at = []

            def progress(what, done, _total):
                if stage_of(what) == stage and done > number and not spoilt_at:
                    spoilt_at.append(done)
                    spoil()

            with pytest.raises(EigenlensError, match=SENTENCES[how]):
                make(disk / "s", progress=progress)
            assert spoilt_at
        kept = Checkpoints(disk / "s" / "unfinished").load()
        assert kept is not None, "the checkpoint before is whole"
        repair(how, disk)
        assert not list((disk / "s").rglob("*.part"))
        with pytest.raises(EigenlensError, match="was interrupted before it was finished"):
            Study.open(disk / "s")
        with warnings.catch_warnings():
            warnings.simplefilter("error", EigenlensWarning)
            make(disk / "s", resume=True)
        assert_identical(undisturbed, disk / "s")


def repair(how, disk):
    if how == "full":
        (disk / "ballast").unlink()
    if how == "read-only":
        subprocess.run(["umount", "-l", str(disk)], check=True)  # what was laid over it


@pytest.mark.parametrize("how", ["full", "read-only"])
def test_a_disk_that_fails_from_the_start_ends_the_command(place, run, undisturbed, tmp_path, how):
    disk = tmp_path / "disk"
    options = [
        f"--{name.replace('_', '-')}={','.join(value) if name == 'only' else value}"
        for name, value in SKETCH.items()
    ]
    command = ["--threads", 1, "study", place / "tiny", place / "a.txt", "-o", disk / "s", *options]
    with contextlib.ExitStack() as stack:
        spoilt(how, disk, stack)()
        ended = run(*command)
        assert ended.code == 2
        assert ended.err.strip().splitlines()[-1].startswith("eigenlens: ")
        assert not (disk / "s").exists()
        repair(how, disk)
        assert run(*command).code == 0
        assert_identical(undisturbed, disk / "s")


def test_a_finished_study_survives_a_full_disk(make, tmp_path):
    """What is overwritten by force is there until what takes its place has been begun."""
    disk = tmp_path / "disk"
    with full_disk(disk) as fill:
        make(disk / "s")
        before = {path.name: path.read_bytes() for path in (disk / "s").iterdir()}
        fill()
        with pytest.raises(EigenlensError, match=SENTENCES["full"]):
            make(disk / "s", overwrite=True, seed=1)
        assert {path.name: path.read_bytes() for path in (disk / "s").iterdir()} == before
        os.unlink(disk / "ballast")

"""The folder of a study is new, interrupted, finished or foreign, and each says what may be done
with it.
"""

import json
import subprocess
import sys

import pytest

from eigenlens import EigenlensError, Study, load, study
from eigenlens._version import __version__
from eigenlens.data.inputs import Request
from eigenlens.run.checkpoints import Checkpoints
from eigenlens.studies import folder as module
from eigenlens.studies.folder import StudyFolder, identity_of
from eigenlens.studies.options import Options
from studies.identical import assert_identical
from tiny import some_text, tiny_bert

SMALL = {"max_length": 8, "max_inputs": 24, "batch_size": 2, "shard_size": 2, "only": ["rows"]}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("folder")


@pytest.fixture(scope="module")
def model(place):
    return load(tiny_bert(place / "tiny"))


@pytest.fixture(scope="module")
def data(place):
    return some_text(place / "a.txt")


def holding(folder, *names):
    """The folder with these files in it."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    return folder


INTERRUPTED = (
    "{} holds a study that was interrupted; go on with resume=True (--resume) or begin anew with"
    " overwrite=True (--overwrite)"
)
FINISHED = (
    "{} already holds a study; open it, name another folder, or overwrite it with overwrite=True"
    " (--overwrite)"
)
NOTHING_TO_RESUME = "{} already holds a study; it is finished, so there is nothing to resume"
FOREIGN = "{} exists and is not a study; name another folder"


@pytest.mark.parametrize(
    ("files", "state", "sentences"),
    [
        # without an option, with --resume, with --overwrite
        ([], "new", [None, None, None]),
        (["unfinished/request.json"], "interrupted", [INTERRUPTED, None, None]),
        (["unfinished.part/documents.json"], "interrupted", [INTERRUPTED, None, None]),
        (["study.json"], "finished", [FINISHED, NOTHING_TO_RESUME, None]),
        # killed while it tidied up
        (["study.json", "unfinished/a"], "finished", [FINISHED, NOTHING_TO_RESUME, None]),
        (["plan.json"], "foreign", [FOREIGN, FOREIGN, FOREIGN]),
        (["rows.safetensors"], "foreign", [FOREIGN, FOREIGN, FOREIGN]),
    ],
)
def test_every_state_has_its_sentence(tmp_path, files, state, sentences):
    path = holding(tmp_path / "s", *files)
    path.mkdir(exist_ok=True)
    for options, sentence in zip(({}, {"resume": True}, {"overwrite": True}), sentences):
        folder = StudyFolder(path, **options)
        assert folder.state == state
        if sentence is None:
            folder.check()
        else:
            with pytest.raises(EigenlensError) as refused:
                folder.check()
            assert str(refused.value) == sentence.format(path)


def test_a_folder_that_is_not_there_is_new_and_is_not_made_by_looking(tmp_path):
    folder = StudyFolder(tmp_path / "s")
    assert folder.state == "new"
    with folder.reserved():
        assert not folder.goes_on
    assert not folder.path.exists()


@pytest.mark.parametrize("options", [{}, {"resume": True}, {"overwrite": True}])
def test_a_file_is_no_folder(tmp_path, options):
    (tmp_path / "s").write_text("a letter")
    with pytest.raises(EigenlensError, match=r"s is a file; name a folder for the study$"):
        StudyFolder(tmp_path / "s", **options).check()
    assert (tmp_path / "s").read_text() == "a letter"


@pytest.mark.parametrize(
    ("files", "resume", "goes_on"),
    [
        (["unfinished/request.json"], True, True),
        (["unfinished/request.json"], False, False),
        (["unfinished/documents.json"], True, False),
        (["unfinished.part/request.json"], True, False),
        ([], True, False),
    ],
)
def test_a_study_goes_on_where_it_is_asked_to_and_its_request_is_there(
    tmp_path, files, resume, goes_on
):
    path = holding(tmp_path / "s", *files)
    folder = StudyFolder(path, resume, overwrite=not resume)
    with folder.reserved():
        assert folder.goes_on == goes_on


def test_a_folder_at_work_is_locked_for_other_processes(tmp_path):
    path = holding(tmp_path / "s", "study.json")
    code = (
        "import sys; from pathlib import Path; from eigenlens.studies.folder import StudyFolder\n"
        "with StudyFolder(Path(sys.argv[1]), overwrite=True).reserved(): print('in')"
    )

    def second():
        return subprocess.run(
            [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=600
        )

    with StudyFolder(path, overwrite=True).reserved():
        refused = second()
    assert refused.returncode and f"another process is working in {path}" in refused.stderr
    assert second().stdout == "in\n"


@pytest.fixture
def ready(model, data, tmp_path):
    """A folder whose inputs are prepared, ready to begin."""

    def made(folder):
        options = Options(Request((str(data),), 8, 24), ("rows",))
        scratch = tmp_path / "scratch"
        scratch.mkdir()
        folder.inputs(model, options, identity_of(model, options, 1), scratch)
        return folder

    return made


def test_a_study_begins_with_its_request_and_inputs_in_the_folder(ready, tmp_path):
    with (folder := StudyFolder(tmp_path / "a" / "s")).reserved():
        ready(folder)
        assert not folder.path.exists(), "made before all is known to be well"
        folder.begin()
        assert folder.state == "interrupted"
        stored = json.loads((folder.unfinished / "request.json").read_text())
        assert stored["version"] == __version__ and stored["length"] == 8
        kept = {path.name for path in folder.unfinished.iterdir()}
        assert kept == {"request.json", *stored["inputs_kept"]}
        with (
            pytest.raises(EigenlensError, match="another process is working"),
            StudyFolder(folder.path, resume=True).reserved(),
        ):
            pass
        folder.finish()
        assert folder.state == "new"


@pytest.mark.parametrize("there", [False, True])
def test_what_fails_to_begin_leaves_what_was_there(ready, monkeypatch, tmp_path, there):
    path = tmp_path / "s"
    if there:
        holding(path, "study.json", "rows.safetensors", "pictures/a.svg")
    before = sorted(path.rglob("*"))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_json", full)
    with (folder := StudyFolder(path, overwrite=True)).reserved():
        ready(folder)
        with pytest.raises(EigenlensError, match="the disk is full"):
            folder.begin()
    assert path.exists() == there and sorted(path.rglob("*")) == before


def test_what_begins_anew_takes_the_older_study_away_and_nothing_else(ready, tmp_path):
    older = ["study.json", "rows.safetensors", "spectra.safetensors", "pictures/a.svg"]
    path = holding(tmp_path / "s", *older, "unfinished/checkpoint-0.json", "notes.txt")
    with (folder := StudyFolder(path, overwrite=True)).reserved():
        ready(folder).begin()
    assert {found.name for found in path.iterdir()} == {"unfinished", "notes.txt"}
    assert not (path / "unfinished" / "checkpoint-0.json").exists()


class Stop(Exception):
    """The work ends here."""


@pytest.fixture
def interrupted(model, data, monkeypatch, tmp_path):
    """A study that was stopped in the middle, with checkpoints."""
    monkeypatch.setattr(Checkpoints, "due", lambda _: True)

    def progress(_what, done, _total):
        if done > 8:
            raise Stop

    with pytest.raises(Stop):
        study(model, data, tmp_path / "s", **SMALL, progress=progress)
    assert list((tmp_path / "s" / "unfinished").glob("checkpoint-*.json"))
    return tmp_path / "s"


def rewritten(folder, **changes):
    path = folder / "unfinished" / "request.json"
    stored = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: x for key, x in stored.items() if x is not None}))


@pytest.mark.parametrize(
    ("version", "by"), [("0.1.0", "eigenlens 0.1.0"), (None, "eigenlens of an unknown version")]
)
def test_an_interrupted_study_of_another_version_is_refused_by_its_version(
    model, data, interrupted, tmp_path, version, by
):
    """Whatever else that version calls otherwise.

    The version is what the user can do something about.
    """
    rewritten(interrupted, version=version, model="another", rank=None)
    before = {p: p.read_bytes() for p in interrupted.rglob("*") if p.is_file()}
    with pytest.raises(EigenlensError) as refused:
        study(model, data, interrupted, **SMALL, resume=True)
    assert str(refused.value) == (
        f"the interrupted study in {interrupted} was begun by {by}, and this is eigenlens"
        f" {__version__}; go on with the version that began it, or begin anew with"
        " overwrite=True (--overwrite)"
    )
    assert {p: p.read_bytes() for p in interrupted.rglob("*") if p.is_file()} == before
    study(model, data, interrupted, **SMALL, overwrite=True)
    assert Study.open(interrupted).stored["versions"]["eigenlens"] == __version__


def test_a_request_that_is_no_record_is_damaged(model, data, interrupted):
    (interrupted / "unfinished" / "request.json").write_text("[]")
    with pytest.raises(
        EigenlensError, match=r"request\.json is damaged; begin anew with overwrite=True"
    ):
        study(model, data, interrupted, **SMALL, resume=True)


def test_inputs_that_changed_on_disk_are_refused(model, data, interrupted):
    kept = json.loads((interrupted / "unfinished" / "request.json").read_text())["inputs_kept"]
    path = interrupted / "unfinished" / min(kept)
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(EigenlensError) as refused:
        study(model, data, interrupted, **SMALL, resume=True)
    assert str(refused.value) == (
        f"{path} has changed since it was written; begin anew with overwrite=True (--overwrite)"
    )


def test_data_that_changed_since_is_refused(model, data, interrupted):
    rewritten(interrupted, fingerprint="of other data")
    with pytest.raises(EigenlensError) as refused:
        study(model, data, interrupted, **SMALL, resume=True)
    assert str(refused.value) == (
        f"the data of the study in {interrupted} has changed since it was begun; begin anew with"
        " overwrite=True (--overwrite)"
    )


def test_a_finished_study_leaves_nothing_of_its_way(model, data, interrupted, tmp_path):
    study(model, data, interrupted, **SMALL, resume=True)
    assert StudyFolder(interrupted).state == "finished"
    assert {p.name for p in interrupted.iterdir()} == {
        "study.json",
        "rows.safetensors",
        "spectra.safetensors",
    }
    assert_identical(study(model, data, tmp_path / "other", **SMALL).folder, interrupted)

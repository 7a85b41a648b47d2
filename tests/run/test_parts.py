"""A run in parts: here one after the other, on a cluster side by side, and the same in the end."""

import json
import os
from functools import partial

import pytest

from eigenlens import EigenlensError
from eigenlens.run.engine import use_engine
from eigenlens.run.parts import Parts
from eigenlens.run.progress import Here
from run.made import Unread, away, fail, refuse, square


@pytest.fixture
def parts(tmp_path):
    return Parts.begin(tmp_path / "run", {})


def squares(numbers, **more):
    return {f"squares/{number}": partial(square, number, **more) for number in numbers}


def test_each_part_is_made_once_and_in_order(parts, tmp_path):
    messages = []
    found = parts.each(
        squares([3, 1, 2], folder=tmp_path), lambda *message: messages.append(message), "squares"
    )
    assert [one["square"] for one in found] == [9, 1, 4] and {one["process"] for one in found} == {
        os.getpid()
    }
    assert messages == [("squares", 0, 3), ("squares", 1, 3), ("squares", 2, 3)]
    (tmp_path / "made-1").unlink()
    assert parts.each(squares([3, 1, 2], folder=tmp_path)) == found
    assert not (tmp_path / "made-1").exists()


def test_a_cluster_makes_those_that_are_missing(cluster, parts, tmp_path):
    parts.part("squares/2", partial(square, 2))
    messages, inside = [], []
    progress = Here(lambda *message: inside.append(message))
    with use_engine(cluster):
        makes = squares([4, 3, 2, 1], folder=tmp_path, progress=progress)
        found = parts.each(makes, lambda *message: messages.append(message), "squares")
    assert [one["square"] for one in found] == [16, 9, 4, 1]
    assert [one["process"] == os.getpid() for one in found] == [False, False, True, False]
    assert not (tmp_path / "made-2").exists() and (tmp_path / "made-4").exists()
    assert ("squares", 4, 4) in messages and all(what == "squares" for what, _, _ in messages)
    assert not inside  # a report shows nothing in another process
    assert [parts.read(name)["square"] for name in makes] == [16, 9, 4, 1]


def test_what_a_cluster_refuses_is_refused_here_and_the_rest_is_kept(cluster, parts):
    with use_engine(cluster), pytest.raises(EigenlensError, match=r"^3 has no square$"):
        parts.each({**squares([1]), "odd": partial(refuse, 3), **squares([2])})
    assert parts.has("squares/1") and parts.has("squares/2") and not parts.has("odd")


@pytest.mark.parametrize("on_failure", ["stop", "partial"])
def test_a_part_that_fails_on_a_cluster_is_named(cluster, parts, on_failure, monkeypatch):
    monkeypatch.setattr(cluster, "on_failure", on_failure)
    with (
        use_engine(cluster),
        pytest.raises(EigenlensError, match=r"^the part odd failed: ValueError: 3 is odd$"),
    ):
        parts.each({**squares([1]), "odd": partial(fail, 3)})
    assert parts.has("squares/1") and not parts.has("odd")


def test_work_that_no_worker_can_read_ends_the_run_and_not_the_workers(cluster, parts):
    with (
        use_engine(cluster),
        pytest.raises(
            EigenlensError, match=r"^the part unread failed: ModuleNotFoundError: No module"
        ),
    ):
        parts.each({"unread": Unread()})
    with use_engine(cluster):
        assert parts.each(squares([5]))[0]["square"] == 25


def test_trainings_keep_checkpoints_in_the_process_of_the_folder_alone(cluster, parts, tmp_path):
    assert parts.checkpoint("training/1") == tmp_path / "run" / "training" / "1.safetensors"
    with use_engine(cluster):
        assert parts.each({"one": partial(away, parts)}) == ["None"]
    assert not parts.away


@pytest.mark.parametrize("version, writer", [("0.1.9", "eigenlens 0.1.9"), (None, "an earlier")])
def test_a_run_of_another_version_is_not_continued(tmp_path, version, writer):
    """Its parts may mean something else; the sentence says which version wrote them."""
    Parts.begin(tmp_path, {"seed": 0}, what="bench")
    mark = tmp_path / "bench-request.json"
    stored = json.loads(mark.read_text())
    stored.pop("eigenlens")
    mark.write_text(json.dumps({**stored, **({"eigenlens": version} if version else {})}))
    with pytest.raises(EigenlensError, match=f"was begun by {writer}.*overwrite"):
        Parts.begin(tmp_path, {"seed": 0}, resume=True, what="bench")
    Parts.begin(tmp_path, {"seed": 0}, overwrite=True, what="bench")
    assert Parts.begin(tmp_path, {"seed": 0}, resume=True, what="bench").request == {"seed": 0}

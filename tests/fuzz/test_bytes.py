"""Archives, text and token ids that are cut, forged or hostile are refused in one sentence, or read
as they are.
"""

import gc
import json
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from eigenlens.data.text import pieces
from eigenlens.errors import EigenlensError
from eigenlens.models import archives

from .archives import WANTED, bomb_bytes, many_members
from .cases import run_case
from .guard import Broken, watched
from .inputs import read_ids
from .world import WORDS

BLOCK = 100
EASY = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.mark.parametrize("block", range(35))
def test_damaged_archives(block):
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        run_case("archive", seed)


@pytest.mark.parametrize("block", range(24))
def test_damaged_text(block):
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        run_case("text", seed)


@pytest.mark.parametrize("block", range(25))
def test_damaged_token_ids(block):
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        run_case("token_ids", seed)


@pytest.mark.parametrize("seed", range(6))
def test_a_bomb_is_refused_with_its_figure(tmp_path, seed):
    """Less than a megabyte that would be 128 of them, as the wanted member or in front of it."""
    from random import Random

    name, content = bomb_bytes(Random(seed), 256 << 20)
    (tmp_path / name).write_bytes(content)
    most = archives.SPARE + archives.RATIO * len(content)
    with pytest.raises(EigenlensError, match=f"more than {most:,} bytes"), watched(tmp_path):
        archives.extract(tmp_path / name, {WANTED: tmp_path / "out"})
    assert not (tmp_path / "out").exists() or (tmp_path / "out").stat().st_size <= most


def test_members_without_end_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "MOST_MEMBERS", 50)
    (tmp_path / "a.tar.gz").write_bytes(many_members(60))
    with pytest.raises(EigenlensError, match="more than 50 members"):
        archives.member(tmp_path / "a.tar.gz", "package/55")
    assert archives.member(tmp_path / "a.tar.gz", "package/7") == b""


def test_a_member_longer_than_its_archive_ends_at_once(tmp_path):
    """A header that says 2⁴⁰ bytes: a reader that skips them one by one would not come back."""
    import tarfile

    info = tarfile.TarInfo("package/first")
    info.size = 1 << 40
    (tmp_path / "a.tar").write_bytes(info.tobuf() + b"\0" * 1024)
    with pytest.raises(EigenlensError, match="would unpack to more than"):
        archives.member(tmp_path / "a.tar", WANTED)


@EASY
@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0")), max_size=5))
def test_lines_of_json_come_back_as_they_were(tmp_path, texts):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    assert [piece.text for piece in pieces([path], section=16)] == texts


@EASY
@given(st.binary(max_size=400))
def test_any_bytes_as_text_are_words_or_a_refusal(tmp_path, content):
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    try:
        found = "".join(piece.text for piece in pieces([path], section=4))
    except EigenlensError:
        with pytest.raises((UnicodeDecodeError, AssertionError)):
            assert "\0" not in content.decode("utf-8")
        return
    assert "".join(found.split()) == "".join(content.decode("utf-8").split())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=6) | st.just("text"), inner, max_size=3)
    ),
    max_leaves=8,
)


@EASY
@given(JSON)
def test_a_line_of_any_json_is_a_text_or_a_refusal(tmp_path, value):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(value) + "\n")
    try:
        found = [piece.text for piece in pieces([path], section=16)]
    except EigenlensError:
        assert not isinstance(value, dict) or not _texts(value)
        return
    assert found == _texts(value)


def _texts(record):
    """The `text` of an object, or its only string; nothing where neither is one."""
    found = [record["text"]] if "text" in record else list(record.values())
    strings = [one for one in found if isinstance(one, str)]
    return strings if len(strings) == 1 else []


@EASY
@given(
    arrays.arrays(
        arrays.integer_dtypes() | arrays.unsigned_integer_dtypes(),
        st.just((40, 8)),
        elements=st.integers(0, len(WORDS) + 3),
    )
)
def test_ids_of_any_width_are_read_or_refused(tmp_path_factory, ids):
    import io

    made = io.BytesIO()
    np.save(made, ids)
    folder = tmp_path_factory.mktemp("ids") / "case"
    folder.mkdir()
    if ids.max() >= len(WORDS):
        read = ids[:6].max() < len(WORDS)  # six inputs are asked for: later rows are not looked at
        try:
            read_ids(made.getvalue(), folder)
        except EigenlensError as error:
            assert "outside the vocabulary" in str(error)
        else:
            assert read
    else:
        read_ids(made.getvalue(), folder)


def test_a_pickle_among_the_ids_is_never_opened(tmp_path):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    folder = tmp_path / "case"
    folder.mkdir()
    with pytest.raises(EigenlensError), watched(folder):
        read_ids(pickle.dumps(Evil()), folder)
    assert not (tmp_path / "ran").exists()


def test_the_guard_notices(tmp_path):
    """Without this no case could fail."""
    inside = tmp_path / "case"
    inside.mkdir()
    with pytest.raises(Broken, match="outside"), watched(inside):
        (tmp_path / "outside").write_text("x")
    (tmp_path / "outside").unlink()
    with pytest.raises(Broken, match="pickle"), watched(inside):
        pickle.loads(pickle.dumps(print))  # noqa: S301
    with watched(inside):
        (inside / "x").write_text("x")
        other = threading.Thread(target=(tmp_path.parent / f"{tmp_path.name} of another").touch)
        other.start()
        other.join()


def test_what_another_test_left_behind_is_no_fault_of_a_case(tmp_path):
    """A temporary folder goes when Python finds that nobody holds it, which may be at any time."""
    (tmp_path / "case").mkdir()
    left = [tempfile.TemporaryDirectory(dir=tmp_path, prefix="left-")]
    left.append(left)  # a cycle, which only the collector finds
    del left
    with watched(tmp_path / "case"):
        kept = [[] for _ in range(100_000)]  # enough for the collector to begin, if it may
        there = list(tmp_path.glob("left-*"))
    assert len(kept) == 100_000 and there
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    assert not list(tmp_path.glob("left-*"))


def test_the_guard_notices_memory(tmp_path):
    """In a process of its own, whose peak is small.

    Here much more would have to be taken than other tests have.
    """
    (tmp_path / "case").mkdir()
    code = (
        "import sys; from pathlib import Path; from fuzz import guard; guard.MOST_MEMORY = 1 <<"
        " 26\n"
    )
    code += "with guard.watched(Path(sys.argv[1])): b'x' * int(sys.argv[2])"
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for size, refused in ((1 << 20, False), (1 << 27, True)):
        command = [sys.executable, "-c", code, str(tmp_path / "case"), str(size)]
        done = subprocess.run(command, capture_output=True, text=True, env=found)
        assert (done.returncode != 0) == refused, done.stderr
        assert ("Broken: a case took 0.1 GB" in done.stderr) == refused

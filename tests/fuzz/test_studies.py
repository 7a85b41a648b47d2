"""Studies whose damage got past their digests are refused in one sentence, or can be asked
everything.
"""

import json
import shutil

import pytest

from eigenlens.errors import EigenlensError
from eigenlens.studies import Study

from .cases import run_case
from .mutations import DEEP, study_seal
from .results import read_study
from .world import world

BLOCK = 10


@pytest.mark.parametrize("block", range(15))
def test_damaged_studies(block):
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        run_case("study", seed)


@pytest.mark.parametrize("block", range(4))
def test_commands_on_damaged_folders_end_with_two_and_one_line(block):
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        run_case("command", seed)


@pytest.mark.parametrize("name", ["full", "causal"])
def test_an_undamaged_study_answers_everything(name, tmp_path):
    from random import Random

    shutil.copytree(world() / name, tmp_path / name)
    read_study(tmp_path / name, Random(0))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("length",), -1),
        (("model", "name"), 5),
        (("sites",), []),
        (("sites", "encoder/0", "heads"), 10**12),
        (("files", "../../etc/passwd"), {"bytes": 1, "sha256": ""}),
        (("options", "of"), "x"),
        (("notes",), [None]),
        (("data", "documents"), None),
        (("diagnostics", "tokens"), {"x": "y"}),
        (("inputs",), 10**400),
    ],
)
def test_a_record_of_another_form_is_refused_with_the_place(path, value, tmp_path):
    folder = tmp_path / "study"
    shutil.copytree(world() / "full", folder)
    record = json.loads((folder / "study.json").read_text())
    node = record
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    (folder / "study.json").write_text(json.dumps(study_seal(record)))
    with pytest.raises(EigenlensError, match=r"is damaged: .*study\.json; make it again"):
        Study.open(folder)


def test_lists_nested_without_end_are_refused(tmp_path):
    (tmp_path / "study.json").write_text(DEEP)
    with pytest.raises(EigenlensError, match="cannot be read: maximum recursion depth"):
        Study.open(tmp_path)


@pytest.mark.parametrize("command", [["show"], ["report"], ["compare"]])
def test_the_real_command_ends_with_two_and_one_line(command, warm, tmp_path):
    folder = tmp_path / "study"
    shutil.copytree(world() / "full", folder)
    (folder / "rows.safetensors").write_bytes(
        b"\xff" * (folder / "rows.safetensors").stat().st_size
    )
    more = {"compare": [world() / "causal"], "report": ["-o", tmp_path / "page.html"]}.get(
        command[0], []
    )
    done = warm(*command, folder, *more, cwd=tmp_path)
    *progress, last = done.stderr.splitlines()
    assert (done.returncode, last[:11]) == (2, "eigenlens: "), done.stderr
    assert all(line.startswith("reading ") for line in progress), done.stderr
    assert "rows.safetensors has changed" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["study"]

"""The page of files lists what is found when results are written."""

import json
import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from docs import pages
from eigenlens.reports.kinds import KINDS
from eigenlens.run.result_folder import RESULTS

SECTIONS = {
    "study": "Study",
    "plan": "Plan",
    "evaluation": "Evaluation",
    "collapse": "Collapse",
    "explanation": "Explanation",
    "comparison": "Comparison",
    "run": "Training run",
    "bench": "Bench",
    "reproduction": "Reproduction",
}


def section(kind):
    return pages.section("reference/files.md", SECTIONS[kind])


def listed(kind):
    """The names, or patterns of names, of the files that a folder of this kind holds."""
    (rows,) = pages.tables(section(kind))
    return [name for files, _ in rows for name in re.findall(r"`([^`]+)`", files)]


def test_every_kind_of_result_has_its_section():
    assert set(SECTIONS) == {kind.name for kind in KINDS} == set(RESULTS)


@pytest.mark.parametrize("kind", SECTIONS)
def test_the_files_of_a_result_are_those_that_are_listed(made, kind):
    folder = made.folders[kind]
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    names = listed(kind)
    for file in found:
        assert any(matches(file, name) for name in names), f"{file} is not listed"
    for name in names:
        if not name.startswith("*"):  # parts, of which a small run may have none
            assert any(matches(file, name) for file in found), f"no {name} was written"


def matches(file, name):
    """By folders: a star stands for a part of one name."""
    one, other = Path(file).parts, Path(name).parts
    return len(one) == len(other) and all(map(fnmatchcase, one, other))


@pytest.mark.parametrize("kind", SECTIONS)
def test_the_keys_and_the_format_of_a_json_file_are_those_that_are_listed(made, kind):
    record = json.loads((made.folders[kind] / f"{kind}.json").read_text())
    keys = re.search(rf"Keys of `{kind}\.json`: (.*?)\.(?: |\n)", section(kind), re.DOTALL)[1]
    assert list(record) == re.findall(r"`(\w+)`", keys)
    formats = {
        row[2].strip("`"): row[3]
        for row in pages.tables(pages.section("reference/files.md", "Formats and versions"))[0]
    }
    assert formats[f"{kind}.json"] == str(record.get("format", "–"))

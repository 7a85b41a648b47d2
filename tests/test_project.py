"""What a contributor and a release rely on agrees with itself: versions, commands, templates."""

import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from eigenlens._version import __version__
from text_files import faults

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
PYTHONS = ["3.11", "3.12", "3.13", "3.14"]


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def parsed(name):
    return yaml.safe_load(read(name))


CI = parsed(".github/workflows/ci.yml")
JOBS = CI["jobs"]


def commands(job):
    """The lines that the steps of a job run."""
    return [line for step in JOBS[job]["steps"] for line in step.get("run", "").splitlines()]


def test_the_two_commands_run_on_every_python_and_both_systems():
    job = JOBS["commands"]
    assert job["strategy"]["matrix"] == {
        "system": ["ubuntu-latest", "macos-latest"],
        "python": PYTHONS,
    }
    assert job["runs-on"] == "${{ matrix.system }}"
    assert {"make demo PYTHON=python", "make test PYTHON=python"} <= set(commands("commands"))
    classifiers = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if ":: 3." in line]
    assert classifiers == PYTHONS and PROJECT["requires-python"] == f">={PYTHONS[0]}"


def test_the_packages_are_built_checked_installed_and_tried():
    lines = " ".join(commands("packages"))
    steps = [
        "-m build",
        "twine check --strict",
        "-m venv",
        "dist/*.whl",
        "--version",
        "study minilm",
    ]
    assert [lines.index(step) for step in steps] == sorted(lines.index(step) for step in steps)


def test_the_workflow_may_read_only_and_names_the_major_versions_of_its_actions():
    assert CI["permissions"] == {"contents": "read"}
    assert CI["concurrency"]["group"]
    for job in JOBS.values():
        assert job["timeout-minutes"] and "permissions" not in job
        for step in job["steps"]:
            assert re.fullmatch(r"actions/[a-z-]+@v\d+", step.get("uses", "actions/none@v1"))
            pip = step.get("uses", "").startswith("actions/setup-python")
            assert not pip or step["with"]["cache"] == "pip"
    for need in JOBS["commands"]["needs"].split():
        assert need in JOBS


def made(target):
    """The commands of a target of the Makefile."""
    found = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", read("Makefile"), re.MULTILINE)
    return [line.strip().replace("$(BIN)", ".venv/bin") for line in found[1].splitlines()]


def test_hooks_before_a_commit_are_what_make_lint_runs():
    hooks = parsed(".pre-commit-config.yaml")["repos"]
    assert [repo["repo"] for repo in hooks] == ["local"]
    entries = {hook["id"]: hook["entry"] for hook in hooks[0]["hooks"]}
    assert entries.pop("text-files") == ".venv/bin/python tests/text_files.py"
    assert list(entries.values()) == made("lint")
    for hook in hooks[0]["hooks"]:
        assert hook["language"] == "system"
        if hook["id"] in entries:
            assert hook["pass_filenames"] is False
    assert shlex.split(entries["mypy"]) == [".venv/bin/mypy"]


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"a", "does not end with a line end"),
        (b"a\n\n", "ends with an empty line"),
        (b"a\r\nb\n", "has line ends of Windows"),
        (b"a\nb \n", "has spaces at the end of line 2"),
        (b">>>>>>> main\n", "has a conflict that is not settled in line 1"),
    ],
)
def test_untidy_text_is_found(content, fault):
    assert list(faults(content)) == [fault]


def test_tidy_text_is_tidy():
    assert not list(faults(b"a\n\nb\n")) and not list(faults(b""))


TEXT = {".py", ".md", ".toml", ".yml", ".yaml", ".cff", ".js", ".css", ".j2", ".json", ".txt", ""}


def test_all_text_of_the_project_is_tidy():
    """Files of git, or of the source archive, which has no others."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    names = [Path(name) for name in listed.stdout.split("\0") if name] or [
        path.relative_to(ROOT)
        for top in ("src", "tests", "docs", "benchmarks", ".github")
        for path in (ROOT / top).rglob("*")
        if "__pycache__" not in path.parts
    ]
    kept = [
        name
        for name in names
        if name.suffix in TEXT and (ROOT / name).is_file() and "written_before" not in name.parts
    ]
    assert len(kept) > 500
    found = {str(name): list(faults((ROOT / name).read_bytes())) for name in kept}
    assert not {name: wrong for name, wrong in found.items() if wrong}


FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


@pytest.mark.parametrize(
    "form", [path for path in FORMS if path.name != "config.yml"], ids=lambda p: p.stem
)
def test_a_form_for_issues_is_complete(form):
    content = yaml.safe_load(form.read_text(encoding="utf-8"))
    assert {"name", "description", "body"} <= set(content)
    ids = [part["id"] for part in content["body"]]
    assert len(ids) == len(set(ids))
    for part in content["body"]:
        assert part["type"] in {"input", "textarea", "dropdown", "checkboxes"}
        assert part["attributes"]["label"]
        assert part["type"] not in {"dropdown", "checkboxes"} or part["attributes"]["options"]
    assert any(part.get("validations", {}).get("required") for part in content["body"])


def test_there_are_forms_for_bugs_claims_and_wishes_and_weaknesses_are_reported_privately():
    assert {form.stem for form in FORMS} == {"bug", "claim", "wish", "config"}
    config = parsed(".github/ISSUE_TEMPLATE/config.yml")
    assert config["contact_links"][0]["url"].endswith("/security/advisories/new")
    assert "make test" in read(".github/pull_request_template.md")


def test_the_citation_names_this_version_and_its_day_if_it_is_released():
    citation = parsed("CITATION.cff")
    assert citation["cff-version"] == "1.2.0" and citation["type"] == "software"
    assert citation["authors"] == [{"name": "The eigenlens contributors"}]
    assert citation["version"] == __version__ and citation["license"] == PROJECT["license"]
    assert citation["repository-code"] == PROJECT["urls"]["Repository"]
    version, when = re.search(r"^## (\S+) \((.+)\)$", read("CHANGELOG.md"), re.MULTILINE).groups()
    assert version == __version__
    released = citation.get("date-released")
    assert when == (str(released) if released else "unreleased")


def test_the_changelog_goes_by_version_the_newest_first():
    log = read("CHANGELOG.md")
    versions = re.findall(r"^## (\d+)\.(\d+)\.(\d+)", log, re.MULTILINE)
    numbers = [tuple(map(int, version)) for version in versions]
    assert numbers == sorted(numbers, reverse=True) and len(set(numbers)) == len(numbers) >= 2
    kinds = re.findall(r"^### (.+)$", log, re.MULTILINE)
    assert kinds and set(kinds) <= {"Added", "Changed", "Fixed", "Removed"}
    for section in log.split("\n## ")[1:]:
        order = re.findall(r"^### (.+)$", section, re.MULTILINE)
        assert order == sorted(set(order), key=["Added", "Changed", "Fixed", "Removed"].index)


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "RELEASING.md"])
def test_commands_and_files_that_contributors_are_told_are_there(page):
    text = read(page)
    targets = set(re.findall(r"^\.PHONY: (.+)$", read("Makefile"), re.MULTILINE)[0].split())
    blocks = "\n".join(re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    assert set(re.findall(r"^make ([a-z-]+)", blocks, re.MULTILINE)) <= targets
    named = set(re.findall(r"\]\(([^)#:]+)\)", text))
    named |= set(re.findall(r"`((?:src|tests)/[\w/.]+)`", text))
    if not (ROOT / "docs" / "developing").is_dir():
        named = {name for name in named if not name.startswith("docs/developing/")}
    for name in named:
        assert (ROOT / name).exists(), name


def test_the_layers_that_contributors_see_are_those_that_are_checked():
    from test_rooms import LAYERS

    rows = re.findall(r"^\| \d \w+ \| (.+?) \|", read("CONTRIBUTING.md"), re.MULTILINE)
    told = [re.findall(r"`(\w+)/`", row) for row in rows]
    rooms = [names for layer, names in LAYERS.items() if layer != "base"]
    assert told == [*reversed(rooms), []]

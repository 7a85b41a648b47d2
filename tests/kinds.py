"""Which tests take what: the markers of every test, set here by its file, its fixtures and its
parameters; and the order in which files run.

`make test-fast` leaves out every kind. A test whose fixtures and file say nothing of what it takes
carries its marker itself.
"""

from pathlib import Path

import pytest

from eigenlens.data import datasets
from eigenlens.models import catalogue
from eigenlens.models.catalogue import DEFAULT_MODEL, MODELS

TESTS = Path(__file__).parent


def files_of(folder):
    """The test files of a folder whose fixtures live as long as its tests run."""
    return tuple(f"{folder}/{path.name}" for path in sorted((TESTS / folder).glob("test_*.py")))


BY_FIXTURE = {
    "browser": {"browser"},
    "cluster": {"cluster", "joined"},
    "download": {"dinov2", "whisper", "reviewed", "pictured"},
    "slow": {"warm", "mini"},
}
"""Fixtures that take what their marker says, for every test that uses them however indirectly."""
BY_FIXTURE_OF_FOLDER = {
    "papers": {"done", "quick", "reproduction"},  # a whole reproduction in its quick form
}
BY_FILE = {
    "cluster": (*files_of("run/cluster"), "run/test_tls.py"),
    "download": (
        "captures/test_catalogue.py",
        "data/test_datasets.py",
        "models/test_catalogue.py",
        "models/test_conversion.py",
        "models/test_stories15m_tokenizer.py",
    ),
    "slow": (
        *files_of("docs"),
        "cli/test_streams.py",
        "fuzz/test_bytes.py",
        "fuzz/test_results.py",
        "fuzz/test_studies.py",
        "studies/test_memory.py",
        "studies/test_memory_under_load.py",
        "test_extras.py",
        "test_notebook.py",
        "test_packages.py",
        "test_threads.py",
    ),
}
TOGETHER = {
    "cluster": (
        "plans/test_plans_on_a_cluster.py",
        "collapses/test_collapses_on_a_cluster.py",
        "papers/test_papers_on_a_cluster.py",
    ),
    "report": (
        "reports/test_accessibility.py",
        "reports/test_diagnoses.py",
        "reports/test_explanations.py",
        "reports/test_heads.py",
        "reports/test_keyboard.py",
        "reports/test_overlaps.py",
        "reports/test_page.py",
        "reports/test_patterns.py",
        "reports/test_results.py",
        "reports/test_saving.py",
    ),
    "inputs": ("data/test_inputs.py", "data/test_input_refusals.py"),
    "targets": (
        "explanations/test_embedding_targets.py",
        "explanations/test_encoded_texts.py",
        "explanations/test_target_refusals.py",
        "explanations/test_token_targets.py",
    ),
    "cli/commands": files_of("cli/commands"),
    "docs": files_of("docs"),
    "explanations/make_explanation": files_of("explanations/make_explanation"),
    "plans/examples": files_of("plans/examples"),
    "run/cluster": files_of("run/cluster"),
    "studies/diagnostic_runner": files_of("studies/diagnostic_runner"),
    "studies/failures": files_of("studies/failures"),
}
"""Files that share what one process builds once: a cluster whose workers have the libraries loaded,
the page of minilm in a browser, models of the catalogue, the studies and plans of a folder.
"""
LONG = (
    "reports/test_accessibility.py",
    "examples/test_scripts.py",
    "examples/test_notebooks.py",
    "studies/failures/test_clusters.py",
    "run/cluster/test_folding.py",
    "studies/test_resume.py",
    "docs/test_site.py",
    "plans/test_plans_on_a_cluster.py",
    "studies/diagnostic_runner/test_catalogue.py",
    "cli/commands/test_bad_input.py",
    "studies/test_memory_under_load.py",
    "fuzz/test_bytes.py",
    "papers/test_eigen_analysis.py",
    "papers/test_explainability.py",
    "papers/test_sinks.py",
    "attention/test_every_mechanism.py",
    "reports/test_kinds_of_studies.py",
    "spectra/test_matrices.py",
    "cli/test_streams.py",
    "reports/test_hostile_words.py",
    "papers/test_induction.py",
    "reports/test_names.py",
    "collapses/test_bounds.py",
    "papers/test_rank_versus_heads.py",
)
"""Files of more than about 15 seconds, the longest first: what comes last should be short, so that
no worker waits long for the other.
"""


def file_of(item):
    return item.path.relative_to(TESTS).as_posix()


def kinds_of(item):
    """The markers that a test gets."""
    file, fixtures = file_of(item), set(item.fixturenames)
    given = getattr(getattr(item, "callspec", None), "params", {}).values()
    yield from (kind for kind, names in BY_FIXTURE.items() if names & fixtures)
    yield from (kind for kind, files in BY_FILE.items() if file in files)
    if BY_FIXTURE_OF_FOLDER.get(file.split("/")[0], set()) & fixtures:
        yield "slow"
    if any(
        isinstance(value, str) and value in MODELS and value != DEFAULT_MODEL for value in given
    ):
        yield "download"


def group_of(file):
    """The name of the files that one process runs together: mostly a single file."""
    return next((name for name, files in TOGETHER.items() if file in files), file)


def in_order(items):
    """Long files first, files that share something beside each other, otherwise as they came."""
    first = {}
    for file in (*LONG, *map(file_of, items)):
        first.setdefault(group_of(file), len(first))
    return sorted(items, key=lambda item: first[group_of(file_of(item))])


def only_the_default_model():
    """From now on whatever would fetch another file than the default model's fails, whether or not
    the file is in the cache already; and pip and npm, in other processes too, fetch nothing.
    """
    catalogue.model_folder(DEFAULT_MODEL)

    def fetch(source):
        pytest.fail(f"{source} is needed: such a test is marked `download`", pytrace=False)

    def installed(name, real=catalogue.is_converted):
        return name == DEFAULT_MODEL and real(name)

    catalogue.fetch = datasets.fetch = fetch
    catalogue.is_converted = installed
    return {"PIP_NO_INDEX": "1", "NPM_CONFIG_OFFLINE": "true"}

"""The examples of the pages run."""

import re

import pytest
from transformers import AttentionInterface, AttentionMaskInterface

from docs.pages import DOCS, text
from eigenlens.anatomy import families
from eigenlens.attention import registry

RUN = re.compile(r"^<!-- run -->\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = {
    "start/first-study.md": 2,
    "guides/my-own-model.md": 3,
    "reference/mechanisms.md": 3,
    "developing/add-a-mechanism.md": 4,
    "developing/add-a-statistic.md": 1,
    "developing/add-a-diagnostic.md": 2,
    "developing/add-a-model-family.md": 6,
    "developing/add-a-paper.md": 1,
}
"""Pages with examples that run, and how many they have at least."""


def test_every_page_with_examples_is_listed():
    found = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert {page for page in found if "\n<!-- run -->\n" in text(page)} == set(PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_a_page_run(page, monkeypatch):
    """All blocks of a page, one after the other.

    What they add to the package is taken away again.
    """
    monkeypatch.setattr(families, "READERS", families.READERS)
    for table in ("_registered", "_known", "_aliases"):
        monkeypatch.setattr(registry, table, dict(getattr(registry, table)))
    for table in (AttentionInterface, AttentionMaskInterface):
        monkeypatch.setattr(table, "_global_mapping", dict(table._global_mapping))
    blocks = list(RUN.finditer(text(page)))
    assert len(blocks) == len(re.findall(r"^<!-- run -->$", text(page), re.MULTILINE))
    assert len(blocks) >= PAGES[page]
    names: dict = {}
    for block in blocks:
        # so that a traceback names the line of the page
        before = "\n" * text(page)[: block.start(1)].count("\n")
        exec(compile(before + block[1], str(DOCS / page), "exec"), names)

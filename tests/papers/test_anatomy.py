"""Every paper has the same files and the same names in them: whoever has read one knows all."""

import importlib
from dataclasses import is_dataclass
from pathlib import Path

import pytest

from eigenlens import papers
from eigenlens.papers.paper import Paper

FOLDERS = sorted(path.parent for path in Path(papers.__file__).parent.glob("*/__init__.py"))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_paper_is_a_scale_a_measurement_claims_and_pictures(folder):
    module, claims, pictures = (
        importlib.import_module(f"eigenlens.papers.{folder.name}{part}")
        for part in ("", ".claims", ".pictures")
    )
    paper = module.paper
    assert isinstance(paper, Paper) and papers.PAPERS[paper.name] is paper
    assert paper.name.replace("-", "_") == folder.name
    assert is_dataclass(module.Scale)
    assert (paper.full, paper.quick) == (module.FULL, module.QUICK)
    assert {type(paper.full), type(paper.quick)} == {module.Scale}
    assert paper.measure is module.measure and paper.shown is module.SHOWN
    assert paper.claims is claims.claims_of
    assert paper.charts is pictures.charts
    assert module.__doc__ and claims.__doc__ and pictures.__doc__


def test_every_paper_can_be_found_by_its_name():
    assert len(papers.PAPERS) == len(FOLDERS) == 18
    assert all(papers.find_paper(name) is paper for name, paper in papers.PAPERS.items())

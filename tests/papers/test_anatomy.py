"""Every paper has the same files and the same names in them: whoever has read one knows all."""

import importlib
from dataclasses import is_dataclass
from pathlib import Path

import pytest

from eigenlens import papers
from eigenlens.papers.claims import Claim, Reproduction
from eigenlens.papers.paper import Paper
from papers.contract import check_claims
from papers.small_paper import small_paper

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
    assert paper.thorough is None or isinstance(paper.thorough, module.Scale)
    assert paper.measure is module.measure and paper.shown is module.SHOWN
    assert paper.claims is claims.claims_of
    assert paper.charts is pictures.charts
    assert module.__doc__ and claims.__doc__ and pictures.__doc__


def test_every_paper_can_be_found_by_its_name():
    assert len(papers.PAPERS) == len(FOLDERS)
    assert all(papers.find_paper(name) is paper for name, paper in papers.PAPERS.items())


GOOD = ("it holds", "stated", 1.0, None, "reproduced if at most 1", "reproduced", "", "")
BAD = {
    "has no criterion": {4: ""},
    "nothing published": {1: "–"},
    "and no claim": {1: "not in the paper"},
    "without a reason": {5: "not reproduced"},
    "though it does not fail": {7: "the claim: it is so"},
}


@pytest.mark.parametrize("words", BAD)
def test_the_contract_of_claims_is_checked(words):
    """The runs of all papers in these tests are held to it (`conftest.py`)."""
    check_claims(Reproduction("good", "A paper", (Claim(*GOOD),), tables={}))
    bad = [BAD[words].get(at, value) for at, value in enumerate(GOOD)]
    with pytest.raises(AssertionError, match=words):
        check_claims(Reproduction("bad", "A paper", (Claim(*bad),), tables={}))


def test_runs_of_papers_are_held_to_the_contract(tmp_path):
    claim = Claim("it holds", "stated", 1.0, None, "", "reproduced", "")
    careless = small_paper()
    object.__setattr__(careless, "claims", lambda tables, quick: (claim,))
    with pytest.raises(AssertionError, match="has no criterion"):
        careless("quick", tmp_path / "run")

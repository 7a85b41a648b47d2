"""What `results/` holds of papers: complete, what `reproduce` writes, and claims that follow."""

from dataclasses import fields

import pytest

from builder.pictures import DRAWN, charts, digest, mark_of
from builder.questions import QUESTIONS
from builder.results import Results
from docs.pages import ROOT
from eigenlens.papers import PAPERS, Claim, Reproduction
from eigenlens.papers.claims import SCHEMA
from eigenlens.run.schema import check_schema
from maker.header import FORMAT
from maker.papers import judge, missing
from maker.store import as_text, packed

RESULTS = Results()
HEADER = {
    *("format", "kind", "command", "commit", "code", "versions", "machine", "seed", "date"),
    *("seconds", "size", "cut_down", "digits", "left_out", "result"),
}
THERE = sorted(RESULTS.papers)
every_result = pytest.mark.parametrize("name", THERE)


def test_the_list_of_missing_results_names_exactly_those():
    listed = missing()
    assert len(listed) == len(set(listed))
    assert set(listed) == set(PAPERS) - set(THERE)


def test_every_result_is_of_a_paper():
    assert set(THERE) <= set(PAPERS)


def test_every_paper_has_its_question():
    assert list(QUESTIONS) and set(QUESTIONS) == set(PAPERS)


def test_all_results_were_made_by_the_same_code():
    assert len({RESULTS.papers[name]["code"] for name in THERE}) <= 1


@every_result
def test_the_header_is_complete(name):
    record = RESULTS.papers[name]
    assert set(record) == HEADER
    assert record["format"] == FORMAT and record["kind"] == "reproduction"
    assert record["command"].startswith(f"eigenlens reproduce {name}")
    assert record["size"] in ("full", "thorough")
    assert len(record["commit"]) == len(record["code"]) == 40
    assert record["seconds"] > 0 and all(record["versions"].values())


@every_result
def test_the_record_is_what_reproduce_writes(name):
    result = RESULTS.papers[name]["result"]
    check_schema(result, SCHEMA, name)
    again = Reproduction.from_record(result).record()
    assert list(again) == list(result) and again == result
    assert {key for claim in result["claims"] for key in claim} == {f.name for f in fields(Claim)}
    assert result["title"] == PAPERS[name].title
    assert [list(pair) for pair in PAPERS[name].shown] == result["shown"]


@every_result
def test_the_settings_are_those_of_the_code(name):
    """The parameters that the code names now were those of the run."""
    record = RESULTS.papers[name]
    scale = PAPERS[name].scale(record["size"])
    named = {"paper", "seed", *(field.name for field in fields(scale))}
    assert set(record["result"]["settings"]) == named, "not a run of the paper's own models"


@every_result
def test_the_claims_follow_from_the_stored_tables(name):
    record = RESULTS.papers[name]
    made = judge(PAPERS[name], record["result"]["tables"], record["size"], record["digits"])
    assert made and as_text(made) == as_text(record["result"]["claims"])


@every_result
def test_a_claim_that_is_not_reproduced_has_its_reason(name):
    for claim in RESULTS.papers[name]["result"]["claims"]:
        assert claim["criterion"]
        assert bool(claim["reason"]) == (claim["verdict"] == "not reproduced"), claim["claim"]


@every_result
def test_a_file_can_be_read_and_compared(name):
    text = (ROOT / "results" / f"{name}.json").read_text(encoding="utf-8")
    assert text == as_text(packed(RESULTS.papers[name])) + "\n"
    assert len(text) < 1_000_000


def test_pictures_are_drawn_from_the_results():
    for name, chart in charts(RESULTS):
        path = ROOT / "docs" / "pictures" / f"{name}.png"
        assert mark_of(path) == digest(chart), f"{name}: run python docs/build.py --fill"


def test_every_picture_of_a_paper_is_one_that_is_drawn():
    for page in (ROOT / "docs" / "papers").glob("*.md"):
        for part in page.read_text(encoding="utf-8").split("](../pictures/")[1:]:
            assert DRAWN[part.split(".png")[0]][0] == page.stem
    assert {paper for paper, _ in DRAWN.values()} <= set(PAPERS)

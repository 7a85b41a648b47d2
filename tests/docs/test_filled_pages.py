"""Nobody types what comes from `results/`, and no sentence names another figure."""

import json

import pytest

from builder.figures import sources_of, unknown, wrong_kinds
from builder.filling import filled_pages
from builder.results import BLOCK, INLINE, Page, Results, WrongMarker, blocks, without_markers
from docs.pages import ROOT
from eigenlens.papers import PAPERS

RESULTS = Results()
PAGES = [path.relative_to(ROOT).as_posix() for path in filled_pages(ROOT)]


def text(place):
    return (ROOT / place).read_text(encoding="utf-8")


OWN = [place for place in PAGES if sources_of(place, text(place), RESULTS)]
"""Pages of one result or of one benchmark, that is there."""


@pytest.mark.parametrize("place", PAGES)
def test_the_source_holds_what_the_results_give(place):
    filled = Page(place, RESULTS).fill(text(place))
    assert filled == text(place), "typed by hand, or not filled: run python docs/build.py --fill"


@pytest.mark.parametrize("place", PAGES)
def test_every_marker_has_its_end(place):
    page = text(place)
    assert page.count("<!-- results: ") == len(list(BLOCK.finditer(page)))
    assert page.count("<!-- end of results -->") == len(list(BLOCK.finditer(page)))
    assert page.count("<!--=") == len(list(INLINE.finditer(page)))
    assert not wrong_kinds(page)


@pytest.mark.parametrize("name", PAPERS)
def test_the_page_of_a_paper_has_its_claims_and_its_run(name):
    words = [block[0] for block in blocks(text(f"docs/papers/{name}.md"))]
    assert words.count("claims") == words.count("run") == 1


@pytest.mark.parametrize("place", OWN)
def test_every_figure_of_a_sentence_is_in_the_results(place):
    assert not unknown(text(place), sources_of(place, text(place), RESULTS))


def test_pages_of_benchmarks_are_among_them():
    assert len([place for place in OWN if place.startswith("benchmarks/")]) == 12


def test_the_sentences_of_a_benchmark_hold_the_figures_that_were_transcribed():
    """A figure that a page lost is struck from its list too."""
    for name, record in RESULTS.benchmarks.items():
        if name.endswith("-sentences"):
            (place,) = [p for p in PAGES if p.endswith(f"/{name.removesuffix('-sentences')}.md")]
            for row in record["rows"]:
                assert row["figure"] in text(place), (name, row)


def test_transcriptions_say_so():
    for name, record in RESULTS.benchmarks.items():
        assert (record["code"] is None) == ("provenance" in record), name
        if record["code"] is None:
            assert "transcribed" in record["provenance"] and record["stated"]


RECORD = {
    "seconds": 157.2,
    "command": "eigenlens reproduce gated",
    "cut_down": {"seeds": [2, 6]},
    "seed": 0,
    "date": "2030-01-02",
    "commit": "0123456789abcdef",
    "versions": {"eigenlens": "9", "torch": "9.1", "transformers": "9.2", "python": "3.99"},
    "machine": {
        "processor": "Abacus",
        "instructions": "beads",
        "cores": 2,
        "threads": 1,
        "engine": "local",
        "workers": 1,
    },
    "result": {
        "claims": [
            {
                "claim": f"claim {number}",
                "published": "31–123",
                "measured": 0.58349,
                "interval": [0.5, 0.7],
                "criterion": "reproduced if at most 0.25",
                "verdict": "not reproduced",
                "note": "median head",
                "reason": "the scale: it is 0.21 at half the width",
            }
            for number in (1, 2)
        ],
        "tables": {
            "runs": [
                {"gate": gate, "seed": seed, "loss_low": 2.0, "loss_high": 3.5, "loss": 2 + seed}
                for gate in ("none", "G1")
                for seed in (0, 1)
            ]
        },
        "settings": {"steps": 4321},
    },
}


@pytest.fixture
def page(tmp_path):
    """The page of a paper with a result, on which anything can stand."""
    (tmp_path / "gated.json").write_text(json.dumps(RECORD))
    return Page("docs/papers/gated.md", Results(tmp_path))


def block(words):
    return f"<!-- results: {words} -->\n<!-- end of results -->\n"


def test_a_block_is_filled_once_and_for_all(page):
    filled = page.fill(block("claims"))
    row = "| 1 | claim 1 | 31–123 | 0.583 | 0.500 – 0.700 | not reproduced |"
    assert row in filled
    words = "Reproduced if at most 0.25. Median head. The scale: it is 0.21 at half the width."
    assert f"- **1–2** {words}" in filled
    assert page.fill(filled) == filled
    assert page.fill(filled.replace("0.583", "0.284")) == filled


def test_a_table_has_the_columns_and_rows_that_are_asked_for(page):
    words = 'table runs columns="gate = place | loss_low .. loss_high = range @ .1f" where="seed=1"'
    lines = page.fill(block(words)).splitlines()
    assert lines[2:6] == [
        "| place | range |",
        "|---|---|",
        "| none | 2.0 – 3.5 |",
        "| G1 | 2.0 – 3.5 |",
    ]


def test_a_column_can_be_spread(page):
    filled = page.fill(block('table runs columns="gate" across="seed" value="loss"'))
    assert "| gate | 0 | 1 |" in filled and "| G1 | 2 | 3 |" in filled


def test_rows_that_would_share_a_cell_are_refused(page):
    with pytest.raises(WrongMarker, match="two rows"):
        page.fill(block('table runs columns="loss_low" across="seed" value="loss"'))


def test_the_run_says_what_was_cut_down(page):
    filled = page.fill(block("run"))
    assert "`eigenlens reproduce gated` took 2.6 minutes with 1 thread on 2 cores" in filled
    assert "`seeds` 2 instead of 6" in filled and "2030-01-02" in filled


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("claims[2].measured:.2f", "0.58"),
        ("claims[2].measured:~.1f", ".6"),
        ("claims[1].measured:.0%", "58 %"),
        ("claims[1].published", "31–123"),
        ("tables.runs[gate=G1, seed=1].loss:d", "3"),
        ("mean tables.runs[gate=G1].loss:.1f", "2.5"),
        ("count tables.runs[gate=G1]", "2"),
        ("sum tables.runs.loss:.0f", "10"),
        ("gated/seconds:.0f", "157"),
        ("settings.steps", "4,321"),
    ],
)
def test_a_figure_is_filled_by_its_path(page, path, shown):
    assert page.fill(f"it is <!--={path}-->?<!--/--> here") == (
        f"it is <!--={path}-->{shown}<!--/--> here"
    )


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (block("table losses"), "no table 'losses'; there are runs"),
        (block('table runs columns="los"'), "no column 'los'"),
        (block('table runs where="place=G1"'), "no column 'place'"),
        (block("claim"), "no block"),
        ("<!--=claims[3].measured-->?<!--/-->", "there are 2"),
        ("<!--=tables.runs[gate=G1].loss-->?<!--/-->", "2 rows have it"),
        ("<!--=tables.runs.__class__-->?<!--/-->", "nothing is called '__class__'"),
    ],
)
def test_a_marker_that_leads_nowhere_is_an_error(page, text, wrong):
    with pytest.raises(WrongMarker, match=wrong):
        page.fill(text)


def test_what_belongs_to_no_result_stays_as_it_is(page):
    for words in ("claims paper=sinks", "papers", "benchmark nothing"):
        typed = f"<!-- results: {words} -->\n| typed |\n<!-- end of results -->\n"
        assert page.fill(typed) == typed
    typed = "<!--=sinks/claims[1].measured-->0.7<!--/-->"
    assert page.fill(typed) == typed


def test_the_site_shows_no_markers(page):
    filled = page.fill(
        block("claims") + "a <!--=seconds:.0f--><!--/--> b <!--~ theory-->2.7<!--/-->"
    )
    assert "<!--" not in without_markers(filled) and "a 157 b 2.7" in without_markers(filled)


@pytest.mark.parametrize(
    "sentence",
    [
        "it is 0.58",
        "it is .583",
        "it is 58 % of 4,321 steps",
        "published 31–123",
        "in arXiv 2602.01468 of 2026-01-31, claim 99, layers 28 and 29, L30H31",
        "`--steps 77` and $x_{99}$",
        "17 models",
        "<!--~ theory-->2.718<!--/-->",
        "<!--=claims[1].measured:.2f-->0.99<!--/-->",
        "with torch 2.13",
    ],
)
def test_figures_that_are_known(sentence):
    assert not unknown(sentence, [RECORD])


@pytest.mark.parametrize(
    "sentence", ["it is 0.59", "it is .284", "59 %", "4,322 steps", "x 0.6e-3"]
)
def test_figures_that_nobody_measured_are_found(sentence):
    assert len(unknown(sentence, [RECORD])) == 1


def test_a_long_table_is_not_searched(tmp_path):
    """Among a thousand shares there is every figure of two digits."""
    rows = [{"share": n / 1000} for n in range(1000)]
    tables = {**RECORD["result"]["tables"], "maps": rows}
    record = {**RECORD, "result": {**RECORD["result"], "tables": tables}}
    (tmp_path / "gated.json").write_text(json.dumps(record))
    results, place = Results(tmp_path), "docs/papers/gated.md"
    assert unknown("it is 0.77", sources_of(place, "", results))
    assert not unknown("it is 0.58", sources_of(place, "", results))
    given = Page(place, results).fill("<!--=max tables.maps.share:.2f--><!--/-->")
    assert "1.00" in given and not unknown(given, sources_of(place, "", results))

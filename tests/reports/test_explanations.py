"""Explanations on the page: coloured tokens that everyone can read, maps of patches, deletion
curves, and tables.
"""

import io
import re
import xml.etree.ElementTree as ET

import pytest
from axe_playwright_python.sync_playwright import Axe
from PIL import Image

import eigenlens as el
from eigenlens.reports.gather import gather
from explanations.handmade import handmade
from reports.browser import Shown, column
from reports.test_accessibility import CONTRAST, contrast

TEXT = [
    "the",
    "cat",
    "sat",
    "on",
    "the",
    "mat",
    "and",
    "looked",
    "at",
    "the",
    "very",
    "small",
    "dog",
    "of",
    "its",
    "neighbour",
]
SCRIPT = "<script>window.hacked=1</script>"
PICTURE = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


@pytest.fixture(scope="module")
def made():
    return handmade(("[CLS]", *TEXT, "[SEP]"))


@pytest.fixture(scope="module")
def patches():
    return handmade(
        ("cls", *(f"{i},{j}" for i in range(4) for j in range(5))), grid=[4, 5], picture=PICTURE
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory, made, patches):
    """Two explanations on one page: of a text, and of a picture."""
    place = tmp_path_factory.mktemp("explanations")
    made.save(place / "text")
    patches.save(place / "picture")
    el.report(place / "text", place / "picture", output=place / "page.html")
    return place


@pytest.fixture(scope="module")
def shown(browser, folder):
    with Shown(browser, folder / "page.html") as found:
        yield found


def test_every_token_of_every_method_has_its_colour_and_its_number(shown, made):
    for number, method in enumerate(made.methods):
        line = shown.page.locator("#explanation0 .line").nth(number)
        assert line.locator("h4").inner_text() == method
        tokens = line.locator(".token")
        assert tokens.count() == len(made.tokens)
        classes = tokens.evaluate_all("all => all.map(x => x.className)")
        titles = tokens.evaluate_all("all => all.map(x => x.title)")
        heard = tokens.evaluate_all("all => all.map(x => x.textContent)")
        for i, (token, level) in enumerate(zip(made.tokens, made.levels(method))):
            name = f"{'for' if level > 0 else 'against'}-{abs(level)}" if level else "none"
            assert name in classes[i].split()
            assert titles[i] == f"{token}: {made.scores[method][i]:.3g}"
            # what a screen reader says
            assert heard[i].split() == [token, f"{made.scores[method][i]:.3g};"]
            assert ("strong" in classes[i].split()) == (i in made.strongest(method))


def test_stronger_is_redder_and_against_is_blue(shown, made):
    """By the colours the browser really paints."""
    colours = (
        shown.page.locator("#explanation0 .line")
        .nth(1)
        .locator(".token")
        .evaluate_all("all => all.map(x => getComputedStyle(x).backgroundColor)")
    )
    parts = [[float(x) for x in re.findall(r"[\d.]+", colour)[:3]] for colour in colours]
    levels = made.levels("gradient × input")
    red = {level: rgb[0] - rgb[2] for level, rgb in zip(levels, parts)}
    known = [red[level] for level in sorted(red) if level]
    assert known == sorted(known) and known[0] < 0 < known[-1]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_words_on_every_colour_can_be_read(show, folder, theme):
    shown = show(folder / "page.html")
    shown.page.select_option("#theme", theme)
    shown.unfold()
    found = shown.page.evaluate(CONTRAST)
    assert sum("token" in entry[2] or "BDI" in entry[2] for entry in found) >= 3 * len(TEXT)
    poor = {
        what: round(contrast(under, ink), 2)
        for under, ink, what in found
        if contrast(under, ink) < 4.5
    }
    assert not poor
    violations = Axe().run(shown.page).response["violations"]
    assert not {
        v["id"]: v["nodes"][0]["html"][:200]
        for v in violations
        if v["impact"] in {"serious", "critical"}
    }


def test_a_map_has_a_cell_for_every_patch_and_the_picture_beside_it(shown, patches):
    assert shown.page.locator("#explanation1 img.seen").evaluate("x => x.naturalWidth") == 1
    for number, method in enumerate(patches.methods):
        cells = shown.page.locator("#explanation1 svg.patches").nth(number).locator("rect")
        assert cells.count() == 20
        places = cells.evaluate_all(
            "all => all.map(x => [x.getAttribute('x'), x.getAttribute('y'), x.textContent])"
        )
        for i, (x, y, text) in enumerate(places):
            assert (int(y), int(x)) == divmod(i, 5)
            assert text == f"row {i // 5}, column {i % 5}: {patches.scores[method][1 + i]:.3g}"
    told = shown.page.locator("#explanation1 svg.patches").first.get_attribute("aria-label")
    assert "4 by 5 patches" in told and "row 3, column 4: 20" in told
    assert shown.page.locator("#explanation1 .token").first.inner_text().split()[0] == "cls"


def test_its_tables_and_curves_save_their_numbers(shown, made):
    shown.unfold()
    tokens = shown.csv('[data-csv="explanation0-tokens"]')
    assert [row["token"] for row in tokens] == made.tokens
    assert column(tokens, "relevance") == made.scores["relevance"]
    areas = shown.csv('[data-csv="explanation0-areas"]')
    assert [(row["method"], float(row["positive"]), float(row["negative"])) for row in areas] == [
        (row["method"], pytest.approx(row["positive"]), pytest.approx(row["negative"]))
        for row in made.areas()
    ]
    points = shown.figure("explanation0-deletion")
    assert column(points, "score", method="relevance", order="positive") == [0.8, 0.2, 0.1]
    assert len(points) == len(made.curves())
    root = ET.fromstring(shown.figure("explanation0-deletion", "svg"))
    words = " ".join(
        "".join(text.itertext()) for text in root.iter("{http://www.w3.org/2000/svg}text")
    )
    assert "cosine" in words and "most relevant first" in words
    assert Image.open(io.BytesIO(shown.figure("explanation0-deletion", "png"))).width > 300


def test_it_reads_without_a_script(show, folder, made):
    shown = show(folder / "page.html", ready=False, java_script_enabled=False)
    text = shown.page.locator("#explanation0").inner_text()
    assert made.sentence in text and "Red tokens speak for the target" in text
    warning = shown.page.locator(".warning").inner_text()
    # there are none
    assert "need JavaScript" in warning and "heads" not in warning and "map" not in warning
    assert shown.page.locator("#explanation0 .token:visible").count() == 3 * len(made.tokens)
    assert shown.page.locator("#explanation1 svg.patches:visible").count() == 3
    assert (
        len(
            set(
                shown.page.locator("#explanation0 .line")
                .first.locator(".token")
                .evaluate_all("all => all.map(x => getComputedStyle(x).backgroundColor)")
            )
        )
        > 5
    )


def test_it_fits_a_phone_and_complains_of_nothing(show, folder):
    shown = show(folder / "page.html", viewport={"width": 390, "height": 800})
    shown.unfold()
    shown.settle()
    assert shown.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert shown.complaints == []
    assert [url for url in shown.requests[1:] if not url.startswith(("blob:", "data:"))] == []


def test_headings_are_in_order_and_names_are_unique(shown):
    levels = shown.page.eval_on_selector_all(
        "h1, h2, h3, h4, h5, h6", "all => all.map(x => Number(x.tagName[1]))"
    )
    assert all(below - above <= 1 for above, below in zip(levels, levels[1:]))
    ids = shown.page.eval_on_selector_all(
        "body [id]", "all => all.filter(x => !x.closest('svg')).map(x => x.id)"
    )
    assert len(ids) == len(set(ids))
    regions = shown.page.eval_on_selector_all(
        "[role=region]", "all => all.map(x => x.getAttribute('aria-label'))"
    )
    # though both explanations have one name
    assert len(regions) == 5 and len(regions) == len(set(regions))
    assert sum("mini: similarity to 'a dog'" in region for region in regions) == 4


def test_the_legend_tells_the_scale(shown, made):
    """[SEP] scores more than any token that can be taken away, and has the full colour as that
    has.
    """
    legend = shown.page.locator("#explanation0 > .quiet").first.inner_text()
    assert "full colour is its largest score among the tokens that can be taken away" in legend
    assert made.scores["relevance"][-1] > made.scores["relevance"][-2]
    assert made.levels("relevance")[-2:] == [10, 10]


def test_tokens_that_want_to_be_code_are_text(show, tmp_path):
    tokens = (
        "[CLS]",
        SCRIPT,
        '"><img src=x onerror="window.hacked=1">',
        "\u202eabc",
        "\ud800",
        "{{7*7}}",
        "x" * 5000,
        "[SEP]",
    )
    shown = show(
        el.report(
            handmade(tokens, picture='" onerror="window.hacked=1'), output=tmp_path / "page.html"
        )
    )
    shown.settle()
    assert shown.page.evaluate("typeof window.hacked") == "undefined"
    assert shown.complaints == [] and shown.dialogs == []
    assert shown.page.locator("#explanation0 img").count() == 0
    words = shown.page.locator("#explanation0 .line").first.locator("bdi").all_inner_texts()
    assert (
        words[1].startswith("<script>")
        and words[3:5] == ["\\u202eabc", "\\ud800"]
        and words[5] == "{{7*7}}"
    )
    assert "5,000 characters" in words[6]


def test_a_long_strip_of_frames_is_put_together(tmp_path):
    html = el.report(
        handmade(tuple(f"frame {i}" for i in range(1000)), grid=[1, 1000]),
        output=tmp_path / "p.html",
    ).read_text()
    assert html.count("<rect ") == 3 * 200
    assert "strip" in html and "frame 999: 999" in html


def test_a_page_of_explanations_alone_asks_for_no_study(shown, tiny, folder, tmp_path):
    assert shown.page.locator("main > section").evaluate_all("all => all.map(x => x.id)") == [
        "summary",
        "explanations",
        "made",
    ]
    both = el.report(tiny.study, folder / "text", output=tmp_path / "both.html").read_text(
        encoding="utf-8"
    )
    assert 'id="heads"' in both and 'id="explanation0"' in both
    without = tiny.page.read_text(encoding="utf-8")
    assert "No explanation was given" in without


def test_folders_and_objects_are_gathered(folder, made):
    found = gather([folder])
    assert [one.record() for one in found.of(el.Explanation)] == [
        el.Explanation.open(folder / name).record() for name in ("picture", "text")
    ]
    assert gather([made, made]).of(el.Explanation) == [made]
    one = el.report(made, output=folder / "one.html").read_bytes()
    assert el.report(folder / "text", output=folder / "two.html").read_bytes() == one

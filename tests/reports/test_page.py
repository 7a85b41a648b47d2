"""The page as a whole: it loads without a word or a request, fits its window, prints, and reads
without JavaScript.
"""

import re

import eigenlens as el


def test_it_loads_without_a_complaint_and_asks_for_nothing(mini_shown, mini):
    assert mini_shown.complaints == []
    assert mini_shown.requests[0] == mini.page.as_uri()
    assert [url for url in mini_shown.requests[1:] if not url.startswith(("blob:", "data:"))] == []
    assert mini_shown.page.locator(".figure .chart:visible").count() >= 10
    empty = mini_shown.page.eval_on_selector_all(
        ".figure .chart",
        "all => all.filter(x => x.clientWidth && !x.querySelector('svg, canvas')).length",
    )
    assert empty == 0


def test_it_needs_no_network(show, tiny):
    shown = show(tiny.page, offline=True)
    assert shown.complaints == []
    assert shown.page.locator("#heads0-name").inner_text() == "L0H0"
    assert shown.page.locator("[data-figure=heads0-spectrum] svg").count() == 1


def test_the_policy_allows_no_script_or_style_but_its_own(tiny):
    html = tiny.page.read_text(encoding="utf-8")
    [policy] = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', html)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.replace("&#39;", "'").split(";"))
    assert rules["default-src"] == "'none'"
    assert "unsafe" not in policy
    for kind in ("script-src", "style-src"):
        assert all(source.startswith("'sha256-") for source in rules[kind].split())
    assert "http" not in policy
    assert html.index("Content-Security-Policy") < html.index("<style")


def test_nothing_makes_the_page_scroll_sideways(show, mini):
    """On a phone, and after the window has grown."""
    shown = show(mini.page, viewport={"width": 390, "height": 800})
    shown.unfold()
    for width in (380, 1280):
        shown.resize(width, 800)
        assert shown.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert shown.page.locator("h1").bounding_box()["width"] <= width
    assert shown.complaints == []


def test_the_theme_can_be_chosen(show, tiny):
    shown = show(tiny.page, color_scheme="light")
    background = "getComputedStyle(document.body).backgroundColor"
    light = shown.page.evaluate(background)
    shown.page.select_option("#theme", "dark")
    dark = shown.page.evaluate(background)
    assert brightness(light) > 200
    assert brightness(dark) < 60
    shown.page.select_option("#theme", "auto")
    assert shown.page.evaluate(background) == light
    shown.page.emulate_media(color_scheme="dark")
    assert shown.page.evaluate(background) == dark


def brightness(colour):
    return sum(map(int, re.findall(r"\d+", colour)[:3])) / 3


def test_it_prints(show, tiny):
    """On paper there is nothing to press, and the colours are those of paper."""
    shown = show(tiny.page)
    shown.page.select_option("#theme", "dark")
    pdf = shown.page.pdf()
    assert pdf.startswith(b"%PDF-")
    assert len(pdf) > 30_000
    shown.page.emulate_media(media="print")
    for hidden in ("nav", ".tools", ".controls", ".theme"):
        assert shown.page.locator(hidden).count() > 0
        assert shown.page.locator(f"{hidden}:visible").count() == 0
    assert shown.page.locator("main h2:visible").count() >= 5
    assert brightness(shown.page.evaluate("getComputedStyle(document.body).backgroundColor")) > 200


def test_without_javascript_the_words_and_numbers_are_there(show, mini):
    shown = show(mini.page, ready=False, java_script_enabled=False)
    text = shown.page.locator("main").inner_text()
    assert mini.collapse.sentence in text
    assert mini.evaluation.sentence in text
    assert "need JavaScript" in text
    expected = [r["rows_centred_held_out_dimension_90"] for r in mini.study.record()["heads"]]
    cells = shown.page.locator("#heads0 [data-head]").all_inner_texts()
    assert [int(cell) for cell in cells if ">" not in cell] == [
        value for value in expected if value is not None
    ]
    assert len(cells) == len(expected)
    rows = shown.page.locator("[data-table=plan0-choices] tbody tr")
    assert rows.count() == len(mini.plan.choices)
    assert (
        mini.plan.choices[0].estimator
        in shown.page.locator("[data-table=plan0-choices] tbody").text_content()
    )


def test_the_same_results_give_the_same_page(tiny, tmp_path):
    """Whether they are given as objects or by their folders."""
    one = el.report(tiny.study, tiny.plan, output=tmp_path / "one.html")
    two = el.report(tiny.folder / "study", tiny.folder / "plan", output=tmp_path / "two.html")
    assert one.read_bytes() == two.read_bytes()

"""The page for everyone: names for all controls, pictures with words, headings in order, and
colours that can be read.
"""

import pytest
from axe_playwright_python.sync_playwright import Axe

CONTRAST = """() => {
  const context = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const known = new Map();
  const rgb = (colour, under) => {
    const key = `${colour} on ${under}`;
    if (!known.has(key)) known.set(key, mixed(colour, under));
    return known.get(key);
  };
  const mixed = (colour, under) => {
    context.fillStyle = `rgb(${under.join(",")})`; context.fillRect(0, 0, 1, 1);
    context.fillStyle = colour; context.fillRect(0, 0, 1, 1);
    return [...context.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const grounds = new Map([[null, [255, 255, 255]]]);
  const behind = (e) => {
    if (!grounds.has(e)) grounds.set(e, rgb(getComputedStyle(e).backgroundColor, behind(e.parentElement)));
    return grounds.get(e);
  };
  const words = (e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
  return [...document.querySelectorAll("body *:not(script, style, noscript, svg *, option)")]
    .filter((e) => words(e) && e.checkVisibility() && !e.matches(".unseen"))
    .map((e) => [behind(e), rgb(getComputedStyle(e).color, behind(e)), `${e.tagName} ${e.className} ${e.textContent.slice(0, 30)}`]);
}"""


def luminance(colour):
    """Relative luminance of sRGB, as the accessibility guidelines define it."""
    parts = [
        c / 255 / 12.92 if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4
        for c in colour
    ]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def contrast(one, two):
    low, high = sorted((luminance(one), luminance(two)))
    return (high + 0.05) / (low + 0.05)


def test_the_formula_of_contrast():
    assert contrast((0, 0, 0), (255, 255, 255)) == pytest.approx(21)
    assert contrast((119, 119, 119), (255, 255, 255)) == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_all_text_can_be_read(mini_shown, theme):
    """4.5 to 1 for every word of the page: body, quiet text, links, buttons, table heads, cells of
    every map.
    """
    page = mini_shown.page
    page.select_option("#theme", theme)
    mini_shown.unfold()
    names = page.eval_on_selector_all(
        "#heads0 [data-metric] option", "all => all.map(x => x.value)"
    )
    found = page.evaluate(CONTRAST)
    for name in names[1:]:
        page.select_option("#heads0 [data-metric]", name)
        found += [
            entry
            for entry in page.evaluate(CONTRAST.replace("body *", "#heads0 .grid *"))
            if "BUTTON" in entry[2]
        ]
    page.select_option("#heads0 [data-metric]", index=0)
    page.select_option("#theme", "auto")
    assert {"A", "P", "BUTTON", "TH", "TD", "H2", "SUMMARY"} <= {
        entry[2].split()[0] for entry in found
    }
    poor = {
        what: round(contrast(under, ink), 2)
        for under, ink, what in found
        if contrast(under, ink) < 4.5
    }
    assert not poor


def test_every_control_has_a_name(mini_shown):
    """By the browser's own reckoning."""
    client = mini_shown.page.context.new_cdp_session(mini_shown.page)
    nodes = client.send("Accessibility.getFullAXTree")["nodes"]
    kinds = {
        "button",
        "combobox",
        "slider",
        "link",
        "region",
        "img",
        "image",
        "navigation",
        "DisclosureTriangle",
    }
    controls = [n for n in nodes if not n["ignored"] and n["role"]["value"] in kinds]
    assert {"button", "combobox", "slider", "link"} <= {n["role"]["value"] for n in controls}
    assert [
        n["role"]["value"] for n in controls if not n.get("name", {}).get("value", "").strip()
    ] == []


def test_every_chart_is_an_image_with_words(mini_shown):
    charts = mini_shown.page.eval_on_selector_all(
        ".chart", "all => all.map(x => [x.getAttribute('role'), x.getAttribute('aria-label')])"
    )
    assert len(charts) >= 10
    assert all(role == "img" and len(label.strip()) > 20 for role, label in charts)


def test_headings_are_in_order(mini_shown):
    levels = mini_shown.page.eval_on_selector_all(
        "h1, h2, h3, h4, h5, h6", "all => all.map(x => Number(x.tagName[1]))"
    )
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(below - above <= 1 for above, below in zip(levels, levels[1:]))


def test_landmarks(mini_shown):
    for landmark in ("header", "nav[aria-label]", "main"):
        assert mini_shown.page.locator(landmark).count() == 1
    sections = mini_shown.page.eval_on_selector_all(
        "main > section",
        "all => all.map(x =>"
        " document.getElementById(x.getAttribute('aria-labelledby'))?.textContent.trim())",
    )
    assert len(sections) >= 5
    assert all(sections)
    assert mini_shown.page.get_attribute("html", "lang") == "en"
    links = mini_shown.page.eval_on_selector_all(
        "nav a", "all => all.map(x => Boolean(document.querySelector(x.hash)))"
    )
    assert len(links) >= 6
    assert all(links)


def test_identifiers_are_unique(mini_shown):
    ids = mini_shown.page.eval_on_selector_all(
        "body [id]", "all => all.filter(x => !x.closest('svg')).map(x => x.id)"
    )
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious(show, tiny, theme):
    shown = show(tiny.page)
    shown.page.select_option("#theme", theme)
    shown.unfold()
    found = Axe().run(shown.page).response["violations"]
    serious = {
        v["id"]: v["nodes"][0]["html"][:200]
        for v in found
        if v["impact"] in {"serious", "critical"}
    }
    assert not serious


def test_motion_and_zoom_are_the_reader_s(mini_shown):
    content = mini_shown.page.get_attribute("meta[name=viewport]", "content")
    assert "maximum-scale" not in content
    assert "user-scalable" not in content

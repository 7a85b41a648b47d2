"""What the page saves: tables and pictures with the numbers they show."""

import io
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from PIL import Image

from reports.browser import rows_of

AXES = {
    "heads0-spectrum": "components",
    "heads0-vectors": "position",
    "heads0-maps": "mean score",
    "heads0-map": "layer",
    "overlap0-heads": "L0H0",
    "plan0-budgets": "budget",
    "plan0-patterns": "key",
    "evaluation0": "head",
    "collapse0-curves-residual": "blocks passed",
    "collapse0-paths-paths": "hops",
    "collapse0-bounds-bounds": "head",
}


def tables(mini):
    """Key of each table → rows of the result behind it."""
    heads = {(r["layer"], r["head"]): dict(r) for r in mini.study.record()["heads"]}
    return {
        "heads0-all": list(heads.values()),
        "evaluation0-measures": mini.evaluation.rows(),
        "evaluation0-heads": mini.evaluation.heads,
        "collapse0-residual": mini.collapse.rows(),
        "collapse0-lengths": mini.collapse.paths,
        "collapse0-single": mini.collapse.single_paths,
        "collapse0-bounds": mini.collapse.bounds,
        "collapse0-composed": mini.collapse.depth_bounds,
        "plan0-curve": mini.plan.curve,
    }


def same(text, value):
    if value is None or (isinstance(value, float) and not np.isfinite(value)):
        return text == ""
    if isinstance(value, bool):
        return text == str(value).lower()
    if isinstance(value, int | float):
        return float(text) == pytest.approx(value, rel=5.1e-7)
    return text == str(value)


def test_every_table_saves_all_its_rows(mini_shown, mini):
    """Every column the result has, to seven digits; the page shows fewer."""
    mini_shown.unfold()
    expected = tables(mini)
    for key, rows in expected.items():
        saved = mini_shown.csv(f'[data-csv="{key}"]')
        assert len(saved) == len(rows) > 0, key
        for line, row in zip(saved, rows):
            wrong = {
                name: (line.get(name), value)
                for name, value in row.items()
                if name in line and not same(line[name], value)
            }
            assert not wrong, key
            assert len(set(row) & set(line)) >= min(len(row), 4), key


def test_who_clicks_every_table_at_once_gets_every_file(mini_shown):
    """Chromium drops what a page saves beyond ten files a second: the page hands them over as they
    are taken.
    """
    mini_shown.unfold()
    keys = mini_shown.page.eval_on_selector_all("[data-csv]", "all => all.map(x => x.dataset.csv)")
    assert len(keys) > 30
    files = mini_shown.saved_at_once("[data-csv]")
    assert sorted(name for name, _ in files) == sorted(f"{key}.csv" for key in keys)
    for name, content in files:
        key, saved = name.removesuffix(".csv"), rows_of(content)
        assert len(saved) == mini_shown.page.locator(f'[data-table="{key}"] tbody tr').count() > 0
        shown = mini_shown.page.eval_on_selector_all(
            f'[data-table="{key}"] th', "all => all.map(x => x.dataset.column)"
        )
        assert set(shown) <= set(saved[0])


def test_who_clicks_every_figure_at_once_gets_every_file(mini_shown):
    """Pictures wait for the same turns as tables, though each takes its time to be drawn."""
    keys = set(
        mini_shown.page.eval_on_selector_all(
            "[data-save]", "all => all.map(x => x.closest('[data-figure]').dataset.figure)"
        )
    )
    files = mini_shown.saved_at_once("[data-save]")
    assert len({name for name, _ in files}) == len(files) == 3 * len(keys) > 40
    for name, content in files:
        kind = name.rpartition(".")[2]
        assert any(name.startswith(key) for key in keys)
        if kind == "csv":
            assert len(rows_of(content)) > 0, name
        elif kind == "svg":
            assert ET.fromstring(content).tag == "{http://www.w3.org/2000/svg}svg"
        else:
            assert Image.open(io.BytesIO(content)).format == "PNG"


def test_the_page_says_how_many_files_are_still_to_come(show, tiny):
    """Ten go at once; the line that says so is read aloud, and gone when the last file is."""
    shown = show(tiny.page)
    shown.unfold()
    assert shown.text("#saving") == ""
    message = shown.page.evaluate("""() => {
        const button = document.querySelector("[data-csv]");
        for (let i = 0; i < 25; i += 1) button.click();
        return document.getElementById("saving").textContent;
    }""")
    assert message == "Saving… 15 files to go"
    assert shown.page.get_attribute("#saving", "role") == "status"
    shown.page.wait_for_selector("#saving:empty", state="attached")


def test_who_leaves_while_files_wait_is_asked_first(show, tiny):
    shown = show(tiny.page)
    shown.unfold()
    shown.page.locator("[data-csv]").first.click()
    prevented = "!window.dispatchEvent(new Event('beforeunload', { cancelable: true }))"
    assert not shown.page.evaluate(prevented)
    waiting = (
        "(() => { const b = document.querySelector('[data-csv]'); for (let i = 0; i < 20; i++)"
        f" b.click(); return {prevented}; }})()"
    )
    assert shown.page.evaluate(waiting)
    shown.page.wait_for_selector("#saving:empty", state="attached")
    assert not shown.page.evaluate(prevented)


@pytest.fixture(scope="module")
def all_matrices(mini_shown):
    """Matrices that are chosen from a list are saved as they are shown."""
    mini_shown.page.select_option("#overlap0 [data-which]", label="heads")
    mini_shown.page.select_option("#plan0 [data-window]", index=0)


@pytest.mark.parametrize(("key", "title"), AXES.items())
def test_a_picture_saves_as_svg(mini_shown, all_matrices, key, title):
    root = ET.fromstring(mini_shown.figure(key, "svg"))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    words = " ".join(
        "".join(text.itertext()) for text in root.iter("{http://www.w3.org/2000/svg}text")
    )
    assert title in words
    assert float(root.get("width")) > 150


@pytest.mark.parametrize(
    "key",
    [
        "heads0-spectrum",
        "heads0-map",
        "overlap0-heads",
        "plan0-patterns",
        "collapse0-curves-residual",
    ],
)
def test_a_picture_saves_as_png(mini_shown, all_matrices, key):
    """It decodes, has many colours, and white paper."""
    image = Image.open(io.BytesIO(mini_shown.figure(key, "png"))).convert("RGBA")
    pixels = np.asarray(image)
    assert pixels.shape[0] > 100
    assert pixels.shape[1] > 300
    assert len(np.unique(pixels.reshape(-1, 4), axis=0)) > 20
    assert tuple(pixels[0, 0]) == (255, 255, 255, 255)


def test_saved_colours_do_not_follow_the_theme(mini_shown, all_matrices):
    def saved(theme):
        mini_shown.page.select_option("#theme", theme)
        # numbered anew in every picture
        return re.sub(rb"clip\d+", b"clip", mini_shown.figure("heads0-spectrum", "svg"))

    light, dark = saved("light"), saved("dark")
    mini_shown.page.select_option("#theme", "auto")
    assert dark == light


def test_a_picture_of_two_maps_saves_both(mini_shown, mini):
    rows = mini_shown.figure("collapse0-bounds-bounds")
    for name, key in (("max D", "max_d"), ("Dobrushin coefficient", "dobrushin")):
        saved = [float(row["value"]) for row in rows if row["number"] == name]
        assert saved == pytest.approx([row[key] for row in mini.collapse.bounds], rel=1e-6)

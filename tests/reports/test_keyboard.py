"""Everything by keyboard alone: the map of heads, tables, the slider, the theme."""

import pytest

from reports.browser import Shown


def tab_to(shown, condition, most=200):
    """Press Tab until the focus is where `condition`, an expression of `e`, holds."""
    for _ in range(most):
        shown.page.keyboard.press("Tab")
        if shown.page.evaluate(f"(e => Boolean({condition}))(document.activeElement)"):
            return
    raise AssertionError(f"Tab does not come to {condition}")


@pytest.fixture(scope="module")
def opened(browser, tiny):
    with Shown(browser, tiny.page) as found:
        yield found


@pytest.fixture
def shown(opened):
    """The page with its first head open and the focus at the first stop."""
    opened.page.evaluate(
        "document.querySelector('[data-head]').click(); document.querySelector('.skip').focus()"
    )
    return opened


def press(shown, *keys):
    for key in keys:
        shown.page.keyboard.press(key)


def test_the_first_stop_leads_past_the_menu(opened):
    shown = opened
    press(shown, "Tab")
    assert shown.focused("textContent") == "Skip to the content"
    assert shown.page.locator(".skip").bounding_box()["x"] >= 0
    press(shown, "Enter")
    assert shown.page.url.endswith("#main")


def test_arrows_move_along_the_map_and_enter_opens(shown):
    """Two layers of two heads: the map is one stop of Tab, and arrows stay inside it."""
    tab_to(shown, "e.dataset.head")
    assert shown.focused("dataset.head") == "0"
    press(shown, "ArrowRight")
    assert shown.focused("dataset.head") == "1"
    press(shown, "ArrowRight")
    assert shown.focused("dataset.head") == "1"
    press(shown, "ArrowDown")
    assert shown.focused("dataset.head") == "3"
    press(shown, "ArrowLeft", "ArrowDown")
    assert shown.focused("dataset.head") == "2"
    press(shown, "End")
    assert shown.focused("dataset.head") == "3"
    assert shown.text("#heads0-name") == "L0H0"
    before = shown.page.locator("#heads0 [data-sentence]").inner_text()
    press(shown, "Enter")
    assert shown.text("#heads0-name") == "L1H1"
    assert shown.focused("dataset.head") == "3"
    assert shown.focused("ariaPressed") == "true"
    press(shown, "ArrowUp", "Home", "Space")
    assert shown.text("#heads0-name") == "L0H0"
    assert shown.page.locator("#heads0 [data-sentence]").inner_text() == before


def test_tab_leaves_the_map_and_comes_back_to_where_it_was(shown):
    tab_to(shown, "e.dataset.head")
    press(shown, "ArrowDown", "Tab")
    assert shown.focused("dataset.head") is None
    assert shown.page.evaluate("document.activeElement.closest('.grid') === null")
    press(shown, "Shift+Tab")
    assert shown.focused("dataset.head") == "2"


def test_the_focus_can_be_seen(shown):
    tab_to(shown, "e.dataset.head")
    style = "getComputedStyle(document.activeElement)"
    assert shown.page.evaluate(f"{style}.outlineStyle") != "none"
    assert float(shown.page.evaluate(f"{style}.outlineWidth").removesuffix("px")) >= 2


def test_the_slider_moves_with_arrows(shown, tiny):
    tab_to(shown, "'slider' in e.dataset")
    press(shown, "Home")
    least = shown.page.locator("#plan0 [data-budget]").inner_text()
    press(shown, "ArrowRight")
    budgets = sorted({b for _, b in tiny.plan.examples.candidates if b is not None} | {1.0})
    assert [least, shown.text("#plan0 [data-budget]")] == [f"{100 * b:g} %" for b in budgets[:2]]
    press(shown, "End")
    assert shown.text("#plan0 [data-budget]") == "100 %"
    assert "exact scores" in shown.text("#plan0 [data-caption]")


def order(shown):
    return shown.page.eval_on_selector_all(
        "[data-table=heads0-all] tbody tr", "all => all.map(x => Number(x.dataset.row))"
    )


def test_enter_sorts_a_table(shown, tiny):
    """Up, then down; what is not known stays below, as Python's stable sort has it."""
    name = "rows_centred_effective_rank"
    values = [record[name] for record in tiny.study.record()["heads"]]
    shown.unfold()
    tab_to(shown, f"e.closest('[data-table=heads0-all] th[data-column={name}]')")
    rising = sorted(range(len(values)), key=values.__getitem__)
    press(shown, "Enter")
    assert order(shown) == rising
    assert (
        shown.page.get_attribute(f"[data-table=heads0-all] [data-column={name}]", "aria-sort")
        == "ascending"
    )
    press(shown, "Enter")
    assert order(shown) == rising[::-1] != rising
    assert (
        shown.page.get_attribute(f"[data-table=heads0-all] [data-column={name}]", "aria-sort")
        == "descending"
    )
    press(shown, "Shift+Tab", "Enter")
    assert shown.page.locator("[data-table=heads0-all] [aria-sort]").count() == 1


def test_the_theme_can_be_chosen_by_keys(shown):
    tab_to(shown, "e.id === 'theme'")
    before = shown.page.evaluate("getComputedStyle(document.body).backgroundColor")
    press(shown, "ArrowDown", "ArrowDown", "Enter")
    assert shown.page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert shown.page.evaluate("getComputedStyle(document.body).backgroundColor") != before


def test_the_focus_is_never_caught(shown):
    """From the first stop to the last, each once."""
    shown.unfold()
    seen = []
    for _ in range(400):
        press(shown, "Tab")
        if shown.focused("tagName") == "BODY":
            break
        seen.append(shown.page.evaluate("document.activeElement.outerHTML.slice(0, 300)"))
    assert shown.focused("tagName") == "BODY"
    assert len(seen) > 40

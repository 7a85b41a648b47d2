"""Words that want to be code: tokens, names of models and files, and titles are shown as text and
nothing runs.
"""

import json
import shutil
from dataclasses import replace

import pytest

import eigenlens as el
from reports.browser import Shown

SCRIPT = "<script>window.hacked=1</script>"
IMAGE = '</script><img src=x onerror="window.hacked=1">'
TOKENS = [
    SCRIPT,
    IMAGE,
    '"',
    "'",
    "\u202eabc",
    "\u200f",
    "\0",
    "👩‍👩‍👧",
    "\ud800",
    "x" * 10_000,
    "{{7*7}}",
    "${window.hacked=1}",
    "=cmd()",
    "<!--",
    "]]>",
    "\n",
]
NAME = """x"'<img src=x onerror=window.hacked=1>{{7*7}}"""


@pytest.fixture(scope="module")
def hostile(tiny, tmp_path_factory):
    """The tiny plan with such tokens, of a model and data of such names."""
    folder = tmp_path_factory.mktemp("hostile")
    examples = tiny.plan.examples
    n = examples.true.shape[-1]
    assert n == len(TOKENS)
    tokens = tuple({stack: tuple(TOKENS) for stack in known} for known in examples.tokens)
    study, plan = el.Study.open(tiny.folder / "study"), el.Plan.open(tiny.folder / "plan")
    plan.examples = replace(examples, tokens=tokens)
    study.stored = json.loads(json.dumps(study.stored))
    study.stored["model"]["name"] = NAME
    study.stored["data"]["name"] = f"{NAME}.txt"
    study.stored["notes"] = [IMAGE]
    return el.report(study, plan, output=folder / "page.html", title=f"{IMAGE}\u202e{SCRIPT}")


def nothing_ran(shown):
    shown.settle()
    assert shown.page.evaluate("typeof window.hacked") == "undefined"
    assert shown.dialogs == []
    assert shown.complaints == []
    assert len(shown.requests) == 1 + sum(
        url.startswith(("blob:", "data:")) for url in shown.requests[1:]
    )
    assert shown.page.locator("img[src=x]").count() == 0


@pytest.fixture(scope="module")
def shown(browser, hostile):
    with Shown(browser, hostile) as found:
        yield found


@pytest.fixture(scope="module")
def entered(browser, hostile):
    """A page for tests that bring in code themselves."""
    with Shown(browser, hostile) as found:
        yield found


def test_it_loads_and_nothing_runs(shown):
    nothing_ran(shown)
    assert shown.page.locator("script").count() == 4


def test_names_and_titles_are_text(shown):
    assert IMAGE in shown.text("h1")
    assert SCRIPT in shown.text("h1")
    assert IMAGE in shown.text("#heads0")
    assert f"{NAME} on {NAME}.txt" in shown.text("#summary") or NAME in shown.text("#summary")
    assert f"{NAME}.txt" in shown.text("#made")
    assert "49" not in shown.text("h1")


def test_a_title_cannot_turn_the_direction_of_what_follows(shown):
    """The mark of direction ends with the heading."""
    assert shown.page.locator("h1 bdi").count() == 1
    assert shown.text(".brand") == "eigenlens"


def test_tokens_are_spelled_out(shown):
    """As data, and where the input is chosen: what cannot be seen is named, what is long is cut."""
    rows = shown.figure("plan0-patterns")
    words = [row["key token"].partition(" ")[2] for row in rows[: len(TOKENS)]]
    assert words[0] == SCRIPT[:24] + f"… ({len(SCRIPT)} characters)"
    assert words[2:7] == ['"', "'", "\\u202eabc", "\\u200f", "\\u0000"]
    assert words[7:9] == ["👩‍👩‍👧", "\\ud800"]
    assert words[9] == "x" * 24 + "… (10,000 characters)"
    assert words[10:13] == ["{{7*7}}", "${window.hacked=1}", "=cmd()"]
    options = shown.page.locator("#plan0 [data-input] option").all_text_contents()
    assert options[0].startswith("1: <script>")
    assert "\u202e" not in "".join(options)


def test_tooltips_and_pictures_show_them_as_text(shown):
    """Over a cell of the pattern, and in what is saved."""
    canvas = shown.page.locator("[data-figure=plan0-patterns] canvas").first
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    tip = shown.page.locator("#vg-tooltip-element.visible")
    found = []
    for step in range(12):
        shown.page.mouse.move(box["x"] + 60 + 12 * step, box["y"] + 60 + 3 * step)
        shown.settle()
        found += tip.all_inner_texts()
    assert any("query token" in text for text in found)
    nothing_ran(shown)
    shown.figure("plan0-patterns", "svg")
    nothing_ran(shown)


def test_everything_can_be_pressed(shown):
    shown.unfold()
    for button in shown.page.locator("[data-head], .sortable th button").all():
        button.click()
    for chooser in shown.page.locator("select").all():
        for value in chooser.evaluate("x => [...x.options].map(o => o.value)"):
            chooser.select_option(value, force=True)
    nothing_ran(shown)


def test_the_policy_stops_a_script_that_gets_in(entered):
    with entered.page.expect_console_message(
        lambda message: "Content Security Policy" in message.text
    ):
        entered.page.evaluate("""() => new Promise((resolve) => {
              const script = document.createElement("script");
              script.textContent = "window.hacked = 1";
              document.body.append(script);
              const image = document.createElement("div");
              image.innerHTML = '<img src="x" onerror="window.hacked=1">';
              image.firstChild.addEventListener("error", resolve);
              document.body.append(image);
            })""")
    assert entered.page.evaluate("typeof window.hacked") == "undefined"
    assert any("Content Security Policy" in text for text in entered.complaints)


def test_the_policy_stops_eval(entered):
    """From a timer, since what the tests themselves evaluate is exempt."""
    message = entered.page.evaluate("""() => new Promise((resolve) => {
          setTimeout(() => { try { resolve(String(eval("window.hacked = 1"))); } catch (error) { resolve(error.name); } }, 10);
        })""")
    assert message == "EvalError"
    assert entered.page.evaluate("typeof window.hacked") == "undefined"


def test_the_policy_stops_the_network(entered):
    message = entered.page.evaluate(
        "fetch('https://example.org/').then(() => 'loaded', (error) => error.name)"
    )
    assert message == "TypeError"
    assert any("Content Security Policy" in text for text in entered.complaints)


def test_a_folder_and_a_file_of_such_names(show, tiny, text, tmp_path):
    """From the study on: `/` is the one letter that no file name has."""
    model, data = (
        tmp_path / "m'\"<img src=x onerror=window.hacked=1>",
        tmp_path / "<b>{{7*7}}&amp;.txt",
    )
    shutil.copytree(tiny.folder / "model", model)
    shutil.copy(text, data)
    study = el.study(
        model, data, tmp_path / "<i>study", max_inputs=12, max_length=8, rank=4, only=["rows"]
    )
    shown = show(el.report(study, output=tmp_path / "<u>page.html"))
    nothing_ran(shown)
    assert "m'\"<img src=x onerror=window.hacked=1>" in shown.text("h1")
    assert "<b>{{7*7}}&amp;" in shown.text("#made")

"""Opening a head: the panel, its numbers and its pictures are those of the study."""

import numpy as np
import pytest

from eigenlens.captures import Site
from eigenlens.spectra.bases import Scope
from reports.browser import column

HEADS = [(0, 0), (2, 7), (5, 11)]
ANALYSES, CENTRINGS = ("rows", "matrices"), ("centred", "raw", "row_centred")


@pytest.fixture(scope="module", params=HEADS, ids=lambda place: f"{place[0]}.{place[1]}")
def opened(request, mini_shown, mini):
    """A head of minilm that was clicked, with the page, the study, and what the study itself says
    of that head.
    """
    layer, head = request.param
    mini_shown.page.click(f'[data-heads="heads0"] [aria-label^="L{layer}H{head}:"]')
    record = next(
        r for r in mini.study.record()["heads"] if (r["layer"], r["head"]) == (layer, head)
    )
    return mini_shown, mini.study, layer, head, record


def number(text):
    """What the page prints, as Python reads it."""
    if text in {"–", "true", "false"}:
        return {"–": None, "true": True, "false": False}[text]
    try:
        return float(text)
    except ValueError:
        return text


def same(printed, value):
    """Four significant digits of a number, two of a very small or large one; the same word
    otherwise.
    """
    if isinstance(value, str) or value is None or isinstance(printed, str):
        return printed == value
    tiny = 0 < abs(value) < 1e-3 or abs(value) >= 1e5
    whole = float(value).is_integer()
    return (
        printed == value
        if whole and not tiny
        else printed == pytest.approx(value, rel=6e-2 if tiny else 6e-4)
    )


def test_the_panel_names_the_head_and_says_its_dimension(opened):
    shown, _, layer, head, record = opened
    assert shown.text("#heads0-name") == f"L{layer}H{head}"
    pressed = shown.page.eval_on_selector_all(
        "[data-head][aria-pressed=true]", "all => all.map(x => x.ariaLabel)"
    )
    assert len(pressed) == 1
    assert pressed[0].startswith(f"L{layer}H{head}:")
    dimension, size = (
        record["rows_centred_held_out_dimension_90"],
        record["rows_centred_dimensions"],
    )
    message = shown.text("#heads0 .panel [data-sentence]")
    if dimension is None:
        assert message.startswith("This head does not reach 90 %")
    else:
        assert message.startswith(
            f"This head needs {dimension} of {size} dimensions for 90 % of the held-out variance of its rows"
        )


def test_it_says_what_the_plan_gives_it(opened, mini):
    shown, _, layer, head, _ = opened
    choice = next(c for c in mini.plan.choices if (c.layer, c.head) == (layer, head))
    assert f"In the plan its estimator is {choice.estimator}, for " in shown.text(
        "#heads0 .panel [data-sentence]"
    )


def test_every_number_of_the_head_is_there(opened, mini):
    """All numbers of the study's record, and those of the plan, the evaluation and the bounds under
    their prefixes.
    """
    shown, _, layer, head, record = opened
    shown.unfold()
    tables = shown.page.eval_on_selector_all(
        "#heads0 [data-numbers] table",
        "all => all.map(t => [...t.rows].map(r => [...r.cells].map(c => c.textContent)))",
    )
    printed = {}
    for heading, *lines in tables:
        for name, *values in lines:
            for title, value in zip(heading[1:], values, strict=True):
                key = name if title == "value" else f"{title} {name}"
                assert key not in printed
                printed[key] = number(value)
    expected = {key.replace("_", " "): value for key, value in record.items()}
    assert len([key for key in expected if key.startswith("rows centred")]) > 5

    def here(r):
        return (r["layer"], r["head"]) == (layer, head)

    evaluated = next(r for r in mini.evaluation.heads if here(r))
    bound = next(r for r in mini.collapse.bounds if here(r))
    expected["evaluation total variation"] = evaluated["total_variation"]
    expected["bounds dobrushin"] = bound["dobrushin"]
    expected["paths all"] = next(r for r in mini.collapse.heads if here(r))["all"]
    wrong = {
        key: (printed.get(key), value)
        for key, value in expected.items()
        if not same(printed.get(key), value)
    }
    assert not wrong


def test_the_spectrum_is_the_study_s(opened):
    shown, study, layer, head, _ = opened
    rows = shown.figure("heads0-spectrum")
    for analysis in ANALYSES:
        spectrum = study.spectra.one(
            analysis=analysis, level="head", centring="centred", layer=layer, head=head
        )
        for variance, values in (
            ("held out", spectrum.held_out),
            ("in the sample", spectrum.explained),
        ):
            at = [int(c) for c in column(rows, "components", analysis=analysis, variance=variance)]
            assert at[0] == 1
            assert at[-1] == len(spectrum.eigenvalues)
            assert at == sorted(set(at))
            assert len(at) >= 12
            found = column(rows, "share", analysis=analysis, variance=variance)
            np.testing.assert_allclose(found, values[np.array(at) - 1], rtol=2e-6, atol=1e-7)
        low = column(rows, "low", analysis=analysis, variance="held out")
        np.testing.assert_allclose(low, spectrum.low[np.array(at) - 1], rtol=2e-6, atol=1e-7)


def test_the_eigenvectors_are_the_study_s(opened):
    shown, study, layer, head, _ = opened
    rows = shown.figure("heads0-vectors")
    # (S, S), one eigenvector a column
    vectors = study.row_basis(Scope("head", "encoder", layer)).vectors[head].numpy()
    assert {row["component"] for row in rows} == {"1", "2", "3", "4"}
    for k in range(4):
        found = np.array(column(rows, "value", component=str(k + 1)))
        assert len(found) == 48
        sign = np.sign(found @ vectors[:, k])
        largest = np.abs(vectors[:, k]).max()
        half = 0.51 * largest / 32767  # a step of sixteen bits, and five digits
        np.testing.assert_allclose(found, sign * vectors[:, k], atol=half, rtol=5.1e-5)


def test_the_maps_are_the_study_s(opened):
    """Blocks of pairs, by a loop of their own; within a hundredth of the largest, as eight bits
    allow.
    """
    shown, study, layer, head, _ = opened
    rows = [{**row, "map": row["map"].partition(",")[0]} for row in shown.figure("heads0-maps")]
    parts = study.matrix_results[Site("encoder", layer)]
    maps = {"mean score": parts["mean"][head].numpy()}
    maps |= {f"eigenvector {k + 1}": parts["vectors"][head, k].numpy() for k in range(3)}
    assert {row["map"] for row in rows} == set(maps)
    for name, whole in maps.items():
        places = sorted({int(row["query"]) for row in rows if row["map"] == name})
        step = places[1] - places[0]
        mine = [row for row in rows if row["map"] == name]
        assert len(mine) == len(places) ** 2 == (-(-48 // step)) ** 2
        for row in mine:
            i, j = int(row["query"]), int(row["key"])
            block = whole[i : i + step, j : j + step].mean()
            assert float(row["value"]) == pytest.approx(
                block, abs=0.01 * float(np.abs(whole).max())
            )


def test_the_map_shows_the_metric_that_is_chosen(mini_shown, mini):
    page = mini_shown.page
    page.select_option("#heads0 [data-metric]", "rows_centred_effective_rank")
    expected = [r["rows_centred_effective_rank"] for r in mini.study.record()["heads"]]
    shown = page.eval_on_selector_all(
        "#heads0 [data-head]", "all => all.map(x => Number(x.textContent))"
    )
    np.testing.assert_allclose(shown, expected, rtol=6e-3)
    saved = mini_shown.figure("heads0-map")
    assert [(row["stack"], row["layer"], row["head"]) for row in saved] == [
        ("encoder", str(i // 12), str(i % 12)) for i in range(72)
    ]
    np.testing.assert_allclose(column(saved, "rows_centred_effective_rank"), expected, rtol=1e-6)
    colours = page.eval_on_selector_all(
        "#heads0 [data-head]", "all => all.map(x => x.style.background)"
    )
    assert colours[np.argmin(expected)] != colours[np.argmax(expected)]
    page.select_option("#heads0 [data-metric]", index=0)


def test_dimensions_beyond_what_was_kept_are_marked(mini_shown, mini):
    name = "matrices_centred_held_out_dimension_90"
    expected = [r[name] for r in mini.study.record()["heads"]]
    kept = len(
        mini.study.spectra.one(
            analysis="matrices", level="head", centring="centred", layer=0, head=0
        ).eigenvalues
    )
    if all(value is None for value in expected):
        assert not mini_shown.page.locator(f'option[value="{name}"]').count()
        return
    mini_shown.page.select_option("#heads0 [data-metric]", name)
    shown = mini_shown.page.eval_on_selector_all(
        "#heads0 [data-head]", "all => all.map(x => x.textContent)"
    )
    assert shown == [f">{kept}" if value is None else str(value) for value in expected]

"""The slider over the budget: the pattern that is shown is the one the plan's examples name, with
its own numbers.
"""

import re

import numpy as np
import pytest

from reports.browser import column


@pytest.fixture(scope="module")
def slider(mini_shown, mini):
    """`slider(place, position)` sets the controls and gives what the page then says and saves."""
    page = mini_shown.page

    def moved(place, position, input=0, mode=0, window=-1):
        page.evaluate(
            """([place, position, input, mode, window]) => {
              const root = document.querySelector("[data-patterns=plan0]");
              const at = (name) => root.querySelector(`[data-${name}]`);
              at("head-choice").value = place; at("input").value = input; at("slider").value = position;
              at("mode").selectedIndex = mode;
              at("window").selectedIndex = window < 0 ? at("window").options.length - 1 : window;
              at("slider").dispatchEvent(new Event("input", { bubbles: true }));
            }""",
            [str(place), str(position), str(input), mode, window],
        )
        return mini_shown.text("#plan0 [data-caption]")

    return moved


@pytest.fixture(scope="module")
def budgets(mini):
    """What the slider can be set to: the nominal budgets of the candidates, and all of the work."""
    return sorted(
        {budget for _, budget in mini.plan.examples.candidates if budget is not None} | {1.0}
    )


@pytest.fixture(scope="module")
def said_of_all(mini_shown):
    """What the page says in every mode, head and position: mode, place, position, text."""
    return mini_shown.page.evaluate("""() => {
          const root = document.querySelector("[data-patterns=plan0]");
          const at = (name) => root.querySelector(`[data-${name}]`);
          at("window").selectedIndex = 0;
          const all = [];
          for (const mode of at("mode").options) for (const place of at("head-choice").options) {
            for (let position = 0; position <= at("slider").max; position += 1) {
              at("mode").value = mode.value; at("head-choice").value = place.value; at("slider").value = position;
              at("slider").dispatchEvent(new Event("input", { bubbles: true }));
              all.push([mode.value, Number(place.value), position, at("caption").textContent]);
            }
          }
          return all;
        }""")


def square(rows, name):
    n = int(np.sqrt(len(rows)))
    assert [(int(r["query"]), int(r["key"])) for r in rows] == [
        (i, j) for i in range(n) for j in range(n)
    ]
    return np.array(column(rows, name)).reshape(n, n)


def percent(value):
    return f"{float(f'{100 * value:.3g}'):g} %"


def test_it_names_the_best_candidate_within_the_budget(mini, said_of_all, budgets):
    examples = mini.plan.examples
    for mode, place, position, message in said_of_all:
        if mode != said_of_all[0][0]:
            continue
        budget, at = budgets[position], examples.heads[place]
        named = f"L{at.layer}H{at.head}"
        assert named in message
        if budget == 1:
            assert message == f"{named} with exact scores: all of the work, nothing lost."
            continue
        affordable = [
            (examples.total_variation[place, c], c)
            for c in range(len(examples.candidates))
            if examples.work[place, c] <= budget + 1e-9
            and np.isfinite(examples.total_variation[place, c])
        ]
        best = examples.best(place, budget)
        assert best == (min(affordable)[1] if affordable else None)
        if best is None:
            assert "no estimate is this cheap" in message
            continue
        name, nominal = examples.candidates[best]
        nominally = "" if nominal is None else f" at a budget of {percent(nominal)}"
        found = re.fullmatch(
            r"(.*): (\S+) % of the work of exact scores; on held-out inputs its patterns move by"
            r" (\S+) in total variation\.",
            message,
        )
        assert found[1] == f"{named} with the estimator {name}{nominally}"
        assert float(found[2]) == pytest.approx(100 * examples.work[place, best], rel=6e-3)
        lost = examples.total_variation[place, best]
        assert float(found[3]) == pytest.approx(lost, rel=6e-3 if lost > 1e-3 else 6e-2)


@pytest.mark.parametrize(("input", "place"), [(0, 0), (2, 5)])
def test_the_patterns_are_those_of_the_examples(mini_shown, mini, slider, budgets, input, place):
    """Within a hundredth, as far as a picture shows."""
    examples = mini.plan.examples
    for position in (1, len(budgets) - 2):
        slider(place, position, input)
        rows = mini_shown.figure("plan0-patterns")
        best = examples.best(place, budgets[position])
        true, estimated = (x[:40, :40].numpy() for x in examples.patterns(input, place, best))
        assert square(rows, "true").shape == true.shape
        np.testing.assert_allclose(square(rows, "true"), true, atol=0.01)
        np.testing.assert_allclose(square(rows, "reconstructed"), estimated, atol=0.01)
        difference = square(rows, "reconstructed") - square(rows, "true")
        np.testing.assert_allclose(square(rows, "difference"), difference, atol=2.1e-5)
        words = [row["key token"] for row in rows[: len(true)]]
        assert [word.partition(" ")[0] for word in words] == [str(i) for i in range(len(true))]
        raw = examples.tokens[input][examples.heads[place].stack][: len(true)]
        assert [w.partition(" ")[2] for w, r in zip(words, raw) if r.isalnum()] == [
            r for r in raw if r.isalnum()
        ]


def test_moving_it_changes_the_picture(mini_shown, mini, slider, budgets):
    place, seen, rows = 5, [], []
    last = len(budgets) - 1
    first = next(i for i, b in enumerate(budgets) if mini.plan.examples.best(place, b) is not None)
    assert mini.plan.examples.best(place, budgets[first]) != mini.plan.examples.best(
        place, budgets[last - 1]
    )
    mini_shown.page.locator("#plan0 [data-slider]").scroll_into_view_if_needed()
    for position in (first, last - 1, last):
        slider(place, position, window=0)
        assert mini_shown.text("#plan0 [data-budget]") == percent(budgets[position])
        assert mini_shown.page.get_attribute("#plan0 [data-slider]", "aria-valuetext") == percent(
            budgets[position]
        )
        mini_shown.settle()
        seen.append(
            mini_shown.page.evaluate(
                "document.querySelector('[data-figure=plan0-patterns] canvas').toDataURL()"
            )
        )
        rows.append(mini_shown.figure("plan0-patterns"))
    assert len(set(seen)) == 3
    assert rows[0] != rows[1]
    assert (
        [row["true"] for row in rows[0]]
        == [row["true"] for row in rows[1]]
        == [row["true"] for row in rows[2]]
    )


def test_with_all_of_the_work_nothing_differs(mini_shown, slider, budgets):
    slider(4, len(budgets) - 1, window=0)
    rows = mini_shown.figure("plan0-patterns")
    assert max(abs(x) for x in column(rows, "difference")) == 0
    assert column(rows, "true") == column(rows, "reconstructed")


def test_a_window_shows_its_tokens_only(mini_shown, mini, slider, budgets):
    """40 of the 48 tokens, by halves to begin with."""
    options = mini_shown.page.eval_on_selector_all(
        "#plan0 [data-window] option", "all => all.map(x => x.textContent)"
    )
    assert options == ["0–19", "20–39", "0–39"]
    slider(2, len(budgets) - 1, window=1)
    rows = mini_shown.figure("plan0-patterns")
    assert {(row["query"], row["key"]) for row in rows} == {
        (str(i), str(j)) for i in range(20, 40) for j in range(20, 40)
    }
    true = mini.plan.examples.true[0, 2, 20:40, 20:40].float().numpy()
    np.testing.assert_allclose(np.array(column(rows, "true")).reshape(20, 20), true, atol=0.01)


def test_as_the_plan_has_it(mini, said_of_all):
    """The estimator that the plan gave the head, wherever the slider stands."""
    choices = {c.at: c for c in mini.plan.choices}
    message = [
        (place, text) for mode, place, _, text in said_of_all if mode == "chosen by the plan"
    ]
    assert message
    for place, text in message:
        head = mini.plan.examples.heads[place]
        chosen = choices[head].estimator
        assert text.startswith(
            f"L{head.layer}H{head.head} with "
            + ("exact" if chosen == "exact" else f"the estimator {chosen}")
        )


def test_every_estimator_can_be_shown_in_every_head_at_every_budget(
    mini_shown, mini, said_of_all, budgets
):
    """Where an estimator is named, it is that estimator, at the largest budget that is allowed and
    that serves the head.
    """
    examples = mini.plan.examples
    modes = list(dict.fromkeys(mode for mode, *_ in said_of_all))
    assert modes[1] == "chosen by the plan"
    assert set(modes[2:]) == {name for name, _ in examples.candidates}
    assert len(said_of_all) == len(modes) * len(examples.heads) * len(budgets)
    for name, place, position, text in said_of_all:
        if name in modes[:2]:
            continue
        named = f"L{examples.heads[place].layer}H{examples.heads[place].head}"
        served = [
            nominal or 0.0
            for c, (other, nominal) in enumerate(examples.candidates)
            if other == name
            and (nominal or 0.0) <= budgets[position]
            and np.isfinite(examples.total_variation[place, c])
        ]
        if served:
            at = f" at a budget of {percent(max(served))}" if max(served) else ""
            assert text.startswith(f"{named} with the estimator {name}{at}: ")
        else:
            assert text == f"{named}, {name}: no estimate is this cheap."
    mini_shown.settle()
    assert mini_shown.complaints == []

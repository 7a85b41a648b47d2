"""What heads and layers do, on the page: a part for each diagnostic, its numbers in the head panel,
roles in words.
"""

import pytest

from eigenlens.diagnostics.roles import roles, roles_sentence
from reports.browser import column


def test_every_diagnostic_has_its_part(mini_shown, mini):
    found = mini.study.diagnostics
    assert len(found.found) >= 9
    for finding in found.found:
        part = f"#diagnosis0-{finding.name}"
        assert mini_shown.text(f"{part} .sentence") == finding.sentence
        assert mini_shown.page.query_selector(f"{part} .chart svg, {part} .chart canvas"), (
            finding.name
        )
        assert mini_shown.page.get_attribute(f"{part} .chart", "aria-label").startswith(
            finding.title
        )
    message = mini_shown.text("#diagnosis0-layers")
    assert found["amplifier"].note in message and "not applicable" in message


def test_the_tables_hold_the_numbers_of_the_study(mini_shown, mini):
    mini_shown.unfold()
    found = mini.study.diagnostics
    heads = mini_shown.csv('[data-csv="diagnosis0-sinks-numbers"]')
    assert column(heads, "strength") == pytest.approx(
        list(found["sinks"].values("strength").values()), rel=1e-6
    )
    layers = mini_shown.csv('[data-csv="diagnosis0-by-layer"]')
    assert column(layers, "spikes") == pytest.approx(
        list(found["spikes"].values("largest").values()), rel=1e-6
    )


def test_the_map_of_heads_colours_by_any_of_them(mini_shown, mini):
    offered = mini_shown.page.eval_on_selector_all(
        "#heads0 [data-metric] option", "all => all.map(o => o.value)"
    )
    assert set(offered) >= {
        "sinks_rate",
        "induction_prefix",
        "entropy_all",
        "gap_all",
        "relevance_median",
        "keys_below",
    }
    mini_shown.page.select_option("#heads0 [data-metric]", "induction_previous")
    label = mini_shown.page.get_attribute('[data-heads="heads0"] [data-head="13"]', "aria-label")
    value = mini.study.diagnostics["induction"].value("previous", "encoder", 1, 1)
    assert float(label.split()[-1]) == pytest.approx(value, rel=1e-2, abs=1e-6)
    mini_shown.page.select_option("#heads0 [data-metric]", offered[0])


def test_a_head_with_a_role_says_so(mini_shown, mini):
    message = roles(mini.study.diagnostics)
    assert message  # minilm has heads that look at the token before
    at, sentences = next(iter(message.items()))
    mini_shown.page.click(f'[data-heads="heads0"] [aria-label^="L{at.layer}H{at.head}:"]')
    shown = mini_shown.text("#heads0 .panel [data-sentence]")
    assert all(sentence in shown for sentence in sentences)
    assert roles_sentence(mini.study.diagnostics) in mini_shown.text("#summary")

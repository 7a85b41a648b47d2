"""Results say in one line what they are: model, data, inputs, length, and what they hold."""

import pytest

import eigenlens as el
from tiny import small_bert, some_text, tiny_bert, token_ids

IDS = token_ids(40, 12)


@pytest.fixture(scope="module")
def bert():
    return small_bert()


@pytest.fixture(scope="module")
def made(bert):
    return el.study(bert, IDS, only="rows,moments,sinks")


def test_a_study_in_one_line(made, tmp_path):
    assert (
        repr(made)
        == "<study of BertModel on an array (40 × 12): 40 inputs of 12 tokens, 8 heads; rows,"
        " moments, diagnostics>"
    )
    model, text = tiny_bert(tmp_path / "tiny"), some_text(tmp_path / "a.txt")
    kept = el.study(model, text, tmp_path / "kept", max_inputs=9, max_length=8, only="rows")
    message = (
        f"<study of tiny on a.txt: {kept.facts.inputs} inputs of 8 tokens, 4 heads; rows, in"
        f" {tmp_path / 'kept'}>"
    )
    assert repr(kept) == repr(el.Study.open(tmp_path / "kept")) == message


def test_a_plan_in_one_line(made, bert):
    plan = el.plan(made, budget=0.5, model=bert, data=IDS, estimators="mean,key-pca", max_inputs=4)
    counts = {
        name: sum(c.estimator == name for c in plan.choices)
        for name in {c.estimator for c in plan.choices}
    }
    message = repr(plan)
    assert message.startswith(
        f"<simulated plan for BertModel, 12 tokens, budget 0.5: work {plan.work:.3g}, total variation "
    )
    assert message.endswith(">") and "\n" not in message
    for name, number in counts.items():
        assert f"{name} in {number} head{'s' * (number > 1)}" in message


def test_a_collapse_run_in_one_line(bert):
    bare = el.collapse(bert, IDS, max_inputs=4, paths=0, bounds=0, variants="SAN")
    assert (
        repr(bare)
        == "<collapse run of BertModel on an array (40 × 12): 4 inputs of 12 tokens; full, SAN>"
    )
    whole = el.collapse(bert, IDS, max_inputs=4, paths=2, bounds=1, variants="SAN,SAN+MLP")
    assert repr(whole).endswith("; full, SAN, SAN+MLP; paths; bounds>")


def test_rows_of_a_diagnostic_have_the_intervals_of_its_record(made):
    found = made.diagnostics["sinks"]
    numbers = {(n["stack"], n["layer"], n["head"], n["name"]): n for n in found.record()["numbers"]}
    rows = found.rows()
    assert len(rows) == 8 and len({tuple(row) for row in rows}) == 1
    with_interval = 0
    for row in rows:
        for name in found.words:
            number = numbers[row["stack"], row["layer"], row["head"], name]
            assert row[name] == number["mean"]
            assert (row.get(f"{name}_low"), row.get(f"{name}_high")) == (
                number["low"],
                number["high"],
            )
            with_interval += number["low"] is not None
    assert with_interval


def test_numbers_without_intervals_have_no_columns_for_them():
    from eigenlens.diagnostics.finding import Finding, Number

    numbers = [
        Number("self", 0, 0, "weight", 2.0),
        Number("self", 0, 0, "rate", 0.5, 0.4, 0.6, 9),
        Number("self", 0, 1, "rate", 1.0),
    ]
    found = Finding("x", "X", "head", {"weight": "a weight", "rate": "a rate"}, tuple(numbers))
    assert found.rows() == [
        {
            "stack": "self",
            "layer": 0,
            "head": 0,
            "weight": 2.0,
            "rate": 0.5,
            "rate_low": 0.4,
            "rate_high": 0.6,
        },
        {
            "stack": "self",
            "layer": 0,
            "head": 1,
            "weight": None,
            "rate": 1.0,
            "rate_low": None,
            "rate_high": None,
        },
    ]

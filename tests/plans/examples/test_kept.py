"""Examples in the folder of a plan: read again, drawn, and refused where they are damaged."""

import json
import shutil
from dataclasses import replace

import pytest

import eigenlens as el
from plans.examples.by_model import same

HOSTILE = [
    "</script><script>alert(1)</script>",
    "datum.x'] + \"",
    "\u202eabc",
    "\n",
    "",
    "\ud800",
    "👩‍👩‍👧",
    "x" * 10_000,
    "[PAD]",
    " a",
]


def test_a_plan_read_again_has_the_same_examples(bert, place):
    same(el.Plan.open(place / "plan").examples, bert[2].examples)


def test_hostile_tokens_survive_and_stay_data(bert, tmp_path):
    plan = el.Plan.open(bert[2].save(tmp_path / "plan"))
    tokens = tuple(HOSTILE + [f"{t}!" for t in HOSTILE] + ["a"] * 4)
    plan.examples = replace(plan.examples, tokens=({"encoder": tokens},) * 3)
    again = el.Plan.open(plan.save(tmp_path / "hostile")).examples
    assert again.tokens[0]["encoder"] == tokens
    chart = again.plot().to_dict()

    def without_data(part):
        if isinstance(part, dict):
            return {
                key: without_data(value)
                for key, value in part.items()
                if key not in {"data", "datasets"}
            }
        return [without_data(value) for value in part] if isinstance(part, list) else part

    assert "alert" in json.dumps(chart) and "alert" not in json.dumps(without_data(chart))
    labels = {row["query token"] for row in _values(chart)}
    assert (
        len(labels) == 24
        and {"0 </script><script>alert(1… (34 characters)", r"2 \u202eabc", r"3 \n", "9 ␣a"}
        <= labels
    )
    assert "<script" not in again._repr_html_()


def _values(part):
    if isinstance(part, dict):
        if isinstance(part.get("data"), dict) and "values" in part["data"]:
            return part["data"]["values"]
        return next((found for value in part.values() if (found := _values(value))), None)
    return (
        next((found for value in part if (found := _values(value))), None)
        if isinstance(part, list)
        else None
    )


def test_the_picture_has_three_maps_of_every_pair(bert):
    import vl_convert

    chart = bert[2].examples.plot(1, 2).to_dict()
    svg = vl_convert.vegalite_to_svg(chart)
    assert all(f">{title}<" in svg for title in ("true", "reconstructed", "difference"))
    assert svg.count('aria-roledescription="rect mark"') >= 3 * 24 * 24


def test_the_record_holds_no_tensors(bert):
    record = bert[2].record()
    assert set(record["examples"]) == {"tokens", "places", "candidates", "chosen"}
    assert len(json.dumps(record, allow_nan=False)) < 200_000


def test_a_plan_without_examples_opens(bert, tmp_path):
    folder = bert[2].save(tmp_path / "plan")
    _edit(folder, lambda record: record.pop("examples"))
    (folder / "examples.safetensors").unlink()
    old = el.Plan.open(folder)
    assert old.examples is None and old.rows() == bert[2].rows()
    bert[2].save(folder)
    old.save(folder)
    assert el.Plan.open(folder).examples is None and not (folder / "examples.safetensors").exists()


def test_a_plan_of_exact_scores_has_true_patterns_only(bert, tmp_path):
    plan = el.plan(
        bert[1], budget=1.0, estimators=["exact"], max_inputs=2, output_dir=tmp_path / "exact"
    )
    examples = el.Plan.open(tmp_path / "exact").examples
    assert (
        examples.candidates == ()
        and set(examples.chosen) == {None}
        and examples.best(0, 1.0) is None
    )
    assert {row["difference"] for row in examples.rows()} == {0.0}
    same(examples, plan.examples)


def _edit(folder, change):
    record = json.loads((folder / "plan.json").read_text())
    change(record)
    (folder / "plan.json").write_text(json.dumps(record))


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: (d / "examples.safetensors").unlink(),
        lambda d: (d / "examples.safetensors").write_bytes(b"no"),
        lambda d: (d / "examples.safetensors").write_bytes(
            (d / "examples.safetensors").read_bytes()[:-1] + b"x"
        ),
        lambda d: _edit(d, lambda r: r["examples"].pop("sha256")),
        lambda d: _edit(d, lambda r: r["examples"].pop("tokens")),
        lambda d: _edit(d, lambda r: r.update(examples=[1])),
        lambda d: _edit(d, lambda r: r["examples"]["tokens"].pop()),
        lambda d: _edit(d, lambda r: r["examples"]["tokens"][0]["encoder"].pop()),
        lambda d: _edit(d, lambda r: r["examples"]["places"].pop()),
        lambda d: _edit(d, lambda r: r["examples"]["places"][0].pop()),
        lambda d: _edit(d, lambda r: r["examples"]["candidates"].pop()),
        lambda d: _edit(d, lambda r: r["examples"]["chosen"].__setitem__(0, 999)),
        lambda d: _edit(d, lambda r: r["examples"]["chosen"].__setitem__(0, "joint")),
    ],
)
def test_damage_is_refused(bert, tmp_path, damage):
    folder = bert[2].save(tmp_path / "plan")
    damage(folder)
    with pytest.raises(el.EigenlensError, match="is damaged"):
        el.Plan.open(folder)
    shutil.rmtree(folder)

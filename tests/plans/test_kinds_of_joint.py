"""Plans with other projections than those of `joint`: shared by a group, or fitted on pairs."""

import pytest
import torch

import eigenlens as el
from eigenlens.errors import EigenlensError


def test_heads_of_a_group_share_their_projections(llama, text, tmp_path):
    """As it is tried, chosen, kept, and used in the model."""
    study = el.study(
        llama, text, tmp_path / "study", max_length=24, max_inputs=40, only="rows,moments"
    )
    plan = el.plan(
        study,
        budget=0.5,
        estimators="joint-grouped",
        max_inputs=4,
        output_dir=tmp_path / "plan",
    )
    chosen = [choice for choice in plan.choices if choice.estimator == "joint-grouped"]
    assert {choice.settings["group"] for choice in chosen} == {2}
    again = el.Plan.open(tmp_path / "plan")
    assert again.rows() == plan.rows()
    model = el.load(llama)
    ids = torch.randint(1000, 20_000, (2, 24), generator=torch.Generator().manual_seed(1))
    with torch.no_grad(), el.capture(model.backbone) as calls:
        model.backbone(ids)
    shared = 0
    for call in calls:
        torch.testing.assert_close(again.scores(call).scores, plan.scores(call).scores)
        maps = {
            head: (part.estimator.tensors["to_x"][at], part.estimator.tensors["to_y"][at])
            for part in again.parts[call.site]
            for at, head in enumerate(part.heads)
            if part.estimator.name == "joint-grouped"
        }
        for first, second in ((0, 1), (2, 3)):
            if first in maps and second in maps:
                shared += 1  # ranks may differ: the smaller is the beginning of the larger
                for one, other in zip(maps[first], maps[second]):
                    width = min(one.shape[1], other.shape[1])
                    assert torch.equal(one[:, :width], other[:, :width])
    assert shared


def test_by_default_both_forms_are_tried_where_heads_share_keys(llama, bert, text, tmp_path):
    curves = {}
    for name, model in (("llama", llama), ("bert", bert)):
        study = el.study(
            model, text, tmp_path / name, max_length=24, max_inputs=40, only="rows,moments"
        )
        curves[name] = {row["estimator"] for row in el.plan(study, budget=0.5, max_inputs=2).curve}
    assert {"joint", "joint-grouped"} <= curves["llama"]
    assert "joint" in curves["bert"] and "joint-grouped" not in curves["bert"]


def test_projections_fitted_on_attended_pairs_are_tried_when_named(llama, bert, text, tmp_path):
    studies = {
        name: el.study(
            model, text, tmp_path / name, max_length=24, max_inputs=40, only="rows,moments"
        )
        for name, model in (("llama", llama), ("bert", bert))
    }
    plan = el.plan(
        studies["llama"], budget=0.3, estimators="joint,joint-fitted,mean", max_inputs=4,
        output_dir=tmp_path / "plan",
    )  # fmt: skip
    rows = {(row["estimator"], row["budget"]): row for row in plan.curve}
    for budget in (0.1, 0.25):
        mine, joint = rows["joint-fitted", budget], rows["joint", budget]
        assert mine["work"] == joint["work"] and mine["score_error"] != joint["score_error"]
    assert "joint-fitted" in {choice.estimator for choice in plan.choices}
    again = el.Plan.open(tmp_path / "plan")
    model = el.load(llama)
    ids = torch.randint(1000, 20_000, (2, 24), generator=torch.Generator().manual_seed(1))
    with torch.no_grad(), el.capture(model.backbone) as calls:
        model.backbone(ids)
    for call in calls:
        assert torch.equal(again.scores(call).scores, plan.scores(call).scores)
    default = el.plan(studies["llama"], budget=0.3, max_inputs=2)
    assert "joint-fitted" not in {row["estimator"] for row in default.curve}
    with pytest.raises(EigenlensError, match="joint-fitted is for causal attention"):
        el.plan(studies["bert"], budget=0.3, estimators="joint-fitted")

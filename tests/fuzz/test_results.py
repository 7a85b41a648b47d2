"""Plans, evaluations, collapse runs and explanations that are damaged are refused in one sentence,
or read whole.
"""

import json
import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import eigenlens as el
from eigenlens.collapses import Collapse
from eigenlens.errors import EigenlensError
from eigenlens.explanations import Explanation
from eigenlens.plans.evaluation import Evaluation

from .cases import run_case
from .mutations import DEEP
from .world import world

CASES = {"evaluation": 700, "explanation": 300, "plan": 200, "collapse": 150}
KINDS = {
    "evaluation": Evaluation,
    "explanation": Explanation,
    "plan": el.Plan,
    "collapse": Collapse,
}
BLOCK = 50


@pytest.mark.parametrize(
    ("kind", "block"),
    [(kind, block) for kind in sorted(CASES) for block in range(CASES[kind] // BLOCK)],
)
def test_damaged(kind, block):
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        run_case(kind, seed)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_undamaged_results_open(kind):
    json.dumps(KINDS[kind].open(world() / kind).record())


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_lists_nested_without_end_are_refused(kind, tmp_path):
    (tmp_path / f"{kind}.json").write_text(DEEP)
    with pytest.raises(EigenlensError, match="cannot be read: maximum recursion depth"):
        KINDS[kind].open(tmp_path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=10,
)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.sampled_from(sorted(KINDS)), st.data())
def test_any_json_in_the_place_of_any_part(tmp_path, kind, data):
    """A whole record with one of its parts replaced by whatever JSON can say."""
    folder = tmp_path / kind
    if not folder.exists():
        shutil.copytree(world() / kind, folder)
    record = json.loads((world() / kind / f"{kind}.json").read_text())
    key = data.draw(st.sampled_from(sorted(record)))
    inner = record[key]
    if isinstance(inner, dict) and inner and data.draw(st.booleans()):
        inner[data.draw(st.sampled_from(sorted(inner)))] = data.draw(JSON)
    else:
        record[key] = data.draw(JSON)
    (folder / f"{kind}.json").write_text(json.dumps(record))
    try:
        json.dumps(KINDS[kind].open(folder).record())
    except EigenlensError as error:
        assert str(error)


def test_a_plan_whose_tensors_do_not_fit_says_so_when_it_is_used(tmp_path):
    import torch
    from safetensors.torch import load_file, save_file

    from .mutations import digest

    folder = tmp_path / "plan"
    shutil.copytree(world() / "plan", folder)
    tensors = load_file(folder / "plan.safetensors")
    save_file(
        {name: x[:, :1].contiguous() if x.ndim > 1 else x for name, x in tensors.items()},
        folder / "plan.safetensors",
    )
    record = json.loads((folder / "plan.json").read_text())
    (folder / "plan.json").write_text(
        json.dumps({**record, "sha256": digest(folder / "plan.safetensors")})
    )
    model = el.load(world() / "bert")
    with (
        pytest.raises(EigenlensError, match="make the plan anew"),
        el.Plan.open(folder).applied(model),
        torch.no_grad(),
    ):
        model.module(input_ids=torch.arange(8)[None])

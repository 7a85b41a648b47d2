"""Plans for block-adaptive attention: budgets go where errors are, and a plan survives its file."""

import json

import pytest
import torch

from eigenlens.attention import BlockSettings
from eigenlens.captures import AttentionCall, Site, capture
from eigenlens.errors import EigenlensError
from eigenlens.plans.blocks import BlockPlan, Curves, allocate, fit, loss_gradients, measure
from tiny import small_llama

BASE = BlockSettings(
    (), query_block=32, key_block=1, first=4, local=32, samples=3, stride=8, round_to=8
)


def call(layer=0, T=256, sharpness=(6.0, 0.1), seed=0, **extras):
    """Two key-value heads of three query heads: one looks at few keys, the other at all alike."""
    g = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(1, heads, T, 16, generator=g) for heads in (6, 2, 2))
    q = q * torch.tensor(sharpness).repeat_interleave(3)[:, None, None]
    return AttentionCall(
        Site("self", layer), "self", "", q, k, v, 0.25, **({"causal": True} | extras)
    )


@pytest.fixture
def model():
    return small_llama()


def test_a_lower_bar_costs_more_and_errs_less():
    curves = measure(call(), BASE, (1e-2, 1e-3, 1e-5, 1e-9))
    assert (curves.pairs.diff(dim=0) >= 0).all()
    assert (curves.error.diff(dim=0) <= 1e-9).all()
    assert curves.error[-1].max() < 1e-9  # everything kept


def test_errors_are_those_of_the_output():
    """At one threshold, against the dense formula and the given gradient."""
    c, gradient = call(), torch.randn(1, 6, 256, 16, generator=torch.Generator().manual_seed(1))
    curves = measure(c, BASE, (3e-3,), gradient)
    plan = BlockPlan({Site("self", 0): BlockSettings(**{**vars(BASE), "thresholds": (3e-3, 3e-3)})})
    gap = plan.attend(c) - c.pattern() @ c.values
    expected = (gap * gradient).sum(3).square().sum((0, 2)).view(2, 3).sum(1)
    assert torch.allclose(curves.error[0].float(), expected, rtol=1e-3)


def test_the_budget_is_kept_and_spent_where_it_buys_most():
    errors = torch.tensor([[9.0, 1.0], [4.0, 0.9], [1.0, 0.8]]).double()
    pairs = torch.tensor([[10.0, 10.0], [20.0, 20.0], [40.0, 40.0]]).double()
    curves = {Site("self", 0): Curves(BASE, errors, pairs, 100.0)}
    plan = allocate(curves, 0.26, (3e-3, 2e-3, 1e-3))
    assert plan.expected["share"] <= 0.26
    # .40 and .10: the mean is .25
    assert plan.sites[Site("self", 0)].thresholds == pytest.approx((1e-3, 3e-3))
    assert allocate(curves, 1.0, (3e-3, 2e-3, 1e-3)).expected["error"] == 0
    # the hard head attends densely
    assert allocate(curves, 0.6, (3e-3, 2e-3, 1e-3)).sites[Site("self", 0)].thresholds[0] == 0


def test_larger_budgets_err_less_on_real_calls(model):
    ids = torch.randint(0, 50, (1, 256))
    with torch.no_grad(), capture(model.model) as calls:
        model(ids)
    plans = [fit(calls, budget, base=BASE) for budget in (0.65, 0.8, 1.0)]
    errors = [
        sum((p.attend(c) - c.pattern() @ c.values).square().sum() for c in calls) for p in plans
    ]
    assert errors[0] >= errors[1] > errors[2]  # the steps between are those of the convex hull
    assert errors[2] < 1e-8


def test_a_plan_survives_json():
    plan = fit([call(0), call(1, seed=1)], 0.6, base=BASE)
    again = BlockPlan.from_record(json.loads(json.dumps(plan.record())))
    assert again == plan
    assert torch.equal(again.attend(call(1, seed=2)), plan.attend(call(1, seed=2)))


def test_what_the_plan_does_not_know_is_left_to_the_model():
    plan = BlockPlan({Site("self", 0): BlockSettings(**{**vars(BASE), "thresholds": (1.0, 1.0)})})
    padded = torch.ones(1, 1, 256, 256).tril().bool()
    padded[..., :9] = False
    padded[..., :9, 0] = True
    for c in (call(7), call(0, causal=False, mask=padded), call(0, softcap=2.0)):
        assert plan.attend(c) is None
    assert not torch.allclose(plan.attend(call(0)), call(0).pattern() @ call(0).values, atol=1e-2)


def test_gradients_are_those_of_the_loss(model):
    """Against a finite difference along a random direction of one layer's heads."""
    ids = torch.randint(0, 50, (1, 24))
    gradients = loss_gradients(model, ids)
    direction, weight = torch.randn(1, 4, 24, 8), 1e-2
    model.config.use_cache = False

    def loss(step):
        hook = model.model.layers[1].self_attn.o_proj.register_forward_pre_hook(
            lambda m, args: (args[0] + step * direction.transpose(1, 2).flatten(2),)
        )
        with torch.no_grad():
            logits = model(ids).logits.double()
        hook.remove()
        return torch.nn.functional.cross_entropy(logits[0, :-1], ids[0, 1:], reduction="sum")

    slope = (loss(weight) - loss(-weight)) / (2 * weight)
    assert (gradients[Site("self", 1)] * direction).sum().item() == pytest.approx(
        slope.item(), rel=2e-2
    )
    assert all(p.requires_grad for p in model.parameters())
    assert model.config._attn_implementation == "sdpa"


def test_padded_calls_and_no_calls_are_refused():
    with pytest.raises(EigenlensError, match="causal"):
        measure(call(causal=False), BASE)
    with pytest.raises(EigenlensError, match="no attention call"):
        fit([])

"""Every mechanism that has a name: its fast form is its dense one at every length, with its
gradients, compiled and in models.
"""

import dataclasses

import pytest
import torch

from attention.by_name import DIRECTIONS, FREE, NAMES, SMALL, B, C, D, H, assert_same, inputs, made
from eigenlens import attention
from eigenlens.attention import make, mechanisms, register
from eigenlens.errors import EigenlensError
from tiny import small_bert, small_llama


@pytest.mark.parametrize("T", [1, 2, 7, 16, 21])
@pytest.mark.parametrize(("name", "causal"), DIRECTIONS)
def test_the_fast_form_is_the_dense_one_with_its_gradients(name, causal, T):
    assert_same(made(name, T), *inputs(T), causal=causal)


@pytest.mark.parametrize(("name", "causal"), DIRECTIONS)
def test_shared_key_value_heads_are_repeated(name, causal):
    mechanism = made(name, 9)
    q, k, v, x = inputs(9, G=2)
    given = {"causal": causal, "x": x}
    repeated = mechanism(q, k[:, [0, 0, 1, 1]], v[:, [0, 0, 1, 1]], **given)
    torch.testing.assert_close(mechanism(q, k, v, **given), repeated)


@pytest.mark.parametrize(("name", "causal"), DIRECTIONS)
def test_gradients_are_those_of_finite_differences(name, causal):
    mechanism = made(name, 5, torch.float64, heads=2)
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 5, D, dtype=torch.float64, requires_grad=True) for _ in range(3))
    x = torch.randn(1, 5, C, dtype=torch.float64, requires_grad=True)
    if mechanism.reads_stream:
        assert torch.autograd.gradcheck(
            lambda *t: mechanism(*t[:3], causal=causal, x=t[3]), (q, k, v, x)
        )
    else:
        assert torch.autograd.gradcheck(lambda *t: mechanism(*t, causal=causal), (q, k, v))


@pytest.mark.parametrize(("name", "causal"), DIRECTIONS)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_outputs_and_gradients_are_finite_at_logits_of_fifty(name, causal, sign):
    mechanism = made(name, 12)
    torch.manual_seed(1)
    direction = torch.randn(1, H, 1, D)
    direction /= direction.norm(dim=3, keepdim=True)
    strength = (50 * D**0.5) ** 0.5
    side = torch.randint(0, 2, (B, H, 12, 1)) * 2.0 - 1  # logits of +50 and −50 in one row
    q = (strength * direction.expand(B, H, 12, D)).clone().requires_grad_()
    k = (sign * strength * side * direction).requires_grad_()
    v, x = torch.randn(B, H, 12, D), torch.randn(B, 12, C)
    out = mechanism(q, k, v, causal=causal, x=x)
    out.square().sum().backward()
    assert (
        torch.isfinite(out).all()
        and torch.isfinite(mechanism.weights(q, k, causal=causal, x=x)).all()
    )
    assert all(
        t.grad is None or torch.isfinite(t.grad).all() for t in (q, k, *mechanism.parameters())
    )


@pytest.mark.slow
@pytest.mark.parametrize(("name", "causal"), DIRECTIONS)
def test_it_compiles_without_a_break(name, causal):
    mechanism = made(name, 21)
    q, k, v, x = inputs(21)
    torch._dynamo.reset()
    compiled = torch.compile(mechanism, backend="aot_eager", fullgraph=True)
    out = compiled(q, k, v, causal=causal, x=x)
    torch.testing.assert_close(out, mechanism(q, k, v, causal=causal, x=x), atol=1e-5, rtol=1e-5)
    out.sum().backward()
    assert q.grad is None or torch.isfinite(q.grad).all()


@pytest.mark.parametrize("name", NAMES)
def test_the_cost_grows_as_the_mechanism_says(name):
    mechanism = made(name, 8192)
    small, large = mechanism.cost(4096, 32), mechanism.cost(8192, 32)
    assert 0 < small < make("softmax").cost(4096, 32) * 2
    assert large <= 2.05 * small if mechanism.linear else large >= 3 * small


@pytest.mark.parametrize("name", NAMES)
def test_every_mechanism_says_its_formula_and_where_it_is_from(name):
    kind = mechanisms()[name]
    told = f"{kind.__doc__} {__import__(kind.__module__, fromlist=['x']).__doc__}"
    assert "`" in kind.__doc__ and "arXiv" in told
    assert dataclasses.is_dataclass(kind.Settings) and kind.Settings.__dataclass_params__.frozen


@pytest.mark.parametrize("name", FREE)
def test_without_weights_of_its_own_it_drops_into_models_of_transformers(name):
    """Padded inputs give what they give alone, in a decoder and in an encoder; or the model's kind
    is refused.
    """
    register(name, **SMALL.get(name, {}))
    for model, direction in ((small_llama(), "causal"), (small_bert(), "both ways")):
        model.set_attn_implementation(name)
        ids = torch.randint(1, 50, (2, 9))
        mask = torch.ones(2, 9, dtype=torch.long)
        mask[0, 6:] = 0
        if direction not in mechanisms()[name].directions:
            with pytest.raises(EigenlensError, match=name):
                model(ids)
            continue
        with torch.no_grad():
            both, short = model(ids, attention_mask=mask)[0], model(ids[:1, :6])[0]
        assert torch.isfinite(both).all()
        torch.testing.assert_close(both[:1, :6], short, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(FREE)))
def test_with_weights_of_its_own_it_is_refused_where_there_are_none(name):
    with pytest.raises(EigenlensError, match=f"{name} has weights of its own"):
        register(name)


def test_settings_and_names_that_do_not_exist_are_named():
    with pytest.raises(EigenlensError, match="no mechanism 'hardmax'; there are"):
        make("hardmax")
    with pytest.raises(EigenlensError, match="no setting 'temperature' of softmax; it has none"):
        make("softmax", temperature=2)
    assert attention.find("F") is attention.find("full") is mechanisms()["softmax"]


@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [("local", "window", "a"), ("local", "window", 1.5), ("fastmax", "p", True)],
)
def test_settings_of_another_type_are_refused(name, setting, value):
    with pytest.raises(
        EigenlensError,
        match=f"the setting {setting} of {name} must be a whole number, not {value!r}",
    ):
        make(name, **{setting: value})


@pytest.mark.parametrize(("name", "causal"), DIRECTIONS)
@pytest.mark.parametrize(("batch", "T"), [(0, 5), (2, 0)])
def test_of_nothing_comes_nothing(name, causal, batch, T):
    q, k, v, x = (
        torch.zeros(batch, H, T, D),
        torch.zeros(batch, H, T, D),
        torch.zeros(batch, H, T, D + 1),
        torch.zeros(batch, T, C),
    )
    assert made(name)(q, k, v, causal=causal, x=x).shape == (batch, H, T, D + 1)


def test_tensors_that_do_not_fit_are_refused():
    q, k, v, x = inputs(8)
    with pytest.raises(EigenlensError, match="four axes"):
        make("softmax")(q[0], k[0], v[0])
    with pytest.raises(EigenlensError, match="made for 3 heads, but the queries have 4"):
        made("delta", heads=3)(q, k, v, causal=True, x=x)
    with pytest.raises(EigenlensError, match="made for a stream of width 10, not 9"):
        made("delta")(q, k, v, causal=True, x=x[..., :9])
    with pytest.raises(EigenlensError, match=r"of 2 × 8 tokens, not one of shape \(2, 7, 10\)"):
        made("delta")(q, k, v, causal=True, x=x[:, :7])
    triangle = torch.ones(8, 8, dtype=torch.bool).tril()
    torch.testing.assert_close(
        make("softmax")(q, k, v, pairs=triangle), make("softmax")(q, k, v, causal=True)
    )

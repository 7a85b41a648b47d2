"""A float64 model that stays in float64, also where its own code asks for float32."""

import pytest
import torch
from torch import nn

from captures.families import FAMILIES, build, inputs
from collapses.by_hand import distance, forward, in_dtype, model_of, outputs
from collapses.forwards_by_hand import FORWARDS
from eigenlens.captures.precision import in_double, stays_double


@torch.no_grad()
@pytest.mark.parametrize("name", ["bert", "llama", "gpt_neox", "gemma2", "t5", "vit"])
def test_a_copy_in_double_leaves_the_model_alone(name):
    model, given = build(name), inputs(name)
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    copied = in_double(model)
    assert {p.dtype for p in copied.parameters()} == {torch.float64}
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    next(copied.parameters()).zero_()
    assert all(torch.equal(value, weights[key]) for key, value in model.state_dict().items())
    assert outputs(model(**given))[-1].dtype == torch.float32


@torch.no_grad()
@pytest.mark.parametrize("kind", FORWARDS)
def test_models_reach_what_is_computed_in_float64_throughout(kind):
    name = kind.partition("-")[0]
    model, given = model_of(kind), in_dtype(inputs(name))
    with stays_double():
        inside = outputs(model(**given))[-1]
    assert inside.dtype == torch.float64
    assert distance(inside, forward(kind, model, given)[-1]) < 1e-12


@torch.no_grad()
@pytest.mark.parametrize("kind", ["llama", "gpt_neox", "t5"])
def test_models_go_down_to_float32_by_themselves(kind):
    """Or there would be nothing to keep them from."""
    model, given = model_of(kind), in_dtype(inputs(kind))
    outside = outputs(model(**given))[-1]
    assert 1e-9 < distance(outside, forward(kind, model, given)[-1]) < 1e-5


@torch.no_grad()
@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "gpt_oss"])
def test_a_change_of_the_last_bits_is_carried_through(name):
    """Weights that differ by 1e-11 give outputs that differ as much: no part in between rounds to
    float32.
    """
    model, given = in_double(build(name)), in_dtype(inputs(name))
    with stays_double():
        before = outputs(model(**given))
        generator = torch.Generator().manual_seed(0)
        for parameter in model.parameters():
            parameter.mul_(
                1 + 1e-11 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            )
        after = outputs(model(**given))
    for one, other in zip(before, after):
        assert 1e-14 < distance(one, other) < 1e-9


def test_casts_of_every_spelling():
    x = torch.randn(3, 4, dtype=torch.float64)
    with stays_double():
        for cast in (
            x.float(),
            x.to(torch.float32),
            x.to(dtype=torch.float32),
            x.to("cpu", torch.float32),
            x.type(torch.float32),
            torch.softmax(x, -1, dtype=torch.float32),
            nn.functional.softmax(x, dim=-1, dtype=torch.float32),
            x.softmax(-1, dtype=torch.float32),
        ):
            assert cast.dtype == torch.float64
        assert torch.equal(x.to(torch.float32), x)
        torch.testing.assert_close(
            torch.softmax(x, -1, dtype=torch.float32), x.exp() / x.exp().sum(-1, keepdim=True)
        )


def test_other_types_are_cast_as_ever():
    with stays_double():
        assert torch.ones(2, dtype=torch.float16).float().dtype == torch.float32
        assert torch.ones(2, dtype=torch.long).to(torch.float32).dtype == torch.float32
        assert torch.ones(2, dtype=torch.float64).to(torch.bfloat16).dtype == torch.bfloat16
        assert torch.ones(2, dtype=torch.float64).to(torch.long).dtype == torch.long
        assert torch.ones(2).double().dtype == torch.float64


def test_it_ends_with_the_block_also_after_an_exception():
    x = torch.ones(2, dtype=torch.float64)
    with pytest.raises(ZeroDivisionError), stays_double():
        1 / 0  # noqa: B018
    assert x.float().dtype == torch.float32
    with stays_double():
        with stays_double():
            pass
        assert x.float().dtype == torch.float64
    assert x.float().dtype == torch.float32

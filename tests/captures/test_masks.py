"""One reading of masks.

Capture, registered mechanisms and drop-ins agree about every number that a model may write for
"never", in every dtype.
"""

import types

import pytest
import torch

from eigenlens.attention.linear import Linear
from eigenlens.attention.masks import EXCLUDES, added_numbers, adds_numbers, excluded, read_mask
from eigenlens.attention.registry import interface
from eigenlens.attention.softmax import Softmax
from eigenlens.captures import AttentionCall, Site
from eigenlens.plans.drop_in import attend, terms_of

NEVER = (
    *(-9e3 + 1, -9.5e3, -9984.0, -1e4, -1e9, -65504.0),
    torch.finfo(torch.bfloat16).min,
    -torch.inf,
)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
B, H, T, D = 2, 2, 6, 4
MODULE = types.SimpleNamespace(is_causal=False)


def number(value, dtype):
    """A number of a dtype; one that is out of its range is infinite."""
    return torch.tensor(value, dtype=torch.float64).to(dtype)


def band():
    """Each query sees itself and the key before it: neither causality nor padding, (1, 1, T, T)."""
    places = torch.arange(T)
    return ((places[:, None] - places[None]).abs() <= 1)[None, None]


def padded():
    """The last key of the second input is padding, (B, 1, T, T)."""
    keys = torch.ones(B, 1, 1, T, dtype=torch.bool)
    keys[1, ..., -1] = False
    return keys.expand(B, 1, T, T)


ALLOWED = {
    "causal": torch.ones(1, 1, T, T, dtype=torch.bool).tril(),
    "band": band(),
    "padded": padded(),
}


def tensors(dtype):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(B, H, T, D, generator=generator).to(dtype) for _ in range(3)]


def written(allowed, value, dtype):
    """An additive mask as a model writes it."""
    zero = torch.zeros((), dtype=dtype)
    return torch.where(allowed, zero, number(value, dtype))


def eager(q, k, mask):
    """Softmax over scores to which the mask is added, in float64, (B, H, T, T)."""
    scores = q.double() @ k.double().transpose(2, 3) * D**-0.5
    return (scores + mask.double()).softmax(-1)


def made(q, k, v, mask):
    return AttentionCall(Site("self", 0), "self", "layer", q, k, v, D**-0.5, mask=mask)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("value", NEVER)
@pytest.mark.parametrize("form", ALLOWED)
def test_every_reader_excludes_the_same_pairs(form, value, dtype):
    allowed = ALLOWED[form]
    q, k, v = tensors(dtype)
    mask = written(allowed, value, dtype)
    assert torch.equal(excluded(mask), ~allowed) and not adds_numbers(mask)
    pattern = eager(q, k, mask)
    assert not pattern[(~allowed).expand_as(pattern)].any()

    call, by_booleans = made(q, k, v, mask), made(q, k, v, allowed)
    assert call.linear
    assert call.mask_shape.form == by_booleans.mask_shape.form
    assert torch.equal(call.valid(), by_booleans.valid())
    torch.testing.assert_close(call.pattern().double(), pattern, atol=1e-6, rtol=1e-5)

    read = read_mask(mask, T, T)
    for mine, theirs in zip(read, read_mask(allowed, T, T)):
        assert mine is theirs or torch.equal(mine, theirs)
    terms = terms_of(Softmax(), call)[2]
    for mine, theirs in zip((terms["causal"], terms["keys"], terms["pairs"]), read):
        assert mine is theirs or torch.equal(mine, theirs)

    output = pattern @ v.double()
    close = {"atol": 1e-5, "rtol": 1e-4} if dtype == torch.float32 else {"atol": 3e-2, "rtol": 3e-2}
    registered, _ = interface(Softmax())(MODULE, q, k, v, mask, scaling=D**-0.5)
    torch.testing.assert_close(registered.transpose(1, 2).double(), output, **close)
    torch.testing.assert_close(attend(Softmax(), call).double(), output, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("value", NEVER)
def test_a_mechanism_without_pairs_runs_with_every_way_to_write_causality(value, dtype):
    q, k, v = tensors(dtype)
    mask = written(ALLOWED["causal"], value, dtype)
    expected = Linear()(q, k, v, causal=True, scale=D**-0.5)
    given, _ = interface(Linear())(MODULE, q, k, v, mask, scaling=D**-0.5)
    torch.testing.assert_close(given.transpose(1, 2), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_bound_is_the_same_number_in_every_dtype(dtype):
    assert float(number(EXCLUDES, dtype)) == EXCLUDES
    assert number(EXCLUDES, torch.float64).exp() == 0
    step = EXCLUDES * torch.finfo(dtype).eps / 2  # the next number towards zero
    at, above = number(EXCLUDES, dtype), number(EXCLUDES - step, dtype)
    assert bool(excluded(at)) and not bool(excluded(above))
    assert float(at) < float(above)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("value", (-100.0, -4096.0, 3.0))
def test_numbers_above_the_bound_are_added(value, dtype):
    """Swin writes −100 for pairs of different windows: a small probability, not none."""
    q, k, v = tensors(dtype)
    mask = written(ALLOWED["band"], value, dtype)
    assert adds_numbers(mask) and not bool(excluded(mask).any())
    assert torch.equal(added_numbers(mask), mask)
    call = made(q, k, v, mask)
    assert not call.linear and call.mask_shape.form == "full"
    pattern = eager(q, k, mask)
    torch.testing.assert_close(call.pattern().double(), pattern, atol=1e-6, rtol=1e-5)
    terms = terms_of(Softmax(), call)[2]
    assert torch.equal(terms["pairs"], mask) and not terms["causal"] and terms["keys"] is None


def alibi(slope):
    """`−slope · (i − j)` of earlier keys, (1, 1, T, T)."""
    places = torch.arange(T, dtype=torch.float32)
    return -slope * (places[:, None] - places[None]).clamp_min(0)[None, None]


@pytest.mark.parametrize("slope", (0.5, 1000.0, 5000.0))
def test_a_bias_of_positions_below_the_bound_is_no_mask(slope):
    """ALiBi over a very long text: pairs count, and the pattern is that of eager attention."""
    q, k, v = tensors(torch.float32)
    bias, causal = alibi(slope), ALLOWED["causal"]
    call = AttentionCall(Site("self", 0), "self", "layer", q, k, v, D**-0.5, mask=causal, bias=bias)
    assert call.mask_shape.form == "causal"
    assert bool(call.scores()[causal.expand(B, H, T, T)].isfinite().all())
    pattern = eager(q, k, bias + written(causal, -torch.inf, torch.float32))
    torch.testing.assert_close(call.pattern().double(), pattern, atol=1e-6, rtol=1e-5)
    inside = made(q, k, v, bias + written(causal, -1e9, torch.float32))  # one sum of both
    torch.testing.assert_close(inside.pattern().double(), pattern, atol=1e-6, rtol=1e-5)
    registered, _ = interface(Softmax())(
        MODULE, q, k, v, written(causal, -1e4, torch.float32), D**-0.5, position_bias=bias
    )
    expected = pattern @ v.double()
    torch.testing.assert_close(registered.transpose(1, 2).double(), expected, atol=1e-5, rtol=1e-4)

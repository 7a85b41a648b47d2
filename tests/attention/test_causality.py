"""Every mechanism without a look ahead, and with fewer queries than keys."""

import pytest
import torch

from attention.by_name import BOTH_WAYS, CAUSAL, NAMES, assert_same, cross, inputs, made
from eigenlens.attention import mechanisms
from eigenlens.errors import EigenlensError


@pytest.mark.parametrize("name", CAUSAL)
@pytest.mark.parametrize("at", [1, 8, 13, 20])
def test_no_earlier_output_moves_when_a_later_token_does(name, at):
    mechanism = made(name, 21)
    q, k, v, x = (t.detach() for t in inputs(21))
    before = mechanism(q, k, v, causal=True, x=x)
    for t in (q, k, v):
        t[:, :, at:] += 5 * torch.randn_like(t[:, :, at:])
    x[:, at:] += 5 * torch.randn_like(x[:, at:])
    after = mechanism(q, k, v, causal=True, x=x)
    assert float((after - before)[:, :, :at].abs().max()) < 1e-6
    assert float((after - before)[:, :, at:].abs().max()) > 1e-4


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(CAUSAL)))
def test_what_cannot_be_causal_says_so(name):
    q, k, v, x = inputs(8)
    with pytest.raises(EigenlensError, match=f"{name} .* cannot be causal"):
        made(name, 8)(q, k, v, causal=True, x=x)


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(BOTH_WAYS)))
def test_what_is_always_causal_says_so(name):
    q, k, v, x = inputs(8)
    with pytest.raises(EigenlensError, match=f"{name} .* must be causal; call it with causal=True"):
        made(name, 8)(q, k, v, x=x)


@pytest.mark.parametrize("name", [name for name in CAUSAL if not mechanisms()[name].reads_stream])
@pytest.mark.parametrize("T", [1, 5])
def test_fewer_queries_than_keys_are_the_last_ones(name, T):
    """As in generation: the output of the last T tokens, whose keys and values are all that is left
    of the others.
    """
    mechanism = made(name, 13)
    q, k, v, _ = inputs(13)
    whole = mechanism(q, k, v, causal=True)[:, :, -T:]
    torch.testing.assert_close(
        mechanism(q[:, :, -T:], k, v, causal=True), whole, atol=1e-5, rtol=1e-5
    )
    assert_same(mechanism, q[:, :, -T:], k, v, None, causal=True)


@pytest.mark.parametrize("name", [name for name in BOTH_WAYS if cross(mechanisms()[name])])
@pytest.mark.parametrize(("T", "S"), [(5, 12), (12, 5)])
def test_queries_of_one_sequence_attend_to_another(name, T, S):
    assert_same(made(name, S), *inputs(T, S))

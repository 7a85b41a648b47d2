"""Windows and sinks: which pairs are seen, told one by one.

And softmax with one more in the denominator.
"""

import pytest
import torch

from eigenlens.attention import make
from eigenlens.errors import EigenlensError


def by_hand(q, k, v, window, sinks, causal, keys=None):
    """Loops over queries and keys."""
    B, H, T, D = q.shape
    S = k.shape[2]
    out = torch.zeros(B, H, T, v.shape[3], dtype=q.dtype)
    for b in range(B):
        stands = [j for j in range(S) if keys is None or keys[b, j]]
        for row in range(T):
            i = row + S - T if causal else row
            near = [j for j in stands if (i - window < j <= i if causal else abs(i - j) < window)]
            first = [j for j in stands[:sinks] if j not in near and (not causal or j <= i)]
            seen = first + near
            for h in range(H):
                if seen:
                    weights = torch.softmax(k[b, h, seen] @ q[b, h, row] / D**0.5, 0)
                    out[b, h, row] = weights @ v[b, h, seen]
    return out


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("window", "sinks"), [(1, 0), (1, 3), (4, 1), (17, 2), (20, 0), (100, 4)])
@pytest.mark.parametrize("T", [1, 15, 16, 33, 50])
def test_a_query_sees_its_window_and_the_sinks(window, sinks, causal, T):
    q, k, v = (torch.randn(1, 2, T, 4, dtype=torch.float64) for _ in range(3))
    expected = by_hand(q, k, v, window, sinks, causal)
    torch.testing.assert_close(
        make("window", window=window, sinks=sinks)(q, k, v, causal=causal), expected
    )
    if not sinks:
        torch.testing.assert_close(make("local", window=window)(q, k, v, causal=causal), expected)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("sinks", [0, 2])
def test_the_sinks_are_the_first_tokens_that_stand_and_a_query_that_sees_nothing_gives_zero(
    causal, sinks
):
    q, k, v = (torch.randn(3, 2, 40, 4, dtype=torch.float64) for _ in range(3))
    keys = torch.ones(3, 40, dtype=torch.bool)
    keys[0, :9], keys[1, 25:], keys[2] = False, False, False
    keys[1, 3] = False  # a hole
    out = make("window", window=5, sinks=sinks)(q, k, v, causal=causal, keys=keys)
    torch.testing.assert_close(out, by_hand(q, k, v, 5, sinks, causal, keys))
    assert float(out[2].abs().max()) == 0.0
    # further than a window from the last token
    assert float(out[1, :, 35:].abs().max()) == 0.0 or sinks


@pytest.mark.parametrize("T", [1, 3, 30])
def test_the_last_queries_of_many_keys(T):
    q, k, v = torch.randn(1, 1, T, 4), torch.randn(1, 1, 90, 4), torch.randn(1, 1, 90, 4)
    out = make("window", window=7, sinks=3)(q, k, v, causal=True)
    torch.testing.assert_close(out, by_hand(q, k, v, 7, 3, True))


def test_a_window_over_the_whole_input_is_full_attention():
    q, k, v = (torch.randn(2, 2, 50, 8) for _ in range(3))
    for causal in (True, False):
        full = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        torch.testing.assert_close(make("local", window=50)(q, k, v, causal=causal), full)


def test_no_tensor_of_the_fast_form_is_as_large_as_the_pairs():
    """The largest tensor that an operation makes, in numbers a head, at two lengths."""

    class Largest(torch.utils._python_dispatch.TorchDispatchMode):
        size = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            for t in out if isinstance(out, tuple | list) else [out]:
                if isinstance(t, torch.Tensor):
                    self.size = max(self.size, t.numel())
            return out

    sizes = []
    for n in (1024, 4096):
        q, k, v = (torch.randn(1, 1, n, 8) for _ in range(3))
        with torch.no_grad(), Largest() as largest:
            make("window", window=32, sinks=2)(q, k, v, causal=True)
        sizes.append(largest.size)
    assert sizes[1] < 4.1 * sizes[0] < 0.2 * 4096**2


def test_one_more_in_the_denominator():
    q, k, v = (torch.randn(1, 2, 9, 4, dtype=torch.float64) for _ in range(3))
    for causal in (True, False):
        e = (q @ k.transpose(2, 3) / 2).exp()
        e = e.tril() if causal else e
        expected = e / (1 + e.sum(3, keepdim=True))
        torch.testing.assert_close(make("off-by-one")(q, k, v, causal=causal), expected @ v)
        torch.testing.assert_close(make("off-by-one").weights(q, k, causal=causal), expected)
        assert float(expected.sum(3).max()) < 1


def test_scores_that_overflow_alone_do_not_beside_the_one():
    q, k, v = (
        torch.full((1, 1, 3, 1), 30.0),
        torch.tensor([30.0, -30.0, 0.0]).view(1, 1, 3, 1),
        torch.randn(1, 1, 3, 1),
    )
    out = make("off-by-one")(q, k, v)  # scores of 900, −900 and 0
    torch.testing.assert_close(out, v[:, :, :1].expand(1, 1, 3, 1))


@pytest.mark.parametrize(
    ("name", "settings", "told"),
    [
        ("window", {"window": 0}, "at least 1 token, not 0"),
        ("local", {"window": -2}, "at least 1 token, not -2"),
        ("window", {"sinks": -1}, "0 or more, not -1"),
        ("sinkhorn", {"iterations": 0}, "iterations .* at least 1, not 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(name, settings, told):
    with pytest.raises(EigenlensError, match=told):
        make(name, **settings)


@pytest.mark.parametrize("name", ["window", "local"])
def test_queries_of_another_sequence_have_no_place_and_are_refused(name):
    q, k = torch.randn(1, 2, 5, 4), torch.randn(1, 2, 9, 4)
    with pytest.raises(EigenlensError, match="as many queries as keys, not 5 queries and 9 keys"):
        make(name)(q, k, k)

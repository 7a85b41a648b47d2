"""Fastmax against loops over tokens.

Its polynomial, its features, its rank, what its normalisations do and refuse.
"""

import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from eigenlens.attention import find, make
from eigenlens.attention.fastmax import Fastmax, _features, _pairs, _rows
from eigenlens.attention.prefix import causal_product, full_product
from eigenlens.errors import EigenlensError

B, H, N, D, E = 2, 3, 19, 5, 4
WAYS = [
    (1, "token"),
    (1, "centred"),
    (1, "tokens"),
    (2, "token"),
    (2, "centred"),
    (2, "tokens"),
    (2, "none"),
]


def inputs(n=N, seed=0, size=1.0, dtype=torch.float32, d=D):
    torch.manual_seed(seed)
    return [(size * torch.randn(B, H, n, width)).to(dtype).requires_grad_() for width in (d, d, E)]


def by_hand(q, k, v, p, normalise, causal, scale):
    """One pair after the other, in float64."""
    q, k, v = (x.detach().double() for x in (q, k, v))
    if normalise == "centred":
        q, k = (x - x.mean(3, keepdim=True) for x in (q, k))
    if normalise in ("token", "centred"):
        q, k = (x / x.norm(dim=3, keepdim=True) for x in (q, k))
    if normalise == "tokens":
        q, k = (x / x.norm(dim=3).max(2).values[:, :, None, None] for x in (q, k))
    if normalise == "none":
        scale = 1.0 if scale is None else scale * q.shape[3] ** 0.5
        q = q * scale / q.shape[3] ** 0.5
    if p == 1:
        k = k * 0.999
    out = torch.zeros_like(v)
    for b in range(B):
        for h in range(H):
            for i in range(q.shape[2]):
                seen = range(i + 1) if causal else range(k.shape[2])
                x = [float(q[b, h, i] @ k[b, h, j]) for j in seen]
                f = [sum(t**l / math.factorial(l) for l in range(p + 1)) for t in x]
                out[b, h, i] = sum(w * v[b, h, j] for w, j in zip(f, seen)) / sum(f)
    return out.float()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("p", "normalise"), WAYS)
def test_it_is_the_formula(p, normalise, causal):
    q, k, v = inputs(9)
    mechanism = make("fastmax", p=p, normalise=normalise, chunk=4)
    if normalise == "tokens" and causal:
        with pytest.raises(EigenlensError, match="cannot be causal; choose normalise='token'"):
            mechanism(q, k, v, causal=True)
        return
    for scale in (None, 0.7):
        wanted = by_hand(q, k, v, p, normalise, causal, scale)
        torch.testing.assert_close(
            mechanism(q, k, v, causal=causal, scale=scale), wanted, atol=1e-5, rtol=1e-5
        )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("chunk", [1, 4, 64])
@pytest.mark.parametrize(("p", "normalise"), WAYS)
def test_both_forms_agree_with_gradients_for_every_setting(p, normalise, chunk, causal):
    if normalise == "tokens" and causal:
        pytest.skip("refused")
    qkv, mechanism = inputs(), make("fastmax", p=p, normalise=normalise, chunk=chunk)
    keys = torch.ones(B, N, dtype=torch.bool)
    keys[0, 15:] = False
    weight = torch.randn(B, H, N, E) * keys[:, None, :, None]
    outs = [form(*qkv, causal=causal, keys=keys) for form in (mechanism, mechanism.reference)]
    torch.testing.assert_close(outs[0] * weight, outs[1] * weight, atol=1e-5, rtol=1e-5)
    found = [torch.autograd.grad((out * weight).sum(), qkv) for out in outs]
    for left, right in zip(*found):
        torch.testing.assert_close(left, right, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("p", [1, 2])
def test_rows_sum_to_one_and_weights_are_positive(p, causal):
    q, k, _ = inputs(50)
    A = make("fastmax", p=p).weights(q, k, causal=causal)
    torch.testing.assert_close(A.sum(3), torch.ones(B, H, 50))
    assert float(A.detach().min()) >= 0


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("d", [1, 2, 4])
def test_its_rank_is_at_most_the_number_of_monomials(p, d):
    """And reaches it, for random vectors and enough tokens."""
    q, k, _ = inputs(60, dtype=torch.float64, d=d)
    A = make("fastmax", p=p, normalise="tokens").weights(q, k).detach()
    assert int(torch.linalg.matrix_rank(A, rtol=1e-10).max()) == math.comb(d + p, p)


def test_the_features_are_the_monomials_of_the_polynomial():
    q, k, _ = inputs(7, dtype=torch.float64)
    a, b, weights = _pairs(q)
    phi_q, phi_k = (_features(_rows(x), a, b) for x in (q, k))
    assert phi_q.shape == (B, H, math.comb(D + 2, 2), 7)
    x = q @ k.transpose(2, 3)
    torch.testing.assert_close((phi_q * weights[:, None]).transpose(2, 3) @ phi_k, 1 + x + x**2 / 2)


def test_the_kernel_of_second_order_is_at_least_a_half():
    x = torch.linspace(-10, 10, 2001, dtype=torch.float64)
    values = Fastmax().kernel(x)
    assert float(values.min()) == pytest.approx(0.5) and float(x[values.argmin()]) == pytest.approx(
        -1
    )


def test_the_kernel_of_first_order_stays_positive_and_where_it_would_not_it_is_refused():
    """Keys exactly opposite to the query: the worst case of unit vectors."""
    q = torch.randn(1, 1, 6, D)
    out = make("fastmax", p=1)(q, -q[:, :, :1].expand_as(q), torch.ones(1, 1, 6, E), causal=True)
    torch.testing.assert_close(out, torch.ones_like(out))
    with pytest.raises(EigenlensError, match="negative below −1; choose p=2"):
        make("fastmax", p=1, normalise="none")


@pytest.mark.parametrize(("p", "normalise"), [way for way in WAYS if way[1] != "tokens"])
def test_no_earlier_output_moves_when_a_later_token_does(p, normalise):
    mechanism = make("fastmax", p=p, normalise=normalise, chunk=4)
    q, k, v = (x.detach() for x in inputs(21))
    before = mechanism(q, k, v, causal=True)
    for x in (q, k, v):
        x[:, :, 13:] = 40.0
    assert float((mechanism(q, k, v, causal=True) - before)[:, :, :13].abs().max()) < 1e-6


def test_a_largest_length_over_tokens_does_tell_of_the_future():
    """Why "tokens" is refused under a causal mask.

    The padding of later tokens changes what the first ones see.
    """
    mechanism = make("fastmax", normalise="tokens")
    q, k, v = (x.detach() for x in inputs(21))
    keys = torch.arange(21).expand(B, 21) < 10
    before = mechanism(q, k, v, keys=keys)[:, :, :10]
    alone = mechanism(q[:, :, :10], k[:, :, :10], v[:, :, :10])
    torch.testing.assert_close(before, alone, atol=1e-5, rtol=1e-5)  # padding does not count
    k[:, :, 9] *= 50  # the last token that stands: all weights of the others move towards 1
    A = mechanism.weights(q, k, keys=keys)[:, :, :9, :9]
    assert float((A / A[..., :1]).sub(1).abs().max()) < 0.1


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("causal", [False, True])
def test_the_operations_grow_with_the_length_and_the_cost_says_how_many(p, causal):
    """Against torch's own counter: four times the tokens take about four times the products.

    The bound of eight is the sheet's.
    """
    mechanism, counted = make("fastmax", p=p), {}
    for n in (1024, 4096):
        q, k, v = (torch.zeros(1, 1, n, 16) for _ in range(3))
        with FlopCounterMode(display=False) as counter:
            mechanism(q, k, v, causal=causal)
        counted[n] = counter.get_total_flops() / 2
    assert 3.9 < counted[4096] / counted[1024] < 4.5
    assert counted[4096] <= mechanism.cost(4096, 16) <= counted[4096] * (1.05 if causal else 10)


def test_nothing_as_large_as_a_feature_of_every_token_and_value_is_formed():
    """The largest tensor of a causal pass for D = E = 16: below N·D^{p+1}/2 numbers."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        size = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            for x in out if isinstance(out, tuple | list) else (out,):
                if isinstance(x, torch.Tensor):
                    self.size = max(self.size, x.untyped_storage().nbytes() // x.element_size())
            return out

    n, d = 2048, 16
    for p in (1, 2):
        with Largest() as seen:
            make("fastmax", p=p)(*(torch.randn(1, 1, n, d) for _ in range(3)), causal=True)
        assert seen.size < n * d ** (p + 1) / 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_sums_in_single(dtype):
    q, k, v = (x.detach().to(dtype) for x in inputs(300))
    for p in (1, 2):
        out = make("fastmax", p=p)(q, k, v, causal=True)
        wanted = make("fastmax", p=p)(q.float(), k.float(), v.float(), causal=True)
        assert out.dtype == dtype
        torch.testing.assert_close(out.float(), wanted, atol=4e-3, rtol=1e-2)


@pytest.mark.parametrize(("T", "chunk"), [(1, 4), (7, 4), (13, 4), (13, 64), (13, 1), (12, 4)])
def test_the_running_sums_are_those_of_a_loop(T, chunk):
    torch.manual_seed(2)
    a, b, v = torch.rand(B, H, T, 6), torch.rand(B, H, 13, 6), torch.randn(B, H, 13, E)
    above, below = causal_product(a, b, v, chunk)
    for i in range(T):
        seen = slice(0, 13 - T + i + 1)
        weights = torch.einsum("bhf,bhjf->bhj", a[:, :, i], b[:, :, seen])
        torch.testing.assert_close(below[:, :, i, 0], weights.sum(2), atol=1e-5, rtol=1e-5)
        wanted = torch.einsum("bhj,bhje->bhe", weights, v[:, :, seen])
        torch.testing.assert_close(above[:, :, i], wanted, atol=1e-5, rtol=1e-5)
    whole = full_product(a, b, v)
    torch.testing.assert_close(
        whole[0], torch.einsum("bhif,bhjf,bhje->bhie", a, b, v), atol=1e-5, rtol=1e-5
    )
    torch.testing.assert_close(
        whole[1][..., 0], torch.einsum("bhif,bhjf->bhi", a, b), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"p": 3}, "p of fastmax must be 1 or 2, not 3"),
        ({"normalise": "max"}, "normalise of fastmax must be one of .*, not 'max'"),
        ({"chunk": 0}, "chunk of fastmax must be at least 1 token, not 0"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(EigenlensError, match=message):
        make("fast", **settings)
    assert find("fast") is Fastmax

"""The recurrences.

The loop is the formula, the chunked form is the loop, and a state does what its rule says.
"""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from eigenlens.attention import Shape, make
from eigenlens.attention.delta_rule import chunked, recurrent
from eigenlens.errors import EigenlensError

B, H, D, E = 2, 3, 8, 5
RULES = {
    "delta": (False, True, True),
    "gated linear": (True, False, False),
    "gated delta": (True, True, True),
}
DECAYS = {"weak": (0.9, 1.0), "any": (1e-6, 1.0), "strong": (1e-37, 1e-30)}


def drawn(T, decays="weak", dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    q, k = (F.normalize(torch.randn(B, H, T, D, dtype=dtype), dim=3) for _ in range(2))
    low, high = np.log(DECAYS[decays])
    alpha = (low + (high - low) * torch.rand(B, H, T, dtype=dtype)).exp()
    return q, k, torch.randn(B, H, T, E, dtype=dtype), alpha, torch.rand(B, H, T, dtype=dtype)


def chosen(rule, alpha, beta):
    gated, strength, erase = RULES[rule]
    return alpha if gated else None, beta if strength else None, erase


def formula(q, k, v, alpha, beta, erase):
    """One head in double precision, by the matrices of the formula."""
    S, out = np.zeros((v.shape[1], q.shape[1])), []
    for t in range(len(q)):
        a, b = 1.0 if alpha is None else alpha[t], 1.0 if beta is None else beta[t]
        S = a * S @ (np.eye(q.shape[1]) - b * np.outer(k[t], k[t])) if erase else a * S
        S = S + b * np.outer(v[t], k[t])
        out.append(S @ q[t])
    return np.array(out)


def by_formula(q, k, v, alpha, beta, erase):
    q, k, v, alpha, beta = (
        None if t is None else t.detach().double().numpy() for t in (q, k, v, alpha, beta)
    )
    heads = [
        formula(
            q[b, h],
            k[b, h],
            v[b, h],
            None if alpha is None else alpha[b, h],
            None if beta is None else beta[b, h],
            erase,
        )
        for b in range(q.shape[0])
        for h in range(q.shape[1])
    ]
    return torch.tensor(np.array(heads)).view(*v.shape)


@pytest.mark.parametrize("decays", DECAYS)
@pytest.mark.parametrize("rule", RULES)
def test_the_loop_and_the_chunks_are_the_formula(rule, decays):
    q, k, v, alpha, beta = drawn(133, decays)
    gates = chosen(rule, alpha, beta)
    wanted = by_formula(q, k, v, *gates).float()
    torch.testing.assert_close(recurrent(q, k, v, *gates), wanted, atol=1e-5, rtol=1e-5)
    for chunk in (1, 2, 16, 32, 64, 200):
        torch.testing.assert_close(chunked(q, k, v, *gates, chunk), wanted, atol=1e-5, rtol=1e-5)


def test_one_strong_decay_does_not_blur_the_weak_ones_behind_it():
    """In single precision a difference of two long sums of logarithms would be wrong in the fifth
    digit.
    """
    q, k, v, alpha, beta = drawn(64)
    alpha[:, :, :20] = 1e-37
    wanted = by_formula(q, k, v, alpha, beta, True).float()
    torch.testing.assert_close(
        chunked(q, k, v, alpha, beta, chunk=64), wanted, atol=2e-6, rtol=2e-6
    )


@pytest.mark.parametrize("rule", RULES)
def test_gradients_of_the_chunks_are_those_of_the_loop(rule):
    inputs = [t.requires_grad_() for t in drawn(75, "any", torch.float64)]
    weight = torch.randn(B, H, 75, E, dtype=torch.float64)
    found = []
    for form in (recurrent, lambda *t: chunked(*t, 16)):
        out = form(*inputs[:3], *chosen(rule, *inputs[3:]))
        found.append(torch.autograd.grad((out * weight).sum(), inputs, allow_unused=True))
    for left, right in zip(*found):
        assert (left is None) == (right is None)
        if left is not None:
            torch.testing.assert_close(left, right, atol=1e-9, rtol=1e-9)


def test_many_tokens_stay_equal_in_single_precision():
    q, k, v, alpha, beta = drawn(2100)
    for rule in RULES:
        gates = chosen(rule, alpha, beta)
        wanted = by_formula(
            q[:1, :1],
            k[:1, :1],
            v[:1, :1],
            *(g[:1, :1] if torch.is_tensor(g) else g for g in gates),
        ).float()
        torch.testing.assert_close(chunked(q, k, v, *gates)[:1, :1], wanted, atol=1e-5, rtol=1e-5)


def test_a_sequence_can_go_on_from_the_state_of_its_beginning():
    q, k, v, alpha, beta = drawn(50, dtype=torch.float64)
    S = np.zeros((B, H, E, D))
    for b, h, t in np.ndindex(B, H, 30):
        a, s, key = alpha[b, h, t].item(), beta[b, h, t].item(), k[b, h, t].numpy()
        S[b, h] = a * S[b, h] @ (np.eye(D) - s * np.outer(key, key)) + s * np.outer(
            v[b, h, t].numpy(), key
        )
    rest = chunked(
        *(x[:, :, 30:] for x in (q, k, v, alpha, beta)), chunk=8, before=torch.tensor(S).mT
    )
    torch.testing.assert_close(rest, by_formula(q, k, v, alpha, beta, True)[:, :, 30:])


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_single(kind):
    q, k, v, alpha, beta = (t.to(kind) for t in drawn(40))
    out = chunked(q, k, v, alpha, beta)
    assert out.dtype == kind
    wanted = chunked(*(t.float() for t in (q, k, v, alpha, beta))).to(kind)
    torch.testing.assert_close(out, wanted, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["delta", "gated-linear", "gated-delta"])
def test_the_pattern_is_the_product_over_the_tokens_between(name):
    """`A_tj = β_j q_tᵀ [Π_{i=t…j+1} α_i (I − β_i k_i k_iᵀ)] k_j`, every product formed anew."""
    torch.manual_seed(1)
    T, C = 9, 7
    mechanism = make(name, Shape(H, D, C)).double()
    q, k = (torch.randn(B, H, T, D, dtype=torch.float64) for _ in range(2))
    x = torch.randn(B, T, C, dtype=torch.float64)
    A = mechanism.weights(q, k, causal=True, x=x).detach()
    alpha, beta = (
        torch.ones(B, H, T) if g is None else g.detach() for g in mechanism.gates(x, None)
    )
    q, k = q / q.norm(dim=3, keepdim=True), k / k.norm(dim=3, keepdim=True)
    one = torch.eye(D, dtype=torch.float64)
    for b, h, t, j in np.ndindex(B, H, T, T):
        if j > t:
            assert A[b, h, t, j] == 0
            continue
        between = one
        for i in range(j + 1, t + 1):
            erased = (
                one - beta[b, h, i] * torch.outer(k[b, h, i], k[b, h, i])
                if mechanism.erasing
                else one
            )
            between = alpha[b, h, i] * erased @ between
        torch.testing.assert_close(A[b, h, t, j], beta[b, h, j] * q[b, h, t] @ between @ k[b, h, j])


def test_the_delta_rule_replaces_what_a_key_held_and_sums_do_not():
    """The same key is written twice: read back, it holds the second value, and in a sum both."""
    k = torch.eye(4)[[0, 1, 0]][None, None]  # (1, 1, 3, 4)
    v = torch.tensor([[1.0], [5.0], [7.0]])[None, None]
    replaced, summed = (
        chunked(k, k, v, None, None, erase, 2)[0, 0, 2, 0] for erase in (True, False)
    )
    assert replaced == 7.0 and summed == 8.0


def test_heads_begin_with_memories_of_ten_to_a_thousand_tokens():
    alpha, beta = make("gated-delta", Shape(4, D, 6)).gates(torch.zeros(1, 2, 6), None)
    torch.testing.assert_close(
        -alpha[0, :, 0].log(),
        torch.tensor([1e-3, 10 ** (-7 / 3), 10 ** (-5 / 3), 1e-1]),
        rtol=1e-3,
        atol=0,
    )
    torch.testing.assert_close(beta, torch.full((1, 4, 2), 0.5))


@pytest.mark.parametrize("name", ["delta", "gated-linear", "gated-delta"])
def test_a_padded_token_neither_decays_nor_writes(name):
    """In the middle of a sequence it might as well not be there."""
    torch.manual_seed(2)
    mechanism = make(name, Shape(H, D, 6), chunk=4)
    q, k, v, x = (
        torch.randn(B, H, 11, D),
        torch.randn(B, H, 11, D),
        torch.randn(B, H, 11, E),
        torch.randn(B, 11, 6),
    )
    stands = torch.tensor([True] * 5 + [False] * 2 + [True] * 4)
    whole = mechanism(q, k, v, causal=True, keys=stands.expand(B, -1), x=x)[:, :, stands]
    short = mechanism(*(t[:, :, stands] for t in (q, k, v)), causal=True, x=x[:, stands])
    torch.testing.assert_close(whole, short, atol=1e-6, rtol=1e-5)


def test_linear_attention_is_a_weighted_mean_by_products_of_elu_plus_one():
    torch.manual_seed(3)
    q, k, v = (3 * torch.randn(1, 1, 11, D, dtype=torch.float64) for _ in range(3))
    left, right = (F.elu(t[0, 0]) + 1 for t in (q, k))
    causal, both = (make("linear", chunk=4)(q, k, v, causal=c)[0, 0] for c in (True, False))
    for i in range(11):
        weights = torch.stack([left[i] @ right[j] for j in range(11)])
        assert torch.allclose(both[i], (weights[:, None] * v[0, 0]).sum(0) / weights.sum())
        assert torch.allclose(
            causal[i], (weights[: i + 1, None] * v[0, 0, : i + 1]).sum(0) / weights[: i + 1].sum()
        )


def test_linear_attention_keeps_features_that_elu_rounds_away():
    q = torch.full((1, 1, 3, 4), -20.0)  # in single precision elu(−20) + 1 is 0
    out = make("linear")(q, q, torch.tensor([1.0, 2.0, 6.0])[None, None, :, None], causal=True)
    torch.testing.assert_close(out[0, 0, :, 0], torch.tensor([1.0, 1.5, 3.0]))


def test_what_cannot_be_is_said():
    with pytest.raises(EigenlensError, match="chunk must be at least 1 token, not 0"):
        make("gated-delta", Shape(1, 4, 4), chunk=0)
    with pytest.raises(
        EigenlensError, match="chunk of linear attention must be at least 1 token, not -2"
    ):
        make("linear", chunk=-2)
    with pytest.raises(
        EigenlensError, match="delta has weights of its own and needs width in its shape"
    ):
        make("delta")
    q, x = torch.randn(1, 1, 4, 4), torch.randn(1, 4, 6)
    with pytest.raises(EigenlensError, match="2 queries of 4 keys"):
        make("delta", Shape(1, 4, 6))(q[:, :, 2:], q, q, causal=True, x=x[:, 2:])

"""Gates on attention against formulas written out.

Where they sit, what they start as, what they let through.
"""

import itertools
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from eigenlens.attention import HeadMix, Mechanism, Shape
from eigenlens.attention.gates import Gate, Gated, GateSettings, mixture
from eigenlens.attention.softmax import Softmax
from eigenlens.errors import EigenlensError

B, H, T, D, E, C = 2, 4, 9, 6, 7, 10
SHAPE = Shape(H, D, C)


def drawn(dtype=torch.float64):
    torch.manual_seed(0)
    return [
        torch.randn(s, dtype=dtype) for s in ((B, H, T, D), (B, H, T, D), (B, H, T, E), (B, T, C))
    ]


def gated(inner=None, **settings):
    torch.manual_seed(1)
    made = Gated(GateSettings(**settings), replace(SHAPE, value_width=E), inner).double()
    with torch.no_grad():
        made.gate.weight.mul_(20)  # gates between 0 and 1, not all near the middle
    return made


def by_loop(mechanism, q, k, v, x, causal):
    """The output token by token and head by head, from the definition."""
    s, W = mechanism.settings, mechanism.gate.weight.detach()
    out = torch.zeros(B, H, T, E, dtype=q.dtype)

    def through(b, h, t, y):
        logits = x[b, t] @ W[:, 0 if s.shared else h] + s.bias  # (E,) or (1,)
        return (
            y * torch.sigmoid(logits) if s.form == "sigmoid" else y + logits * torch.sigmoid(logits)
        )

    for b, h, i in itertools.product(range(B), range(H), range(T)):
        query = through(b, h, i, q[b, h, i]) if s.position == "G4" else q[b, h, i]
        seen = range(i + 1) if causal else range(T)
        keys = torch.stack(
            [through(b, h, j, k[b, h, j]) if s.position == "G3" else k[b, h, j] for j in seen]
        )
        values = torch.stack(
            [through(b, h, j, v[b, h, j]) if s.position == "G2" else v[b, h, j] for j in seen]
        )
        y = torch.softmax(keys @ query / D**0.5, 0) @ values
        out[b, h, i] = through(b, h, i, y) if s.position == "G1" else y
    return out


@pytest.mark.parametrize("position", ["G1", "G2", "G3", "G4"])
@pytest.mark.parametrize("per", ["element", "head"])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("form", ["sigmoid", "silu"])
def test_every_gate_is_its_formula(position, per, shared, form):
    q, k, v, x = drawn()
    mechanism = gated(position=position, per=per, shared=shared, form=form, bias=0.3)
    for causal in (False, True):
        expected = by_loop(mechanism, q, k, v, x, causal)
        for run in (mechanism, mechanism.reference):
            torch.testing.assert_close(
                run(q, k, v, causal=causal, x=x), expected, atol=1e-12, rtol=1e-10
            )


def test_the_gate_after_the_output_projection_is_one_per_element_of_the_stream():
    torch.manual_seed(0)
    gate = Gate(GateSettings("G5"), C, H, E)
    x, y = torch.randn(B, T, C), torch.randn(B, T, C)
    torch.testing.assert_close(gate(x, y), y * torch.sigmoid(x @ gate.weight[:, 0]))
    assert gate.values(x).shape == (B, T, C)


def test_the_mixture_of_routed_experts_sums_to_the_output():
    """Σ_h Σ_e Σ_j with every index in a loop, the einsum of the routes, and attention itself: all
    three agree.
    """
    q, k, v, x = drawn()
    w_o = torch.randn(H, E, C, dtype=torch.float64)
    for per in ("element", "head"):
        mechanism = gated(per=per)
        A, g = Softmax().weights(q, k, causal=True), mechanism.gate.values(x).detach()
        out = torch.einsum("bhte,hec->btc", mechanism(q, k, v, causal=True, x=x), w_o).detach()
        routes = mixture(A, g, v, w_o)
        assert routes.shape == (B, T, H, E, C)
        assert float((routes.sum((2, 3)) - out).abs().max()) < 1e-10
        by_hand = torch.zeros(C, dtype=torch.float64)
        for h, e, j in itertools.product(range(H), range(E), range(T)):
            by_hand += A[1, h, 5, j] * g.expand(B, H, T, E)[1, h, 5, e] * v[1, h, j, e] * w_o[h, e]
        assert float((by_hand - out[1, 5]).abs().max()) < 1e-10


@pytest.mark.parametrize("position", ["G1", "G2"])
@pytest.mark.parametrize("per", ["element", "head"])
def test_without_weights_a_gate_lets_exactly_half_through(position, per):
    q, k, v, x = drawn()
    mechanism = gated(position=position, per=per)
    torch.nn.init.zeros_(mechanism.gate.weight)
    assert torch.equal(mechanism.reference(q, k, v, x=x), Softmax().reference(q, k, v) / 2)


@pytest.mark.parametrize("position", ["G1", "G2", "G3", "G4"])
def test_a_large_bias_gives_plain_attention_back(position):
    q, k, v, x = drawn()
    torch.testing.assert_close(
        gated(position=position, bias=200.0)(q, k, v, x=x),
        Softmax()(q, k, v),
        atol=1e-12,
        rtol=1e-12,
    )


def test_an_additive_gate_without_weights_is_plain_attention():
    q, k, v, x = drawn()
    mechanism = gated(form="silu")
    torch.nn.init.zeros_(mechanism.gate.weight)
    torch.testing.assert_close(mechanism(q, k, v, x=x), Softmax()(q, k, v))


def test_gates_span_as_many_value_output_maps_as_a_head_is_wide():
    """Per query the map of values is `W_V diag(g_i) W_O`.

    One for all without a gate, up to min(n, E) of them with one.
    """
    _, _, _, x = drawn()
    w_v, w_o = torch.randn(C, E, dtype=torch.float64), torch.randn(E, C, dtype=torch.float64)
    for tokens in (3, T):
        g = gated().gate.values(x)[0, 0, :tokens].detach()  # (n, E)
        maps = torch.einsum("ce,ie,ed->icd", w_v, g, w_o).flatten(1)
        assert int(torch.linalg.matrix_rank(maps)) == min(tokens, E)
        assert int(torch.linalg.matrix_rank(maps[:1].expand(tokens, -1))) == 1


@pytest.mark.parametrize("width", [16, 1024])
def test_gates_start_near_their_bias_in_any_width(width):
    torch.manual_seed(0)
    x = F.layer_norm(torch.randn(4, 50, width), (width,))
    for bias in (0.0, -2.0):
        values = Gate(GateSettings(bias=bias), width, 4, 8).values(x).detach()
        middle = torch.sigmoid(torch.tensor(bias))
        assert (
            abs(float(values.mean() - middle)) < 0.01
            and float((values - middle).abs().max()) < 0.15
        )


def test_a_gate_goes_around_any_mechanism_and_can_what_that_one_can():
    class Mean(Mechanism):
        directions = ("both ways",)
        linear = True

        def pattern(self, q, k, given):
            return torch.full((*q.shape[:3], k.shape[2]), 1 / k.shape[2], dtype=q.dtype)

        def fast(self, q, k, v, given):
            return v.mean(2, keepdim=True).expand(-1, -1, q.shape[2], -1)

        def cost(self, n, d):
            return n * d

    q, k, v, x = drawn()
    mechanism = gated(Mean())
    expected = v.mean(2, keepdim=True) * mechanism.gate.values(x)
    for run in (mechanism, mechanism.reference):
        torch.testing.assert_close(run(q, k, v, x=x), expected)
    assert mechanism.linear and not mechanism.takes_pairs and mechanism.directions == ("both ways",)
    assert mechanism.cost(100, 8) == 100 * 8 + 100 * C * 8 + 100 * 8
    with pytest.raises(EigenlensError, match="cannot be causal"):
        mechanism(q, k, v, causal=True, x=x)
    assert HeadMix([(Softmax(), 2), (mechanism, 2)]).reads_stream


def test_what_a_gate_cannot_be_is_said():
    for settings, message in (
        ({"position": "G6"}, "position of a gate must be one of .*, not 'G6'"),
        ({"per": "row"}, "per of a gate must be one of .*, not 'row'"),
        ({"form": "tanh"}, "form of a gate must be one of .*, not 'tanh'"),
        ({"position": "G5", "per": "head"}, "there are no heads"),
        ({"position": "G5", "shared": True}, "there are no heads"),
    ):
        with pytest.raises(EigenlensError, match=message):
            GateSettings(**settings)
    with pytest.raises(EigenlensError, match="belongs to the layer"):
        Gated(GateSettings("G5"), SHAPE)
    with pytest.raises(EigenlensError, match="needs width in its shape"):
        Gated(GateSettings(), Shape(H, D))
    q, k, v, x = drawn()
    with pytest.raises(EigenlensError, match="reads the stream"):
        gated()(q, k, v)
    with pytest.raises(EigenlensError, match=f"a stream of {T} tokens for {T - 1}"):
        gated(position="G2")(q, k[:, :, 1:], v[:, :, 1:], x=x)


def test_a_gate_on_values_of_another_width_leaves_the_weights_alone():
    mechanism = Gated(GateSettings("G2"), Shape(4, 5, 7, 16, 6))
    q, k, x = torch.randn(2, 4, 9, 5), torch.randn(2, 4, 9, 5), torch.randn(2, 9, 7)
    torch.testing.assert_close(mechanism.weights(q, k, x=x), (q @ k.mT * 5**-0.5).softmax(3))

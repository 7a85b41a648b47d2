"""What the linear operator is not, what it refuses, and the shortest input."""

import pytest
import torch

from collapses.by_hand import distance, outputs
from eigenlens import EigenlensError
from eigenlens.anatomy import freeze
from eigenlens.captures.precision import stays_double
from eigenlens.explanations import (
    Operator,
    in_out,
    in_out_of,
    linearize,
    norms_of,
    norms_with_error,
)
from explanations.operators import batch, built, op_of, operators_and_own
from tiny import of_catalogue, small_bert, small_llama


def _jacobian(model, op, block, given):
    """The true derivative of a stack's output in the stream into its first block, (n, d, n, d), of
    one input.
    """
    kept = {}

    def swap(_module, args, kwargs):
        kept["x"] = args[0].detach().requires_grad_()
        return (kept["x"], *args[1:]), kwargs

    hook = block.register_forward_pre_hook(swap, with_kwargs=True)
    try:
        with stays_double():
            out = outputs(model(**given))[0]
    finally:
        hook.remove()
    rows = [
        torch.autograd.grad(value, kept["x"], retain_graph=True)[0][0] for value in out.flatten()
    ]
    _, n, d = op.shape
    return torch.stack(rows).view(n, d, n, d), out.detach()


@pytest.mark.parametrize("make", [small_bert, small_llama], ids=["bert", "llama"])
def test_it_is_not_the_jacobian(make):
    model = make().double()
    model = getattr(model, "model", model)
    block = (model.layers if hasattr(model, "layers") else model.encoder.layer)[0]
    given = {"input_ids": torch.randint(0, 50, (1, 6))}
    (op,) = linearize(model, given)
    J, out = _jacobian(model, op, block, given)
    T, x = op.full_tensor()[0], op.inputs[0]
    assert distance(op.output[0], out[0]) < 1e-10
    assert distance(T, J) > 0.2
    assert distance(torch.einsum("icjd,jd->ic", T, x) + op.bias[0], out[0]) < 1e-10
    assert distance(torch.einsum("icjd,jd->ic", J, x) + op.bias[0], out[0]) > 0.1
    assert distance(torch.einsum("icjd,jd->ic", J, x), out[0]) > 0.1


def test_the_whole_tensor_is_refused_with_its_size():
    op = op_of("bert")
    size = 3 * (13 * 32) ** 2
    with pytest.raises(EigenlensError, match=f"519,168 numbers.*most={size}"):
        op.full_tensor(most=size - 1)
    assert op.full_tensor(most=size).shape == (3, 13, 32, 13, 32)
    with pytest.raises(EigenlensError, match=r"2 × \(64 tokens · 384 channels\)²"):
        linearize(of_catalogue("minilm"), {"input_ids": torch.randint(1000, 9000, (2, 64))})[
            0
        ].full_tensor()


def test_what_does_not_fit_is_said():
    op = op_of("bert")
    with pytest.raises(EigenlensError, match=r"\(…, 3, 13, 32\), not \(3, 12, 32\)"):
        op.adjoint(torch.zeros(3, 12, 32))
    with pytest.raises(EigenlensError, match=r"must be \(3, 13\), not \(13,\)"):
        in_out_of(op, torch.ones(13))
    with pytest.raises(EigenlensError, match="at least 2"):
        norms_of(op, torch.ones(3, 13), probes=1)


@pytest.mark.parametrize("name", ["bert", "llama", "t5"])
def test_a_single_token(name):
    for op, own in operators_and_own(built(name), batch(name, batch=2, length=1)):
        if own.shape[1] > 1:
            continue
        assert float((op.apply(op.inputs) + op.bias - own).abs().max()) < 1e-10
        want = (own * (own - op.bias)).sum(-1)
        torch.testing.assert_close(in_out(op)[:, 0], want, rtol=1e-10, atol=1e-10)
        assert bool(norms_of(op, torch.ones(2, 1)).isfinite().all())
        # no weight, no norm, and no 0/0
        assert not norms_with_error(op, torch.zeros(2, 1))[1].any()


def test_cross_attention_is_in_the_decoders_bias():
    """Another encoder input moves the decoder's B and, through nothing but its own stream, what T
    takes.
    """
    model, given = built("t5"), batch("t5")
    encoder, decoder = linearize(model, given)
    assert (encoder.stack.name, decoder.stack.name) == ("encoder", "decoder")
    for block in decoder.stack.blocks:
        (cross,) = (
            branch for stage in block for branch in stage.branches if branch.kind == "cross"
        )
        assert (
            not cross.adjoint(torch.randn_like(decoder.inputs)).any() and cross.bias.norm() > 0.01
        )
    other = linearize(model, {**given, "input_ids": given["input_ids"].flip(1)})[1]
    assert torch.equal(other.inputs, decoder.inputs)
    assert distance(other.bias, decoder.bias) > 0.01


def test_a_model_in_float64_is_not_computed_in_float32():
    model, given = built("llama"), batch("llama")
    ((op, own),) = operators_and_own(model, given)
    rough = Operator(freeze(model, given)[0])  # its norms and softmax go down to float32
    assert op.error < 1e-13 and distance(op.output, own) < 1e-14
    assert 1e-10 < distance(rough.output, own) < 1e-5
    assert "3 inputs, 13 tokens, 32 channels, 3 blocks" in repr(op)

"""A model's output is T·X + B, its rows are exact transposes, and maps of tokens are sums over the
whole tensor.
"""

import sys

import numpy as np
import pytest
import torch
import transformers as tf

from captures.families import GQA, inputs
from collapses.by_hand import FORWARDS, distance, frozen, in_dtype, lively, masks, model_of, outputs
from eigenlens import EigenlensError
from eigenlens.anatomy import freeze
from eigenlens.captures.precision import stays_double
from eigenlens.explanations import (
    Operator,
    in_out,
    in_out_of,
    linearize,
    norms,
    norms_of,
    norms_with_error,
    toward,
)
from eigenlens.lab.model import Config, Transformer
from tiny import of_catalogue, small_bert, small_llama

BERTS = ["bert", "distilbert", "albert", "roberta"]
LLAMAS = ["llama", "mistral", "qwen2", "gemma"]
VISION = ["vit", "dinov2"]
CAUSAL = ["gpt2", *LLAMAS]
STACKS = ["t5", "bart", "whisper"]
FAMILIES = [*BERTS, *CAUSAL, *VISION, *STACKS]
OTHERS = ["gpt_neox", "phi", "gemma2", "qwen3", "modernbert", "opt", "clip", "marian"]
LIMIT = {torch.float32: 1e-4, torch.float64: 1e-10}


def built(name, dtype=torch.float64):
    if name != "gemma":
        return lively(name, dtype)
    model = tf.GemmaModel(tf.GemmaConfig(**GQA)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.2)
    return model.to(dtype)


def batch(name, padding="none", dtype=torch.float64, **sizes):
    given = in_dtype(inputs(name, padding, **sizes), dtype)
    return (
        {**given, "use_cache": False}
        if name in {*CAUSAL, *STACKS, *OTHERS} - {"clip", "modernbert"}
        else given
    )


@torch.no_grad()
def operators_and_own(model, given):
    """Pairs of a stack's operator and the model's own output of that stack, from a run of its
    own.
    """
    with stays_double():
        own = outputs(model(**given))
    return list(zip(linearize(model, given), own, strict=True))


def op_of(name, padding="none", **sizes):
    return linearize(built(name), batch(name, padding, **sizes))[0]


@pytest.mark.parametrize("dtype", LIMIT, ids=["float32", "float64"])
@pytest.mark.parametrize("name", FAMILIES)
def test_the_output_is_t_times_x_plus_b(name, dtype):
    for op, own in operators_and_own(built(name, dtype), batch(name, dtype=dtype)):
        made = op.apply(op.inputs) + op.bias
        assert made.dtype == dtype
        assert distance(made, own) < LIMIT[dtype]
        assert op.error < LIMIT[dtype]
        if dtype == torch.float64:
            assert float((made - own).abs().max()) < 1e-10


@pytest.mark.parametrize(
    ("name", "side"),
    [*((name, "right") for name in [*BERTS, "t5"]), *((name, "left") for name in CAUSAL)],
    ids=str,
)
def test_padding_asks_nothing_and_gives_nothing(name, side):
    model, given = built(name), batch(name, side)
    for (op, own), real in zip(operators_and_own(model, given), masks(given)):
        assert float((op.apply(op.inputs) + op.bias - own)[real].abs().max()) < 1e-10
        assert (
            not op.output[~real].any() and not op.inputs[~real].any() and not op.bias[~real].any()
        )
        a, sizes, guess = in_out(op), norms(op), norms_of(op, real.double(), probes=2)
        for found in (a, sizes):
            assert bool(found.isfinite().all())
            assert not found[~real].any() and not found.transpose(1, 2)[~real].any()
        assert not guess[~real].any() and bool((guess[real] > 0).all())
        assert not toward(op, torch.ones_like(own))[~real].any()


@torch.no_grad()
def test_padding_changes_no_map():
    model = built("bert")
    ids = torch.randint(3, 99, (1, 7))
    alone = linearize(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)})[0]
    wide = torch.cat([ids, torch.zeros(1, 4, dtype=torch.long)], 1)
    padded = linearize(
        model, {"input_ids": wide, "attention_mask": (torch.arange(11) < 7).long()[None]}
    )[0]
    torch.testing.assert_close(in_out(padded)[:, :7, :7], in_out(alone), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(norms(padded)[:, :7, :7], norms(alone), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", [*FAMILIES, *OTHERS])
def test_rows_are_the_transpose_of_columns(name):
    padding = "left" if name in CAUSAL else "none"
    for op in linearize(built(name), batch(name, padding)):
        u, x = (
            torch.randn(3, *op.inputs.shape, dtype=torch.float64),
            torch.randn(3, *op.inputs.shape, dtype=torch.float64),
        )
        left, right = (u * op.apply(x)).sum((1, 2, 3)), (op.adjoint(u) * x).sum((1, 2, 3))
        assert float((left - right).abs().max()) < 1e-10 * max(1.0, float(left.abs().max()))
        torch.testing.assert_close(op.adjoint(u)[1], op.adjoint(u[1]), rtol=1e-10, atol=1e-10)


@torch.no_grad()
@pytest.mark.parametrize("off", ["", "attention_skip", "mlp_skip", "mlp", "norm"])
def test_the_labs_own_transformer_with_parts_off(off):
    config = Config(
        vocabulary=11,
        length=9,
        width=16,
        layers=2,
        heads=2,
        causal=True,
        **({off: False} if off else {}),
    )
    model, ids = Transformer(config).double(), torch.randint(0, 11, (2, 9))
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.2)
    (op,) = linearize(model, {"ids": ids}, forward=lambda batch: model(batch["ids"]))
    assert distance(model.read(op.apply(op.inputs) + op.bias), model(ids)) < 1e-10
    u, x = torch.randn_like(op.inputs), torch.randn_like(op.inputs)
    assert float((u * op.apply(x)).sum()) == pytest.approx(
        float((op.adjoint(u) * x).sum()), abs=1e-10
    )
    assert not in_out(op)[:, torch.ones(9, 9).triu(1).bool()].any()


@pytest.mark.parametrize("name", ["bert", "albert", "gpt2", "llama", "gemma", "dinov2", "t5"])
def test_the_whole_tensor_is_the_derivative_of_the_frozen_graph(name):
    for op in linearize(built(name), batch(name, batch=1, length=5)):
        # (1, n, d, 1, n, d)
        want = torch.func.jacrev(lambda x, graph=op.stack: graph(x))(op.inputs)
        torch.testing.assert_close(op.full_tensor(), want[:, :, :, 0], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", FORWARDS)
def test_the_whole_tensor_is_the_forward_by_hand_with_everything_held(kind):
    """Every unit vector through a forward that is written out from the weights and knows nothing of
    the frozen graph.
    """
    name = kind.partition("-")[0]
    model, given = model_of(kind), batch(name, batch=1, length=4)
    for stack, op in enumerate(linearize(model, given)):
        x, by_hand = frozen(kind, model, given, stack)
        _, n, d = op.shape
        nothing = by_hand(torch.zeros_like(x))
        # (j d, i, c)
        columns = by_hand(torch.eye(n * d, dtype=torch.float64).view(n * d, n, d)) - nothing
        assert distance(op.bias, nothing) < 1e-10
        assert (
            distance(op.full_tensor()[0].permute(2, 3, 0, 1).reshape(n * d, n, d), columns) < 1e-10
        )


@pytest.mark.parametrize("name", CAUSAL)
@pytest.mark.parametrize("padding", ["none", "left"])
def test_nothing_comes_from_a_later_token(name, padding):
    op = op_of(name, padding)
    later = torch.ones(13, 13).triu(1).bool()
    for found in (in_out(op), norms(op)):
        assert not found[:, later].any()
        real = torch.ones(3, 13, dtype=torch.bool) if op.stack.valid is None else op.stack.valid
        assert bool(found.diagonal(dim1=1, dim2=2)[real].ne(0).all())


@pytest.mark.parametrize("name", ["bert", "vit", "whisper"])
def test_in_an_encoder_every_token_reaches_every_other(name):
    assert bool((norms(op_of(name)) > 1e-6).all())


@pytest.mark.parametrize("name", FAMILIES)
def test_in_out_is_complete(name):
    padding = "none" if name in {*VISION, *STACKS} else "left" if name in CAUSAL else "right"
    for op, own in operators_and_own(built(name), given := batch(name, padding)):
        real = (
            torch.ones(own.shape[:2]).bool()
            if padding == "none"
            else given["attention_mask"].bool()
        )
        want = (own * (own - op.bias)).sum(-1)[real]
        assert float((in_out(op).sum(-1)[real] - want).abs().max()) < 1e-10 * max(
            1.0, float(want.abs().max())
        )


@pytest.mark.parametrize("name", ["bert", "llama", "dinov2"])
def test_maps_are_sums_over_the_whole_tensor(name):
    op = op_of(name, batch=2, length=5)
    whole = torch.stack([_whole(op, index) for index in range(2)])
    y, x = op.output, op.inputs
    a = torch.einsum("bic,bicjd,bjd->bij", y, whole, x)
    torch.testing.assert_close(in_out(op), a, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(norms(op), whole.square().sum((2, 4)).sqrt(), rtol=1e-9, atol=1e-10)
    w, u = torch.rand(x.shape[:2], dtype=torch.float64), torch.randn_like(x)
    torch.testing.assert_close(
        in_out_of(op, w), torch.einsum("bi,bij->bj", w, a), rtol=1e-9, atol=1e-10
    )
    found = toward(op, u)
    torch.testing.assert_close(
        found, torch.einsum("bic,bicjd,bjd->bj", u, whole, x), rtol=1e-9, atol=1e-10
    )
    torch.testing.assert_close(
        found.sum(-1), (u * (y - op.bias)).sum((1, 2)), rtol=1e-10, atol=1e-10
    )


def _whole(op, index):
    """T of one input of a batch, a column at a time forwards: (n, d, n, d)."""
    _, n, d = op.shape
    units = torch.zeros(n * d, 2, n, d, dtype=torch.float64)
    units[:, index] = torch.eye(n * d, dtype=torch.float64).view(n * d, n, d)
    return op.stack(units, bias=False)[:, index].view(n, d, n, d).permute(2, 3, 0, 1)


def test_estimated_norms_have_the_error_they_state():
    """Unbiased squares, and an interval of four standard errors that covers the exact norm of
    nearly every token.
    """
    op = op_of("bert")
    w = torch.rand(3, 13, dtype=torch.float64)
    exact = (w[..., None] * norms(op)).square().sum(1).sqrt()
    found, error = norms_with_error(op, w, probes=32, seed=3)
    assert float(((found - exact).abs() < 4 * error).double().mean()) > 0.95
    assert 0.5 < float(((found - exact) / error).std()) < 2.0
    torch.testing.assert_close(norms_of(op, w, probes=32, seed=3), found)
    assert not torch.equal(norms_of(op, w, probes=32, seed=4), found)
    many = torch.stack([norms_of(op, w, probes=8, seed=seed).square() for seed in range(60)])
    # standard errors that the mean square is off
    off = (many.mean(0) - exact.square()) / (many.std(0) / 60**0.5)
    assert float(off.abs().max()) < 5.0 and abs(float(off.mean())) < 1.0
    few, rough = norms_with_error(op, w, probes=8)
    assert float(rough.mean()) > float(error.mean())


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
    with pytest.raises(EigenlensError, match=r"\(3, 13\) here, not \(13,\)"):
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


def test_chunks_do_not_matter(monkeypatch):
    op = op_of("llama")
    want = in_out(op), norms(op), norms_of(op, torch.ones(3, 13), probes=5)
    monkeypatch.setattr(sys.modules[Operator.__module__], "SIDE_BY_SIDE", 1)
    assert op.streams == 1
    found = in_out(op), norms(op), norms_of(op, torch.ones(3, 13), probes=5)
    for ours, theirs in zip(found, want):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


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


REAL = {"minilm": 6, "distilbert-gec": 6, "stories15m": 6, "dinov2-small": 12, "smollm2": 30}


def real_batch(model):
    if model.kind == "vision":
        return {
            "pixel_values": (
                torch.from_numpy(np.random.default_rng(0).normal(size=(1, 3, 70, 70))).float()
            )
        }
    words = ["The cat that I saw yesterday sat on the mat, and it was black.", "No."]
    if model.kind == "decoder":
        return {"input_ids": model.tokenizer(words[:1], return_tensors="pt")["input_ids"]}
    return dict(model.tokenizer(words, return_tensors="pt", padding=True))


@torch.no_grad()
@pytest.mark.parametrize("name", REAL)
def test_real_weights(name):
    model = of_catalogue(name)
    given = real_batch(model)
    for dtype in [torch.float32] if name == "smollm2" else [torch.float32, torch.float64]:
        module = model.module.to(dtype)
        given = in_dtype(given, dtype)
        (op,) = linearize(model, given)
        with stays_double():
            fixed = {"use_cache": False} if model.kind == "decoder" else {}
            own = model.backbone(**given, **fixed).last_hidden_state
        assert (
            len(op.stack.blocks) == REAL[name]
            and own.dtype == dtype
            and next(module.parameters()).dtype == dtype
        )
        made = op.apply(op.inputs) + op.bias
        assert distance(made, own, op.stack.valid) < LIMIT[dtype]
        if dtype == torch.float64:
            assert float(op.real(made - own).abs().max()) < 1e-10
        w = torch.ones(own.shape[:2])
        want = (op.output * (op.output - op.bias)).sum((1, 2))
        assert float(((in_out_of(op, w).sum(1) - want) / want).abs().max()) < LIMIT[dtype]
    if model.kind == "decoder":
        a = in_out(op)[0]
        assert not a.triu(1).any() and bool(a.diagonal().ne(0).all())


def test_a_model_in_float64_is_not_computed_in_float32():
    model, given = built("llama"), batch("llama")
    ((op, own),) = operators_and_own(model, given)
    rough = Operator(freeze(model, given)[0])  # its norms and softmax go down to float32
    assert op.error < 1e-13 and distance(op.output, own) < 1e-14
    assert 1e-10 < distance(rough.output, own) < 1e-5
    assert "3 inputs, 13 tokens, 32 channels, 3 blocks" in repr(op)

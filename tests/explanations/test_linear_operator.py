"""A model's output is T·X + B, and its rows are exact transposes."""

import numpy as np
import pytest
import torch

from collapses.by_hand import distance, frozen, in_dtype, lively_lab, masks, model_of
from collapses.forwards_by_hand import FORWARDS
from eigenlens.captures.precision import stays_double
from eigenlens.explanations import (
    in_out,
    in_out_of,
    linearize,
    norms,
    norms_of,
    toward,
)
from explanations.operators import (
    BERTS,
    CAUSAL,
    FAMILIES,
    LIMIT,
    OTHERS,
    batch,
    built,
    operators_and_own,
)
from tiny import of_catalogue


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
    model, ids = lively_lab(2, causal=True, **({off: False} if off else {}))
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

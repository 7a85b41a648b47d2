"""Maps of tokens are sums over the whole tensor of the linear operator."""

import sys

import pytest
import torch

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
from explanations.operators import (
    CAUSAL,
    FAMILIES,
    STACKS,
    VISION,
    batch,
    built,
    op_of,
    operators_and_own,
)


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


def test_chunks_do_not_matter(monkeypatch):
    op = op_of("llama")
    want = in_out(op), norms(op), norms_of(op, torch.ones(3, 13), probes=5)
    monkeypatch.setattr(sys.modules[Operator.__module__], "SIDE_BY_SIDE", 1)
    assert op.streams == 1
    found = in_out(op), norms(op), norms_of(op, torch.ones(3, 13), probes=5)
    for ours, theirs in zip(found, want):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)

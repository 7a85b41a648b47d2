"""Block-adaptive attention.

Every form equals the dense masked formula, nothing sees the future, full shares are exact.
"""

import math
import shutil

import pytest
import torch

from eigenlens.attention.block_selection import (
    BlockSettings,
    block_mass,
    dense_mask,
    kept_pairs,
    select,
)
from eigenlens.attention.blocks import (
    block_attention,
    choose_blocks,
    cost,
    dense_attention,
    flex,
    gathered_attention,
    reference,
)
from eigenlens.errors import EigenlensError

SMALL = {
    "query_block": 32,
    "key_block": 4,
    "first": 8,
    "local": 32,
    "samples": 3,
    "stride": 8,
    "round_to": 4,
}


def data(T, H=6, G=2, D=16, B=1, seed=0, sharpness=2.0):
    torch.manual_seed(seed)
    q, k, v = torch.randn(B, H, T, D) * sharpness, torch.randn(B, G, T, D), torch.randn(B, G, T, D)
    return q, k, v


def softmax_attention(q, k, v, allowed, scale):
    """Written out without the package: repeat the heads, mask, softmax."""
    R = q.shape[1] // k.shape[1]
    k, v, allowed = (x.repeat_interleave(R, 1) for x in (k, v, allowed))
    scores = (q @ k.mT * scale).masked_fill(~allowed, -math.inf)
    return torch.softmax(scores, -1) @ v


@pytest.mark.parametrize("T", [257, 300, 512])
@pytest.mark.parametrize(("H", "G"), [(4, 4), (6, 2), (3, 1)])
@pytest.mark.parametrize(
    "blocks",
    [{}, {"key_block": 1, "round_to": 16}, {"query_block": 64, "local": 16}, {"local": 96}],
)
def test_the_plain_form_equals_the_dense_masked_formula(T, H, G, blocks):
    q, k, v = data(T, H, G, B=2)
    settings = BlockSettings((2e-3,) * G, **(SMALL | blocks))
    ours = block_attention(q, k, v, settings)
    assert torch.allclose(ours, block_attention(q, k, v, settings, form="reference"), atol=1e-5)
    assert (
        ours - dense_attention(q, k, v, q.shape[3] ** -0.5)
    ).abs().max() > 1e-2  # something was left out


def test_the_reference_is_masked_softmax():
    q, k, v = data(256, B=2)
    settings = BlockSettings((2e-3, 8e-3), **SMALL)
    batches = choose_blocks(q, k, settings, 0.25)
    allowed = dense_mask(batches, (2, 2, 8, 64), settings)
    expected = softmax_attention(q, k, v, allowed, 0.25)
    assert torch.allclose(reference(q, k, v, batches, settings, 0.25), expected, atol=1e-5)
    assert torch.allclose(gathered_attention(q, k, v, batches, settings, 0.25), expected, atol=1e-5)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a compiler")
def test_the_compiled_form_equals_the_dense_masked_formula():
    q, k, v = data(256, 6, 2, D=32)
    settings = BlockSettings((2e-3, 4e-3), **SMALL)
    batches = choose_blocks(q, k, settings, 0.2)
    compiled = flex(q, k, v, batches, settings, 0.2)
    assert torch.allclose(compiled, reference(q, k, v, batches, settings, 0.2), atol=1e-5)


def test_keeping_everything_is_full_attention():
    q, k, v = data(384)
    full = dense_attention(q, k, v, 0.25)
    assert torch.allclose(
        block_attention(q, k, v, BlockSettings((1e-30, 1e-30), **SMALL), 0.25), full, atol=1e-5
    )
    assert torch.equal(block_attention(q, k, v, BlockSettings((0.0, 0.0), **SMALL), 0.25), full)


def test_dense_and_sparse_heads_go_together():
    q, k, v = data(384)
    mixed = block_attention(q, k, v, BlockSettings((0.0, 4e-3), **SMALL), 0.25)
    assert torch.allclose(mixed[:, :3], dense_attention(q, k, v, 0.25)[:, :3], atol=1e-5)
    assert torch.allclose(
        mixed[:, 3:],
        block_attention(q, k, v, BlockSettings((4e-3, 4e-3), **SMALL), 0.25)[:, 3:],
        atol=1e-5,
    )


@pytest.mark.parametrize("token", [100, 200, 250, 299])
def test_no_output_moves_with_a_later_token(token):
    """Not even within a query block: all sampled rows lie at or before its first query."""
    settings = BlockSettings((2e-3, 8e-3), **SMALL)
    q, k, v = data(300)
    before = block_attention(q, k, v, settings)
    q, k, v = q.clone(), k.clone(), v.clone()
    for x in (q, k, v):
        x[:, :, token] += 5 * torch.randn_like(x[:, :, token])
    after = block_attention(q, k, v, settings)
    assert (after - before)[:, :, :token].abs().max() < 1e-6
    assert (after - before)[:, :, token].abs().max() > 1e-2


def test_sampled_rows_give_the_mass_of_the_true_pattern():
    q, k, _ = data(256, H=2, G=1)
    settings = BlockSettings((1e-3,), **SMALL)
    mass = block_mass(q, k, settings, 0.25, chunk=3)
    causal = torch.ones(256, 256).tril().bool()
    pattern = torch.softmax(
        (q @ k.repeat_interleave(2, 1).mT * 0.25).masked_fill(~causal, -math.inf), -1
    )
    rows = pattern[0, :, [160, 152, 144]].mean((0, 1))  # block 5 begins at 160
    assert torch.allclose(mass[0, 0, 5, 2:32], rows.view(64, 4).mean(1)[2:32], atol=1e-6)
    # the first and local keys
    assert (mass[0, 0, 5, :2] == torch.inf).all() and (mass[0, 0, 5, 32:40] == torch.inf).all()
    assert (mass[0, 0, 5, 40:] == -1).all()


def test_selection_keeps_what_reaches_the_bar_and_rounds_by_the_next_best():
    mass = torch.full((1, 1, 8, 64), -1.0)
    mass[0, 0, 7, :40] = torch.linspace(0.1, 0.01, 40)
    mass[0, 0, 6, :3] = 0.2
    batches = select(mass, BlockSettings((0.095,), **SMALL))
    kept = {int(u): b.tolist() for batch in batches for u, b in zip(batch.units, batch.blocks)}
    # three reach the threshold, rounded to four; no more than there are
    assert kept == {7: [0, 1, 2, 3], 6: [0, 1, 2]}
    assert kept_pairs(batches, (1, 1, 8), BlockSettings((0.095,), **SMALL)).tolist() == [7 * 32 * 4]


def test_large_scores_stay_finite():
    q, k, v = data(300, sharpness=200.0)
    settings = BlockSettings((2e-3, 2e-3), **SMALL)
    ours = block_attention(q, k, v, settings)
    assert (q @ k.repeat_interleave(3, 1).mT * 0.25).abs().max() > 50
    assert torch.isfinite(ours).all()
    assert torch.allclose(ours, block_attention(q, k, v, settings, form="reference"), atol=1e-4)


def test_decoding_steps_and_short_inputs_attend_exactly():
    q, k, v = data(300)
    settings = BlockSettings((1.0, 1.0), **SMALL)
    full = dense_attention(q, k, v, 0.25)
    assert torch.allclose(
        block_attention(q[:, :, -1:], k, v, settings, 0.25), full[:, :, -1:], atol=1e-5
    )
    assert torch.allclose(
        block_attention(q[:, :, -7:], k, v, settings, 0.25), full[:, :, -7:], atol=1e-5
    )
    short = [x[:, :, :100] for x in (q, k, v)]
    assert torch.equal(block_attention(*short, settings, 0.25), dense_attention(*short, 0.25))


def test_cost_counts_selection():
    settings = BlockSettings((1e-3,), query_block=64, samples=4, key_block=4)
    n, d = 4096, 64
    dense = n * n * d
    assert cost(n, d, settings, 1.0) > dense
    assert cost(n, d, settings, 0.25) == pytest.approx(dense * (0.25 + 4 / 64 / 2), rel=0.01)


def test_settings_that_cannot_work_are_refused():
    with pytest.raises(EigenlensError, match="multiple"):
        BlockSettings((1e-3,), key_block=3)
    with pytest.raises(EigenlensError, match="reach back"):
        BlockSettings((1e-3,), local=16, samples=4, stride=16)
    q, k, v = data(300)
    with pytest.raises(EigenlensError, match="3 thresholds"):
        block_attention(q, k, v, BlockSettings((1e-3,) * 3, **SMALL))

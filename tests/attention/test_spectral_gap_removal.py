"""Attention without its outlier: what is taken away, and what is left of the spectrum."""

import pytest
import torch

from eigenlens.attention import make


@pytest.mark.parametrize("causal", [True, False])
def test_what_is_taken_away_is_the_mean_of_the_values_that_a_query_sees(causal):
    q, k, v = (torch.randn(2, 3, 11, 4, dtype=torch.float64) for _ in range(3))
    softmax = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    seen = [v[:, :, : i + 1] if causal else v for i in range(11)]
    expected = softmax - torch.stack([part.mean(2) for part in seen], 2)
    torch.testing.assert_close(make("spectral-gap-removal")(q, k, v, causal=causal), expected)
    assert (
        float(make("spectral-gap-removal").weights(q, k, causal=causal).sum(3).abs().max()) < 1e-12
    )


def test_without_a_mask_it_is_the_formula_of_the_paper():
    q, k = (torch.randn(1, 1, 30, 8, dtype=torch.float64) for _ in range(2))
    A = (q @ k.transpose(2, 3) / 8**0.5).softmax(3)
    torch.testing.assert_close(
        make("spectral-gap-removal").weights(q, k),
        A - torch.full((30, 30), 1 / 30, dtype=torch.float64),
    )


def test_the_uniform_part_is_over_the_keys_of_any_mask():
    q, k, v = (torch.randn(2, 2, 8, 4, dtype=torch.float64) for _ in range(3))
    keys = torch.ones(2, 8, dtype=torch.bool)
    keys[0, 5:] = False
    pairs = torch.rand(1, 2, 8, 8) < 0.5
    pairs[..., 3, :] = False  # a query that sees nothing
    bias = torch.randn(1, 2, 8, 8, dtype=torch.float64).masked_fill(~pairs, -torch.inf)
    for mask in (pairs, bias):
        out = make("spectral-gap-removal")(q, k, v, keys=keys, pairs=mask)
        for b in range(2):
            for h in range(2):
                for i in range(8):
                    seen = [j for j in range(8) if keys[b, j] and pairs[0, h, i, j]]
                    s = k[b, h, seen] @ q[b, h, i] / 2
                    s = s if mask is pairs else s + bias[0, h, i, seen]
                    expected = (s.softmax(0) - 1 / max(1, len(seen))) @ v[b, h, seen]
                    torch.testing.assert_close(out[b, h, i], expected)
    assert float(out[:, :, 3].abs().max()) == 0.0


def test_the_outlier_is_gone_and_the_bulk_stays():
    torch.manual_seed(0)
    q, k = (torch.randn(1, 1, 400, 64, dtype=torch.float64) for _ in range(2))
    A, rest = (
        [float(s) for s in torch.linalg.svdvals(make(name).weights(q, k)[0, 0])]
        for name in ("softmax", "spectral-gap-removal")
    )
    assert A[0] > 1 and A[1] < 0.25
    assert rest[0] == pytest.approx(A[1], rel=0.05)

"""Factors of one head against dense eigendecompositions, under every mask."""

import pytest
import torch

from eigenlens.spectra.factor import Half, exact_factor, nystrom_factor
from eigenlens.stats import MatrixSums, Pairs

MASKS = {
    "full": torch.ones(9, 7, dtype=torch.bool),
    "causal": torch.ones(8, 8, dtype=torch.bool).tril(),
    "holes": torch.rand(8, 8, generator=torch.Generator().manual_seed(5)) < 0.7,
}


def sums_of(x, pairs, sketch):
    """The sums of one head from its samples `x (n, N)`."""
    means = pairs.row_means(x)
    return MatrixSums(
        valid=pairs.valid,
        number=torch.tensor(float(len(x)), dtype=torch.float64),
        first=x.sum(0)[None],
        squares=x.square().sum(0)[None],
        row_energy=(means.square() * pairs.row_counts).sum()[None],
        sketch=sketch[None],
    )


def samples(pairs, number, size):
    """Scores whose rows have means `size` times as large as what else varies in them."""
    draw = torch.Generator().manual_seed(number)
    x = torch.randn(number, pairs.number, dtype=torch.float64, generator=draw)
    rows = torch.randn(number, len(pairs.valid), dtype=torch.float64, generator=draw)
    index = torch.div(pairs.index, pairs.valid.shape[1], rounding_mode="floor")
    return x + size * rows[:, index]


def check(half: Half, scatter, values, rtol):
    torch.testing.assert_close(half.values, values, rtol=rtol, atol=0)
    u = half.vectors.double()
    torch.testing.assert_close(u @ u.T, torch.eye(len(u), dtype=torch.float64), atol=2e-4, rtol=0)
    torch.testing.assert_close((u @ scatter @ u.T).diagonal(), values, rtol=1e-3, atol=0)


@pytest.mark.parametrize("mask", MASKS)
def test_an_exact_factor_is_the_dense_decomposition_in_both_centrings(mask):
    pairs = Pairs(MASKS[mask])
    x = samples(pairs, 12, 100)
    factor = exact_factor(sums_of(x, pairs, x), pairs, 11, 0)
    centred = x - x.mean(0)
    for half, rows in (
        (factor.centred, centred),
        (factor.row_centred, pairs.less_row_means(centred)),
    ):
        values = torch.linalg.svdvals(rows)[:11].square()
        check(half, rows.T @ rows, values, 1e-9)


@pytest.mark.parametrize("mask", MASKS)
def test_a_sketch_of_as_many_columns_as_inputs_is_exact_in_both_centrings(mask):
    pairs = Pairs(MASKS[mask])
    x = samples(pairs, 10, 3)
    omega = x - x.mean(0)
    omega /= omega.norm(dim=1, keepdim=True)
    factor = nystrom_factor(sums_of(x, pairs, (omega @ x.T) @ x), pairs, 5, 0, omega)
    centred = x - x.mean(0)
    for half, rows in (
        (factor.centred, centred),
        (factor.row_centred, pairs.less_row_means(centred)),
    ):
        check(half, rows.T @ rows, torch.linalg.svdvals(rows)[:5].square(), 1e-3)

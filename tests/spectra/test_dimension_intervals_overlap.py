"""Dimension, effective numbers, intervals and overlaps from their definitions."""

import numpy as np
import pytest
import torch
from scipy.linalg import subspace_angles

from eigenlens import EigenlensError
from eigenlens.captures import Site
from eigenlens.spectra.dimension import dimension_at, effective_rank, participation_ratio
from eigenlens.spectra.intervals import explained_with_interval
from eigenlens.spectra.overlap import Eigenspaces, overlap_matrix, principal_angles


def test_dimension_counts_components():
    explained = np.array([0.5, 0.8, 0.95, 1.0])
    assert [dimension_at(explained, s) for s in (0.5, 0.9, 0.95, 0.99)] == [1, 3, 3, 4]
    assert dimension_at(explained[:2], 0.9) is None


@pytest.mark.parametrize("n", [1, 5, 40])
def test_n_equal_eigenvalues_count_as_n(n):
    assert effective_rank(np.ones(n), n) == pytest.approx(n)
    assert participation_ratio(np.ones(n), n) == pytest.approx(n)


def test_a_truncated_spectrum_gives_a_lower_bound():
    values = 0.8 ** np.arange(50)
    assert effective_rank(values[:10], values.sum()) < effective_rank(values, values.sum())


def test_the_interval_is_the_jackknife_over_groups():
    rng = np.random.default_rng(0)
    energy = rng.random((6, 3))
    total = energy.sum(1) + rng.random(6)
    share, low, high = explained_with_interval(energy[:, None], total[:, None])
    without = np.array(
        [np.delete(energy, g, 0).sum(0).cumsum() / np.delete(total, g).sum() for g in range(6)]
    )
    spread = np.sqrt(5 / 6 * ((without - without.mean(0)) ** 2).sum(0))
    np.testing.assert_allclose(share[0], energy.sum(0).cumsum() / total.sum())
    np.testing.assert_allclose(
        (high - share)[0], np.minimum(2.5706 * spread, 1 - share[0]), rtol=1e-4
    )
    assert np.isnan(explained_with_interval(energy[:1, None], total[:1, None])[1]).all()


def test_the_interval_covers_the_truth():
    """Over many draws of documents the 95 % interval holds the true share about as often as it
    says.
    """
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(400):
        documents = rng.dirichlet([2.0, 3.0, 5.0], size=8)
        share, low, high = explained_with_interval(documents[:, None], np.ones((8, 1)))
        covered += low[0, 0] <= 0.2 <= high[0, 0]
    assert 0.9 < covered / 400 < 0.99


def spaces(*bases, covariances=None, eigenvalues=None):
    layers = tuple(Site("a", i) for i in range(len(bases)))
    return Eigenspaces(layers, torch.stack(bases), covariances, eigenvalues, bases[0].shape[0])


def orthonormal(n, r, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(n, r, generator=generator, dtype=torch.float64)).Q


def test_overlap_is_one_for_equal_spaces_and_chance_for_random_ones():
    u = orthonormal(64, 8, 0)
    turned = u @ orthonormal(8, 8, 1)
    assert overlap_matrix(spaces(u), spaces(turned), "a", "b").matrix[0, 0] == pytest.approx(1)
    many = overlap_matrix(spaces(*(orthonormal(64, 8, s) for s in range(40))), spaces(u), "a", "b")
    assert many.chance == 8 / 64
    assert many.matrix[1:].mean() == pytest.approx(many.chance, rel=0.1)


def test_principal_angles_agree_with_scipy():
    a, b = orthonormal(30, 5, 0), orthonormal(30, 5, 1)
    np.testing.assert_allclose(
        principal_angles(a, b),
        np.degrees(np.sort(subspace_angles(a.numpy(), b.numpy()))),
        rtol=1e-6,
    )
    cosines = np.cos(np.radians(principal_angles(a, b)))
    assert overlap_matrix(spaces(a), spaces(b), "a", "b").matrix[0, 0] == pytest.approx(
        (cosines**2).mean()
    )


def test_captured_variance_is_relative_to_the_best():
    u = orthonormal(12, 12, 0)
    values = torch.arange(12, 0, -1).double()
    covariance = (u * values) @ u.T
    b = spaces(u[:, :3], covariances=covariance[None], eigenvalues=values[None])
    found = overlap_matrix(spaces(u[:, :3], u[:, 3:6]), b, "a", "b").captured
    np.testing.assert_allclose(found[:, 0], [1.0, (9 + 8 + 7) / (12 + 11 + 10)])


def test_spaces_of_different_length_are_refused():
    with pytest.raises(EigenlensError, match="have different lengths"):
        overlap_matrix(spaces(orthonormal(8, 2, 0)), spaces(orthonormal(9, 2, 0)), "a", "b")

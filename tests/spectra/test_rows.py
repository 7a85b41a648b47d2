"""Row spectra of real models against scikit-learn and against dense held-out scores."""

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

from eigenlens.spectra.rows import RowAnalysis
from eigenlens.spectra.spectrum import Spectra
from spectra.real import RowMoments, recorded, scores, seen

MODELS = [
    ("minilm", "encoder/1"),
    ("smollm2", "self/1"),
    ("flan-t5-small", "decoder.cross/1"),
    ("distilbert-gec", "transformer/1"),
]


def analysed(name):
    fit, held = recorded(name)
    analysis = RowAnalysis(seen(RowMoments(), fit).result())
    groups = [analysis.energies(seen(RowMoments(), calls).result()) for calls in held]
    return Spectra(tuple(analysis.spectra(groups))), fit, held


def rows_of(calls, site, head):
    """Valid rows (R, S) with zeros where masked, and the validity."""
    z, valid = scores(calls, site)
    return z[:, head].flatten(0, 1).numpy(), valid.repeat(len(z), 1).double().numpy()


def centred_rows(rows, valid, centring, mean=None):
    if centring == "row-centred":
        rows = (rows - rows.sum(1, keepdims=True) / valid.sum(1, keepdims=True)) * valid
    if centring == "raw":
        return rows, np.zeros(rows.shape[1])
    mean = (rows * valid).sum(0) / valid.sum(0) if mean is None else mean
    return (rows - mean) * valid, mean


@pytest.mark.parametrize(("name", "site"), MODELS)
def test_eigenvalues_agree_with_a_dense_decomposition(name, site):
    spectra, fit, _ = analysed(name)
    stack = site.rpartition("/")[0]
    for head in (0, 3, 5):
        rows, valid = rows_of(fit, site, head)
        for centring in ("raw", "centred", "row-centred"):
            x, _ = centred_rows(rows, valid, centring)
            expected = np.linalg.svd(x, compute_uv=False) ** 2 / (len(x) - (centring != "raw"))
            ours = spectra.one(level="head", centring=centring, stack=stack, layer=1, head=head)
            np.testing.assert_allclose(
                ours.eigenvalues,
                expected[: len(ours.eigenvalues)],
                rtol=1e-4,
                atol=1e-5 * expected[0],
            )
            assert abs(ours.total / expected.sum() - 1) < 1e-5


def test_eigenvalues_agree_with_scikit_learn():
    """Where nothing is masked, plain PCA is the definition."""
    spectra, fit, _ = analysed("minilm")
    for head in range(12):
        rows, _ = rows_of(fit, "encoder/1", head)
        pca = PCA().fit(rows)
        ours = spectra.one(level="head", centring="centred", stack="encoder", layer=1, head=head)
        np.testing.assert_allclose(ours.eigenvalues, pca.explained_variance_, rtol=1e-4)
        np.testing.assert_allclose(
            ours.explained, pca.explained_variance_ratio_.cumsum(), rtol=1e-4
        )


@pytest.mark.parametrize(("name", "site"), MODELS[:2])
@pytest.mark.parametrize("centring", ["raw", "centred", "row-centred"])
def test_held_out_variance_equals_projecting_the_held_out_rows(name, site, centring):
    spectra, fit, held = analysed(name)
    stack = site.rpartition("/")[0]
    ours = spectra.one(level="head", centring=centring, stack=stack, layer=1, head=2)
    x, mean = centred_rows(*rows_of(fit, site, 2), centring)
    _, _, vt = np.linalg.svd(x, full_matrices=True)
    y, _ = centred_rows(*rows_of([c for group in held for c in group], site, 2), centring, mean)
    expected = np.square(y @ vt.T).sum(0).cumsum() / np.square(y).sum()
    np.testing.assert_allclose(ours.held_out[:20], expected[:20], atol=2e-3)
    assert (ours.low <= ours.held_out + 1e-12).all()
    assert (ours.held_out <= ours.high + 1e-12).all()


def test_a_layer_is_the_sample_of_all_its_heads():
    spectra, fit, _ = analysed("minilm")
    z, _ = scores(fit, "encoder/1")
    rows = z.reshape(-1, z.shape[-1]).numpy()
    ours = spectra.one(level="layer", centring="centred", stack="encoder", layer=1)
    np.testing.assert_allclose(ours.eigenvalues, PCA().fit(rows).explained_variance_, rtol=1e-4)
    assert ours.samples == len(rows)


def test_a_constant_head_has_no_dimension():
    from eigenlens.captures import AttentionCall, Site

    zero = torch.zeros(2, 1, 6, 4)
    analysis = RowAnalysis(
        seen(
            RowMoments(), [AttentionCall(Site("self", 0), "self", "", zero, zero, zero, 1.0)]
        ).result()
    )
    spectrum = Spectra(tuple(analysis.spectra([]))).one(level="head", centring="centred")
    assert spectrum.total == 0
    assert spectrum.effective_rank == 0
    assert spectrum.participation_ratio == 0
    assert spectrum.dimension(0.9, held_out=False) is None
    assert np.isfinite(spectrum.explained).all()

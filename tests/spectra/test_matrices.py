"""Matrix spectra of real models against scikit-learn and against dense held-out scores."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

from eigenlens.captures.precision import stays_double
from eigenlens.spectra.matrices import MatrixAnalysis
from eigenlens.spectra.spectrum import Spectra
from eigenlens.stats import Pairs
from spectra.real import MatrixGram, MatrixProjection, MatrixSketch, recorded, scores, seen

MODELS = [("minilm", "encoder/1"), ("smollm2", "self/1"), ("flan-t5-small", "decoder.cross/1")]


def analysed(statistic, held, rank):
    analysis = MatrixAnalysis(statistic, rank)
    bases = analysis.projection_bases
    groups = [analysis.energies(seen(MatrixProjection(bases), calls).result()) for calls in held]
    return Spectra(tuple(analysis.spectra(groups)))


def samples(calls, site, head, centring):
    """(inputs, N) over valid pairs, row means removed where the centring says so."""
    z, valid = scores(calls, site)
    pairs = Pairs(valid)
    x = pairs.vectors(z[:, head])
    return (pairs.less_row_means(x) if centring == "row-centred" else x).numpy()


@pytest.mark.parametrize(("name", "site"), MODELS)
@pytest.mark.parametrize("centring", ["centred", "row-centred"])
def test_the_exact_form_agrees_with_scikit_learn(name, site, centring):
    fit, held = recorded(name)
    stack = site.rpartition("/")[0]
    spectra = analysed(seen(MatrixGram(), fit), held, rank=16)
    for head in (0, 4):
        x = samples(fit, site, head, centring)
        pca = PCA(n_components=16, svd_solver="full").fit(x)
        ours = spectra.one(level="head", centring=centring, stack=stack, layer=1, head=head)
        np.testing.assert_allclose(ours.eigenvalues, pca.explained_variance_, rtol=1e-4)
        np.testing.assert_allclose(
            ours.explained, pca.explained_variance_ratio_.cumsum(), rtol=1e-4
        )
        y = samples([call for group in held for call in group], site, head, centring) - pca.mean_
        expected = np.square(y @ pca.components_.T).sum(0).cumsum() / np.square(y).sum()
        np.testing.assert_allclose(ours.held_out, expected, atol=1e-4)


def test_the_raw_spectrum_is_that_of_the_second_moment():
    fit, held = recorded("minilm")
    ours = analysed(seen(MatrixGram(), fit), held, rank=47).one(
        level="head", centring="raw", layer=1, head=0
    )
    x = samples(fit, "encoder/1", 0, "raw")
    np.testing.assert_allclose(
        ours.eigenvalues, (np.linalg.svd(x, compute_uv=False) ** 2 / len(x))[:47], rtol=1e-3
    )


@pytest.mark.slow
def test_the_sketch_finds_the_leading_eigenspace():
    """From a pilot of 48 of 240 inputs.

    Never above the true eigenvalue, the leading ones close, held-out variance too.
    """
    fit, held = recorded("minilm", 300, 32)
    exact = analysed(seen(MatrixGram(), fit), held, rank=16)
    sketch = analysed(
        seen(MatrixSketch.from_pilot(seen(MatrixGram(), fit[:3])), fit[3:]), held, rank=16
    )
    for centring, least in (("raw", 0.99), ("centred", 0.97), ("row-centred", 0.93)):
        lost, first = [], []
        for head in range(12):
            wanted = {"level": "head", "centring": centring, "layer": 1, "head": head}
            ours, truth = sketch.one(**wanted), exact.one(**wanted)
            assert (ours.eigenvalues <= truth.eigenvalues * (1 + 1e-4)).all()
            assert abs(ours.total / truth.total - 1) < 1e-6
            first.append(ours.eigenvalues[0] / truth.eigenvalues[0])
            lost.append(truth.held_out[15] - ours.held_out[15])
        assert np.median(first) > least
        assert np.mean(lost) < 0.01


def test_a_layer_is_the_sample_of_all_its_heads():
    # 16 fit inputs: the columns of all heads fit into what is pooled
    fit, held = recorded("minilm", 20, 8)
    ours = analysed(seen(MatrixGram(), fit), held, rank=64).one(
        level="layer", centring="centred", layer=1
    )
    x = np.concatenate([samples(fit, "encoder/1", head, "centred") for head in range(12)])
    np.testing.assert_allclose(
        ours.eigenvalues[:48], PCA(48, svd_solver="full").fit(x).explained_variance_, rtol=1e-4
    )
    assert ours.samples == len(x)


def test_layers_of_few_inputs_are_exact_beyond_the_rank_of_a_head():
    """48 fit inputs of 12 heads at rank 16: 564 columns, none of which is left out."""
    fit, held = recorded("minilm", 60, 16)
    spectra = analysed(seen(MatrixGram(), fit), held, rank=16)
    for centring in ("centred", "row-centred"):
        x = np.concatenate([samples(fit, "encoder/1", head, centring) for head in range(12)])
        truth = PCA(16, svd_solver="full").fit(x)
        for level in ("layer", "stack"):  # the stack was recorded with one layer
            ours = spectra.one(level=level, centring=centring)
            np.testing.assert_allclose(ours.eigenvalues, truth.explained_variance_, rtol=1e-4)
            np.testing.assert_allclose(
                ours.explained, truth.explained_variance_ratio_.cumsum(), rtol=1e-4
            )
            assert not ours.lower_bound


@pytest.mark.slow
def test_what_is_a_lower_bound_is_called_one():
    # 240 fit inputs of 12 heads: too many columns for a layer
    fit, held = recorded("minilm", 300, 32)
    exact = analysed(seen(MatrixGram(), fit), held, rank=16)
    assert {s.level for s in exact if s.lower_bound} == {"layer", "stack"}
    sketch = analysed(
        seen(MatrixSketch.from_pilot(seen(MatrixGram(), fit[:3])), fit[3:]), held, rank=16
    )
    assert {s.level for s in sketch if s.lower_bound} == {"head", "layer", "stack"}
    assert all(row["lower_bound"] for row in sketch.rows())
    x = np.concatenate([samples(fit, "encoder/1", head, "centred") for head in range(12)])
    truth = PCA(16, svd_solver="full").fit(x).explained_variance_
    for spectra, least in ((exact, 0.65), (sketch, 0.6)):
        found = spectra.one(level="layer", centring="centred").eigenvalues
        assert (found <= truth * (1 + 1e-5)).all()
        assert (found >= least * truth).all()


def test_scores_that_are_the_same_in_every_input_have_no_spectrum():
    fit, held = recorded("minilm", 20, 8)
    one = [
        replace(call, q=call.q[:1].expand_as(call.q), k=call.k[:1].expand_as(call.k))
        for call in fit[:1] * 2
    ]
    spectra = analysed(seen(MatrixGram(), one), [], rank=4)
    assert len(spectra) == 3 * (12 + 2)
    for spectrum in spectra.select(level="head", centring="centred"):
        np.testing.assert_allclose(spectrum.eigenvalues, 0, atol=1e-6)


def test_large_row_means_do_not_hide_what_is_left_of_a_layer():
    """Row means a thousand times as large as the rest of the scores cancel in the row-centred
    spectrum, and nothing else does.
    """
    fit, _ = recorded("minilm", 20, 8)
    raised = []
    for call in fit:
        q, k = call.q.clone(), call.k.clone()
        q[..., 0], k[..., 0] = (
            torch.randn(q.shape[:3], generator=torch.Generator().manual_seed(0)) * 3000,
            1.0,
        )
        raised.append(replace(call, q=q, k=k))
    ours = analysed(seen(MatrixGram(), raised), [], rank=16).one(
        level="layer", centring="row-centred"
    )
    x = np.concatenate([samples(raised, "encoder/1", head, "row-centred") for head in range(12)])
    np.testing.assert_allclose(
        ours.eigenvalues, PCA(16, svd_solver="full").fit(x).explained_variance_, rtol=0.02
    )


def test_a_study_in_double_stays_there_with_any_number_of_threads():
    fit, _ = recorded("minilm", 20, 8)
    double = [
        replace(call, q=call.q.double(), k=call.k.double(), v=call.v.double()) for call in fit
    ]
    before, found = torch.get_num_threads(), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        with stays_double():
            found.append(analysed(seen(MatrixGram(), double), [], rank=8))
    torch.set_num_threads(before)
    for one, other in zip(*found, strict=True):
        if one.level == "head":
            np.testing.assert_array_equal(one.eigenvalues, other.eigenvalues)

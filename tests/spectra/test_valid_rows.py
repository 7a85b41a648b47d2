"""Row spectra over valid rows: against numpy on explicit scores and masks, entry by entry."""

import numpy as np
import pytest
import torch

import eigenlens as el
from eigenlens.captures import AttentionCall, Site
from eigenlens.spectra.centring import CENTRINGS
from eigenlens.spectra.rows import RowAnalysis, row_basis
from eigenlens.spectra.spectrum import Spectra
from eigenlens.spectra.valid_rows import ValidRows, uneven, valid_rows, with_valid_rows
from eigenlens.stats import RowMoments
from eigenlens.studies.stored import read_spectra, spectra_tensors
from stats.calls import call, dense_rows

SITE = Site("self", 0)
MASKED = ["causal", "causal grouped", "window", "padded", "causal padded", "biased"]


def centred(rows, valid, centring):
    """Scores with their own mean removed where asked for; zero where they are not valid."""
    if centring == "row-centred":
        rows = rows - (rows * valid).sum(1, keepdims=True) / valid.sum(1, keepdims=True)
    return rows * valid


def pairwise(rows, valid, mean, less):
    """Every covariance over the rows that see both keys, in two loops."""
    size = rows.shape[1]
    found = np.zeros((size, size))
    for j in range(size):
        for k in range(size):
            both = valid[:, j] & valid[:, k]
            product = (rows[both, j] - mean[j]) * (rows[both, k] - mean[k])
            found[j, k] = product.sum() / max(both.sum() - less, 1)
    return found


def sums_of(*calls):
    moments = RowMoments()
    for one in calls:
        moments.update(one)
    return moments


@pytest.mark.parametrize("form", MASKED)
@pytest.mark.parametrize("centring", CENTRINGS)
def test_every_entry_is_over_the_rows_that_see_both_keys(form, centring):
    fit, held = call(form, batch=8), call(form, batch=5, seed=1)
    found = valid_rows(sums_of(fit).of_site(SITE), sums_of(held).of_site(SITE), centring)
    for head in (0, 3):
        (rows, valid), (others, seen) = (
            tuple(x.numpy() for x in dense_rows(one, head)) for one in (fit, held)
        )
        rows, others = centred(rows, valid, centring), centred(others, seen, centring)
        mean = (
            np.zeros(rows.shape[1])
            if centring == "raw"
            else rows.sum(0) / np.maximum(valid.sum(0), 1)
        )
        values, vectors = np.linalg.eigh(pairwise(rows, valid, mean, centring != "raw"))
        values, vectors = values[::-1], vectors[:, ::-1]
        positive = np.maximum(values, 0)
        np.testing.assert_allclose(found[head].eigenvalues, positive, atol=1e-9 * positive[0])
        assert found[head].total == pytest.approx(positive.sum())
        assert found[head].clipped == pytest.approx(
            -values[values < 0].sum() / positive.sum(), abs=1e-9
        )
        energy = np.maximum(
            np.einsum("ji,jk,ki->i", vectors, pairwise(others, seen, mean, 0), vectors), 0
        )
        # where eigenvalues are equal (zeros of row-centred scores) the vectors, and so single
        # energies, are not determined
        apart = np.flatnonzero(np.abs(np.diff(values)) > 1e-6 * values[0])
        np.testing.assert_allclose(
            found[head].held_out[apart], (energy.cumsum() / energy.sum())[apart], atol=1e-4
        )


@pytest.mark.parametrize("centring", CENTRINGS)
def test_without_a_mask_it_is_the_spectrum_over_all_rows(centring):
    fit, held = (sums_of(call("full", batch=6, seed=seed)).of_site(SITE) for seed in (0, 1))
    analysis = RowAnalysis({SITE: fit})
    all_rows = Spectra(tuple(analysis.spectra([analysis.energies({SITE: held})]))).select(
        level="head", centring=centring
    )
    for mine, other in zip(valid_rows(fit.as_masked(), held.as_masked(), centring), all_rows):
        np.testing.assert_allclose(
            mine.eigenvalues, other.eigenvalues, atol=1e-9 * other.eigenvalues[0]
        )
        np.testing.assert_allclose(mine.held_out[:4], other.held_out[:4], atol=1e-5)
        assert mine.clipped < 1e-9 and mine.row()["valid_rows_effective_rank"] == pytest.approx(
            other.effective_rank
        )
    assert not uneven(fit) and not uneven(fit.as_masked())
    assert all(
        s.valid_rows is None
        for s in with_valid_rows(list(all_rows), sums_of(call("full")), sums_of(call("full")))
    )


def test_under_a_causal_mask_equal_keys_look_unequal_over_all_rows_only():
    """Scores drawn alike for every valid pair.

    Every key has variance 1, and no direction more than another.
    """
    S = 24
    generator = torch.Generator().manual_seed(0)

    def drawn(batch):
        q = torch.randn(batch, 1, S, S, generator=generator, dtype=torch.float64)
        # the score of a pair is an entry of q
        k = torch.eye(S, dtype=torch.float64).expand(batch, 1, S, S)
        return sums_of(
            AttentionCall(Site("self", 0), "self", "", q, k, k, 1.0, causal=True)
        ).of_site(SITE)

    fit, held = drawn(20_000), drawn(5_000)
    over_all = row_basis(fit, "centred").eigenvalues[0].numpy()
    # key j is in S − j of S rows
    np.testing.assert_allclose(over_all, np.arange(S, 0, -1) / S, rtol=0.05)
    found = valid_rows(fit, held, "centred")[0]
    np.testing.assert_allclose(found.eigenvalues, np.ones(S), rtol=0.08)
    np.testing.assert_allclose(found.held_out, np.arange(1, S + 1) / S, atol=0.01)
    assert found.dimension(0.9) == 22 and found.clipped == 0  # 0.9 of 24, where all count alike
    assert int(np.flatnonzero(over_all.cumsum() / over_all.sum() >= 0.9)[0]) + 1 == 17


def test_negative_eigenvalues_are_clipped_and_counted():
    """Three keys of which any two rows see two.

    Correlations 1, 1, −1 that no three variables have together.
    """
    rows = {(0, 1): 1.0, (1, 2): 1.0, (0, 2): -1.0}
    S, T = 3, 6
    q, mask = (
        torch.zeros(1, 1, T, S, dtype=torch.float64),
        torch.zeros(1, 1, T, S, dtype=torch.bool),
    )
    for pair, ((j, k), sign) in enumerate(rows.items()):
        for turn in (0, 1):
            q[0, 0, 2 * pair + turn, [j, k]] = torch.tensor([1.0, sign], dtype=torch.float64) * (
                1 - 2 * turn
            )
            mask[0, 0, 2 * pair + turn, [j, k]] = True
    k = torch.eye(S, dtype=torch.float64)[None, None]
    one = AttentionCall(Site("self", 0), "self", "", q, k, k, 1.0, mask=mask)
    found = valid_rows(sums_of(one).of_site(SITE), None, "raw")[0]
    matrix = np.array([[1.0, 1, -1], [1, 1, 1], [-1, 1, 1]])  # 2, 2 and −1
    np.testing.assert_allclose(
        found.eigenvalues, np.maximum(np.linalg.eigvalsh(matrix)[::-1], 0), atol=1e-12
    )
    assert found.clipped == pytest.approx(1 / 4) and found.total == pytest.approx(4)
    assert (
        np.isnan(found.held_out).all()
        and found.dimension(0.9) is None
        and found.dimension(0.9, held_out=False) == 2
    )


@pytest.fixture(scope="module")
def studies(tmp_path_factory, llama, bert, long_text):
    place = tmp_path_factory.mktemp("valid-rows")
    options = {"max_length": 16, "max_inputs": 24, "only": ["rows"]}
    return {
        "causal": el.study(llama, long_text, place / "causal", **options),
        "full": el.study(bert, long_text, place / "full", **options),
    }


def test_a_causal_study_has_both_side_by_side(studies):
    study = studies["causal"]
    fit, held = study.row_sums("fit"), study.row_sums("held")
    for head in study.heads():
        site = Site(head["stack"], head["layer"])
        for name in CENTRINGS:
            expected = valid_rows(fit[site], held[site], name)[head["head"]]
            prefix = f"rows_{name.replace('-', '_')}"
            assert head[f"{prefix}_valid_rows_held_out_dimension_90"] == expected.dimension(0.9)
            assert head[f"{prefix}_valid_rows_clipped"] == pytest.approx(expected.clipped)
            assert f"{prefix}_held_out_dimension_90" in head
    assert not any("valid_rows" in name for head in studies["full"].heads() for name in head)
    assert all(s.valid_rows is None for s in study.spectra.select(level="layer"))


def test_show_and_report_say_what_the_figure_is_and_give_the_other(run, studies, tmp_path):
    middle = np.median(
        [
            s.valid_rows.dimension(0.9)
            for s in studies["causal"].spectra.select(level="head", centring="centred")
        ]
    )
    shown = run("show", studies["causal"].folder, "--full").out
    words = "counts as the mean of its key"
    assert (
        words in " ".join(shown.split())
        and "The same over valid rows only" in shown
        and "90 %, valid rows" in shown
    )
    assert f"over valid rows only, the median is {middle:g}" in " ".join(shown.split())
    page = el.report(studies["causal"].folder, output=tmp_path / "causal.html").read_text()
    assert (
        words in page
        and "over valid rows only" in page
        and "rows centred valid rows held out dimension 90" in page
    )
    plain = (
        run("show", studies["full"].folder).out
        + el.report(studies["full"].folder, output=tmp_path / "full.html").read_text()
    )
    assert words not in plain and "valid rows" not in plain


def test_studies_of_older_versions_have_the_figure_over_all_rows_alone(studies):
    study = studies["causal"]
    tensors = spectra_tensors(list(study.spectra))
    older = {name: x for name, x in tensors.items() if "|valid_" not in name}
    assert len(older) < len(tensors)
    again = read_spectra(older, study.sites)
    assert [s.at for s in again] == [s.at for s in study.spectra] and all(
        s.valid_rows is None for s in again
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda name, x: {} if name.endswith("|valid_numbers") else {name: x},
        lambda name, x: {name: -x - 1} if name.endswith("|valid_numbers") else {name: x},
        lambda name, x: {name: x[:1]} if name.endswith("|valid_rows") else {name: x},
        lambda name, x: {name: x * torch.inf} if name.endswith("|valid_rows") else {name: x},
    ],
)
def test_a_damaged_spectrum_over_valid_rows_is_refused(studies, change):
    study = studies["causal"]
    tensors = {
        key: y
        for name, x in spectra_tensors(list(study.spectra)).items()
        for key, y in change(name, x).items()
    }
    with pytest.raises((ValueError, KeyError)):
        read_spectra(tensors, study.sites)


def test_a_head_whose_scores_never_vary_has_no_dimension():
    q = torch.zeros(2, 1, 5, 3, dtype=torch.float64)
    one = AttentionCall(Site("self", 0), "self", "", q, q, q, 1.0, causal=True)
    found = valid_rows(sums_of(one).of_site(SITE), sums_of(one).of_site(SITE), "centred")[0]
    assert (
        isinstance(found, ValidRows)
        and found.total == 0
        and found.clipped == 0
        and found.dimension(0.9) is None
    )

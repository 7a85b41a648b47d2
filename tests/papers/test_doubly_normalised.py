"""Attention that does not explain away.

Mixtures against scikit-learn, keys counted one by one, and a quick run.
"""

import sys

import numpy as np
import pytest
import torch
from sklearn.mixture import GaussianMixture

from eigenlens.captures import capture
from eigenlens.models.load import load
from eigenlens.papers import PAPERS
from eigenlens.papers.doubly_normalised.keys import (
    BINS,
    KeyWeights,
    causal_leak,
    mixtures,
    model_keys,
    posterior,
    random_keys,
    tight,
)
from eigenlens.papers.inputs import token_ids
from eigenlens.papers.pictures import draw
from printed import check_printed


def by_scikit_learn(data, centres):
    """The posterior of a mixture that is set, not fitted."""
    variance = data.shape[1] ** 0.5
    mixture = GaussianMixture(len(centres), covariance_type="spherical")
    shares = np.exp((centres**2).sum(1) / (2 * variance))
    mixture.weights_, mixture.means_ = shares / shares.sum(), centres
    mixture.covariances_ = np.full(len(centres), variance)
    mixture.precisions_cholesky_ = mixture.covariances_**-0.5
    return mixture.predict_proba(data)


def test_softmax_is_the_posterior_of_a_mixture_about_the_keys():
    q, k = torch.randn(7, 9).double(), torch.randn(5, 9).double()
    expected = by_scikit_learn(q.numpy(), k.numpy())
    np.testing.assert_allclose(posterior(q, k).numpy(), expected, atol=1e-12)
    np.testing.assert_allclose((q @ k.T / 3).softmax(1).numpy(), expected, atol=1e-12)


def test_the_step_over_queries_is_the_posterior_of_a_mixture_about_the_queries():
    q, k = torch.randn(7, 9).double(), torch.randn(5, 9).double()
    np.testing.assert_allclose(
        (q @ k.T / 3).softmax(0).numpy().T, by_scikit_learn(k.numpy(), q.numpy()), atol=1e-12
    )
    assert all(row["largest difference"] < 1e-12 for row in mixtures(6, 9, 4, 0))


def test_random_scores_keep_the_guarantee_that_softmax_breaks():
    rows = random_keys((6, 20), 20, 0)
    assert len(rows) == 10
    for row in rows:
        assert row["doubly normalised: least · S"] >= 1 - 1e-6
        assert row["doubly normalised: rows off 1"] < 1e-12
    assert rows[-1]["softmax: least · S"] < 1e-10
    torch.manual_seed(0)
    s = rows[0]["scale of scores"] * torch.randn(
        20, 6, 6, generator=torch.Generator().manual_seed(6000), dtype=torch.float64
    )
    e = s.exp()
    assert rows[0]["softmax: least · S"] == pytest.approx(
        6 * float((e / e.sum(2, keepdim=True)).sum(1).min())
    )


def test_the_edge_of_the_guarantee_in_closed_form():
    """What is left for the other keys.

    1/S of the first query, and of each other query what its column of −2·strength leaves.
    """
    S, c = 5, 3.0
    first = np.exp(np.array([0.0, *[-c] * (S - 1)]))  # scores of another query
    xi = np.array(
        [
            first[0] / (np.exp(c) + (S - 1)),
            *[np.exp(-c) / (np.exp(c) + (S - 1) * np.exp(-c))] * (S - 1),
        ]
    )
    own = np.array(
        [
            np.exp(c) / (np.exp(c) + (S - 1)),
            *[np.exp(c) / (np.exp(c) + (S - 1) * np.exp(-c))] * (S - 1),
        ]
    )
    columns = own / own.sum() + (S - 1) * xi / xi.sum()
    assert tight(S, c)["doubly normalised: least · S"] == pytest.approx(S * columns.min())
    assert tight(S, 40.0)["doubly normalised: least · S"] == pytest.approx(1)


def test_earlier_patterns_would_move_under_a_causal_mask():
    assert causal_leak(8, 0) > 0.01


def test_weights_of_keys_are_counted():
    A = torch.zeros(1, 2, 4, 4, dtype=torch.float64)
    A[0, 0, :, 0] = 1.0  # every query looks at the first key
    A[0, 1] = 0.25
    sums = KeyWeights(2, (0.25, 0.5))
    sums.add(A, torch.ones_like(A, dtype=torch.bool))
    assert (
        sums.below.tolist() == [[3, 3], [0, 0]] and sums.least.tolist() == [0, 1] and sums.keys == 4
    )
    assert float(sums.histogram.sum()) == 8 and float(sums.histogram[0]) == 3


def test_under_a_causal_mask_a_weight_is_of_the_queries_that_see_the_key():
    """Uniform over the keys so far: key j has the mean of 1/(i+1) over i ≥ j, times S."""
    n = 6
    A = torch.ones(n, n, dtype=torch.float64).tril()
    A = A / A.sum(1, keepdim=True)
    sums = KeyWeights(1, (0.5,))
    sums.add(A[None, None], A[None, None] > 0)
    expected = min(n * np.mean([1 / (i + 1) for i in range(j, n)]) for j in range(n))
    assert float(sums.least[0]) == pytest.approx(expected)


def test_a_model_is_measured_as_by_its_own_probabilities():
    found = model_keys("minilm", "python-docs", 24, 3, 0)
    loaded = load("minilm")
    ids = token_ids(loaded, "python-docs", 24, 3, 0)
    with torch.no_grad(), capture(loaded.backbone) as calls:
        loaded.backbone(input_ids=ids)
    columns = calls[4].pattern().double().sum(2)  # (3, 12, 24)
    rows = [row for row in found["heads"] if row["layer"] == 4 and row["attention"] == "softmax"]
    for head, row in enumerate(rows):
        assert row["least"] == pytest.approx(float(columns[:, head].min()), rel=1e-4)
        assert row["below 0.1"] == pytest.approx(float((columns[:, head] < 0.1).double().mean()))
    both = [row for row in found["heads"] if row["attention"] == "doubly normalised"]
    assert len(both) == 72 and min(row["least"] for row in both) >= 1 / 24 - 1e-9
    shares = [row["share"] for row in found["histogram"] if row["attention"] == "softmax"]
    assert len(shares) == BINS[2] and sum(shares) == pytest.approx(1)


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys") / "run"
    return folder, PAPERS["doubly-normalised"]("quick", output_dir=folder)


def test_what_is_printed_fits_a_page(quick, capsys):
    check_printed(quick[1], capsys)


def test_the_quick_run_judges_every_claim(quick):
    verdicts = [claim.verdict for claim in quick[1].claims]
    assert verdicts[:4] == ["reproduced"] * 4  # mathematics
    assert verdicts[5] == "reproduced" and verdicts[6:] == ["out of reach"] * 4
    assert len(quick[1].tables["training"]) == 6 and quick[1].tables["missing"] == []
    mixed = quick[1].tables["training"][2]
    # it is learned
    assert mixed["mechanism"] == "hybrid-normalised" and 0 < mixed["u"] < 1 and mixed["u"] != 0.5


@pytest.mark.parametrize(
    ("shares", "verdict"),
    [((0.02, 0.03), "reproduced"), ((0.005, 0.03), "depends"), ((0.0, 0.005), "not reproduced")],
)
def test_what_models_tend_to_is_judged_model_by_model(quick, shares, verdict):
    tables = {name: [dict(row) for row in rows] for name, rows in quick[1].tables.items()}
    softmax = next(row for row in tables["models"] if row["attention"] == "softmax")
    tables["models"] = [
        {**softmax, "model": name, "keys below 1/S": share} for name, share in zip("ab", shares)
    ]
    found = {claim.claim: claim for claim in PAPERS["doubly-normalised"].claims(tables, True)}
    claim = found["trained transformers explain keys away"]
    assert claim.verdict == verdict and claim.measured == max(shares)
    assert bool(claim.reason) == (verdict == "not reproduced")


def test_the_mathematics_can_fail(quick):
    tables = {name: [dict(row) for row in rows] for name, rows in quick[1].tables.items()}
    for row in [*tables["random scores"], *tables["tightness"]]:
        row["doubly normalised: least · S"], row["softmax: least · S"] = 0.9, 0.9
    for row in tables["tightness"]:
        row["doubly normalised: least · S"] = 1.5
    for row in tables["mixtures"]:
        row["largest difference"] = 1e-3
    found = PAPERS["doubly-normalised"].claims(tables, True)[:4]
    assert {claim.verdict for claim in found} == {"not reproduced"}
    assert all(claim.reason for claim in found)


def test_a_model_that_cannot_be_had_is_left_out_and_told(quick, monkeypatch, tmp_path):
    from dataclasses import replace

    paper = PAPERS["doubly-normalised"]
    other = replace(paper, quick=replace(paper.quick, models=("no-such-model", "minilm")))
    monkeypatch.setattr(module(), "training_rows", lambda *_: quick_runs(quick))
    done = other("quick", output_dir=tmp_path / "run")
    assert [row["model"] for row in done.tables["missing"]] == ["no-such-model"]
    assert {row["model"] for row in done.tables["models"]} == {"minilm"}


def quick_runs(quick):
    return [{**row, "curve": []} for row in quick[1].tables["training"]]


def module():
    """The module: the package has the paper under the same name."""
    return sys.modules["eigenlens.papers.doubly_normalised"]


def test_a_run_that_is_resumed_does_nothing_again(quick, monkeypatch):
    folder, done = quick
    for name in ("random_keys", "model_keys"):
        monkeypatch.setattr(module(), name, lambda *_: pytest.fail("it is finished"))
    monkeypatch.setattr(
        sys.modules["eigenlens.papers.doubly_normalised.training"],
        "train",
        lambda *_: pytest.fail("finished"),
    )
    assert (
        PAPERS["doubly-normalised"]("quick", output_dir=folder, resume=True).record()
        == done.record()
    )


def test_its_pictures_are_drawn(quick, tmp_path):
    drawn = draw(quick[1], tmp_path)
    assert {path.stem for path in drawn} == {"keys", "layers", "random", "training"}
    assert all(path.stat().st_size > 3_000 for path in drawn)

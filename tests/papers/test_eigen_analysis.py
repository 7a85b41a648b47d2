"""The quick reproduction on real weights, and the two computations it rests on, against explicit
ones.
"""

import json

import numpy as np
import pytest
import torch

import eigenlens as el
from eigenlens.attention.interpolated import RIDGE
from eigenlens.captures import Site
from eigenlens.data.datasets import text
from eigenlens.errors import EigenlensError
from eigenlens.lab import Config, MaskedBytes, Transformer, split
from eigenlens.papers import PAPERS, find_paper
from eigenlens.papers.eigen_analysis.mechanisms import MECHANISMS, layer_moments, make_mechanism
from eigenlens.papers.eigen_analysis.reconstruction import chosen_keys, error_table, held_out_error
from eigenlens.papers.pictures import draw
from eigenlens.stats import RowSums
from eigenlens.stats.within import SHARES
from printed import check_printed


def sums(x):
    """The moments of explicit rows (H, N, n)."""
    number = torch.tensor(float(x.shape[1]), dtype=torch.float64)
    return RowSums(number, x.transpose(1, 2) @ x, x.sum(1)[..., None], number.reshape(1, 1, 1))


def explicit_rows(number, n=20, heads=2):
    mixing = torch.randn(
        heads, 6, n, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    noise = 0.4 * torch.randn(heads, number, n, dtype=torch.float64)
    return torch.randn(heads, number, 6, dtype=torch.float64) @ mixing + noise + 1.5


@pytest.mark.parametrize("m", [1, 5, 19, 20])
def test_the_error_in_closed_form_is_that_of_every_row_estimated(m):
    fit, held = explicit_rows(300), explicit_rows(200)
    found = held_out_error(sums(fit), sums(held), m)
    for h in range(2):
        mean, covariance = fit[h].mean(0), fit[h].T.cov()
        keys = chosen_keys(covariance[None], m)[0]
        inner = covariance[keys][:, keys]
        weights = covariance[:, keys] @ torch.linalg.inv(
            inner + RIDGE * inner.diagonal().mean() * torch.eye(m)
        )
        estimate = mean + (held[h][:, keys] - mean[keys]) @ weights.T
        estimate[:, keys] = held[h][:, keys]  # computed entries keep their exact value
        error = (estimate - held[h]).square().sum() / (held[h] - mean).square().sum()
        assert float(found[h]) == pytest.approx(float(error), rel=1e-9, abs=1e-12)


def test_more_keys_leave_less_error():
    site = Site("self", 0)
    fit, held = {site: sums(explicit_rows(300))}, {site: sums(explicit_rows(200))}
    medians = [row["median"] for row in error_table(fit, held, (0.05, 0.25, 0.5, 1.0))]
    assert medians == sorted(medians, reverse=True)
    assert medians[0] < 1 and medians[-1] == pytest.approx(0, abs=1e-9)


@pytest.fixture(scope="module")
def lab():
    task = MaskedBytes(*split(list(text("python-docs"))[:30], 0.2), length=24, windows=16)
    torch.manual_seed(0)
    return Transformer(Config(MaskedBytes.vocabulary, length=24, width=16, layers=2, heads=2)), task


def test_moments_are_those_of_captured_scores(lab):
    model, task = lab
    found = layer_moments(model, task, batches=3, size=8, seed=5)
    scores = {0: [], 1: []}
    with torch.no_grad(), el.capture(model) as calls:
        for step in range(3):
            model(task.batch(8, 5, step).inputs)
    for call in calls:
        scores[call.layer].append(call.scores().double())
    for layer, x in enumerate(found):
        s = torch.cat(scores[layer])  # (N, H, T, n)
        for h in range(2):
            rows = s[:, h].reshape(-1, 24)
            torch.testing.assert_close(x.mean[h], rows.mean(0), atol=1e-5, rtol=1e-4)
            torch.testing.assert_close(x.covariance[h], rows.T.cov(), atol=1e-5, rtol=1e-4)
            torch.testing.assert_close(x.map[h], s[:, h].mean(0), atol=1e-5, rtol=1e-4)
            inner = (s[:, h] - s[:, h].mean(0)).reshape(-1, 24)
            torch.testing.assert_close(
                x.within[h], inner.T @ inner / len(inner), atol=1e-5, rtol=1e-4
            )


def test_moments_of_an_approximated_model_are_of_its_true_scores(lab):
    """What a refit sees are the products of all keys, not the interpolated ones."""
    model, task = lab
    found = layer_moments(model, task, batches=2, size=8, seed=5)
    model.attend_with(make_mechanism("interpolated", 0.125, model.config, found, learned=False))
    again = layer_moments(model, task, batches=2, size=8, seed=5)
    model.attend_with(make_mechanism("full", 1.0, model.config, found))
    # the first layer sees the same queries and keys
    torch.testing.assert_close(again[0].covariance, found[0].covariance)
    assert not torch.allclose(again[1].covariance, found[1].covariance)


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_mechanism_runs_in_the_model_and_counts_its_cost(lab, name):
    model, task = lab
    found = layer_moments(model, task, batches=1, size=8, seed=5)
    other = Transformer(model.config)
    other.load_state_dict(model.state_dict())
    other.attend_with(make_mechanism(name, 0.25, model.config, found))
    inputs = task.batch(4, 0, 0).inputs
    assert torch.isfinite(other(inputs)).all()
    assert torch.allclose(other(inputs), model(inputs), atol=1e-5) == (name == "full")
    cheap = {"mean only", "mean map", "uniform keys", "linformer", "nystrom"}
    assert (
        0 < other.attention_cost(24) <= model.attention_cost(24) * (0.75 if name in cheap else 1.0)
    )


def test_an_unknown_mechanism_or_paper_is_named(lab):
    with pytest.raises(EigenlensError, match="no mechanism 'magic'"):
        make_mechanism("magic", 0.5, lab[0].config, [])
    with pytest.raises(EigenlensError, match="no paper 'magic'; there are eigen-analysis"):
        find_paper("magic")


@pytest.mark.slow
def test_the_quick_reproduction_judges_every_claim_and_goes_on_where_it_was(tmp_path, capsys):
    out = tmp_path / "paper"
    done = PAPERS["eigen-analysis"]("quick", out)
    check_printed(done, capsys)
    assert [len(done.claims), len(done.tables["reconstruction"])] == [6, 4]
    rows, matrices, layers, models, estimated, _ = done.claims
    for row in done.tables["dimensions"]:
        along = [row[f"centred {share:.0%}"] for share in SHARES]
        assert along == sorted(along) and 1 <= along[0] <= along[-1] <= row["n"]
        assert [row[f"share of n, {share:.0%}"] * row["n"] for share in SHARES] == along
    assert rows.measured == np.median(
        [row["centred 90%"] / row["n"] for row in done.tables["dimensions"]]
    )
    study = el.Study.open(out / "studies" / "minilm")
    spectra = study.spectra.select(analysis="rows", level="head", centring="centred")
    first = done.tables["dimensions"][0]
    assert first["centred 95%"] == np.median(
        [np.searchsorted(s.held_out, 0.95) + 1 for s in spectra]
    )
    assert matrices.verdict == "out of reach"  # 48 inputs cannot tell
    whole = [row for row in done.tables["matrices"] if row["model"] == "minilm"]
    held = [row["held out"] for row in whole]
    assert held == sorted(held) and all(row["in the sample"] >= row["held out"] for row in whole)
    overlap = {(row["model"], row["rank"]): row for row in done.tables["overlap"]}
    assert {rank for _, rank in overlap} == {1, 2, 4, 8}  # a rank of n/4 is compared no more
    assert layers.measured == np.median(
        [overlap[name, 4]["times chance"] for name in ("minilm", "distilbert-gec")]
    )
    by_rank = {row["rank"]: row for row in done.tables["between models"]}
    assert models.measured == pytest.approx(by_rank[4]["overlap"] * 64 / 4)
    errors = [row["median"] for row in done.tables["reconstruction"]]
    assert errors == sorted(errors, reverse=True) and estimated.measured == errors[2]
    for row in done.tables["reconstruction"]:
        left = np.median([1 - s.held_out[row["keys"] - 1] for s in spectra])
        assert row["best of rank m"] == pytest.approx(left) and left < row["median"]
    others = {(r["estimator"], r["budget"]): r for r in done.tables["estimators"]}
    assert {name for name, _ in others} == {"joint", "adaptive", "key-pca", "rows-lmmse"}
    assert others["joint", 0.25]["score_error_median"] < estimated.measured
    table = {(row["mechanism"], row["protocol"]): row for row in done.tables["training"]}
    assert {name for name, _ in table} == set(MECHANISMS)
    assert table["full", "tuned"]["loss"] < table["mean only", "tuned"]["loss"]
    assert table["interpolated", "learned"]["loss"] < table["interpolated", "drop-in"]["loss"]
    assert len(draw(done, tmp_path / "pictures")) == 2

    stored = json.loads((out / "reproduction.json").read_text())
    assert stored == json.loads(json.dumps(done.record()))
    (out / "reproduction.json").unlink()
    steps = []
    again = PAPERS["eigen-analysis"](
        "quick", out, progress=lambda what, *_: steps.append(what), resume=True
    )
    assert steps == []  # nothing is trained or studied again
    assert again.record() == done.record()
    with pytest.raises(EigenlensError, match="already holds"):
        PAPERS["eigen-analysis"]("quick", out)

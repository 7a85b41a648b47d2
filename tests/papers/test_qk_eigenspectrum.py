"""Spectra and localisation.

The toy, the heads of a loaded model, the penalty in training, and a run that is kept.
"""

import copy

import numpy as np
import pytest
import torch

from eigenlens import capture
from eigenlens.papers import qk_eigenspectrum as qk
from eigenlens.papers.inputs import make_batches
from eigenlens.papers.qk_eigenspectrum.claims import claims_of
from eigenlens.papers.qk_eigenspectrum.toy import (
    autoregressive,
    descend,
    looking_back,
    symmetric,
    toy_row,
)
from printed import check_printed
from tiny import of_catalogue


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("qk") / "run"
    return qk.paper("quick", folder), folder


def test_what_is_printed_fits_a_page(done, capsys):
    check_printed(done[0], capsys)


def test_what_must_hold_holds_in_the_quick_run(done):
    verdicts = {claim.claim: claim.verdict for claim in done[0].claims}
    for claim in (
        "toy: the smaller the variance, the nearer attention looks",
        "toy: without a trace attention does not localise",
        "the penalty's gradient has no trace",
        "penalty-only descent in W keeps the trace",
    ):
        assert verdicts[claim] == "reproduced", claim


def test_a_resumed_run_does_nothing_again(done, monkeypatch):
    def again(*_, **__):
        raise AssertionError("measured again")

    for name in ("_toy", "descend", "head_rows", "_train"):
        monkeypatch.setattr(qk, name, again)
    assert qk.paper("quick", done[1], resume=True).record() == done[0].record()


def test_pictures_are_drawn_of_every_table(done):
    assert set(qk.paper.charts(done[0].tables)) == {"qk-eigenspectrum", "qk-training"}
    assert all(name in done[0].tables for _, name in qk.paper.shown)


def test_a_heads_numbers_are_those_of_its_dense_matrix(done):
    row = next(row for row in done[0].tables["heads"] if (row["layer"], row["head"]) == (2, 7))
    attention = of_catalogue("minilm").module.encoder.layer[2].attention.self
    W_Q, W_K = (
        part.weight.detach().double()[7 * 32 : 8 * 32].T.numpy()
        for part in (attention.query, attention.key)
    )
    W = W_Q @ W_K.T
    values = np.linalg.eigvals(W)
    assert row["mean"] == pytest.approx(np.trace(W) / 384)
    assert row["variance"] == pytest.approx((abs(values - np.trace(W) / 384) ** 2).mean())
    assert row["trace of square"] == pytest.approx(np.trace(W @ W)) and row[
        "square"
    ] == pytest.approx((W**2).sum())


def test_where_a_head_looks_is_what_its_eager_attention_says(done):
    rows = {(row["layer"], row["head"]): row for row in done[0].tables["heads"]}
    model = of_catalogue("minilm")
    batches = make_batches(model, qk.QUICK.text, qk.QUICK.length, qk.QUICK.inputs, 0, 4)
    ids = torch.cat([batch["input_ids"] for batch in batches])
    eager = type(model.backbone)(
        copy.deepcopy(model.backbone.config), add_pooling_layer=False
    ).eval()
    eager.load_state_dict(model.backbone.state_dict(), strict=False)
    eager.set_attn_implementation("eager")
    with torch.no_grad():
        A = np.stack(
            [a.double().numpy() for a in eager(input_ids=ids, output_attentions=True).attentions]
        )
    T = ids.shape[1]
    d = abs(np.arange(T)[:, None] - np.arange(T))
    for layer, head in ((0, 2), (3, 5), (5, 11)):
        P, row = A[layer][:, head], rows[layer, head]
        assert row["distance"] == pytest.approx((P * d).sum(2).mean() / d.mean(), rel=1e-4)
        assert row["rho far"] == pytest.approx((P > 1 / T)[:, d > 2].mean(), abs=1e-4)
        p, u = (np.array([x[..., d == k].sum() for k in range(T)]) for x in (P, np.ones_like(P)))
        p, u = p / p.sum(), u / u.sum()
        assert row["profile entropy"] == pytest.approx(
            (p * np.log(p)).sum() / (u * np.log(u)).sum(), rel=1e-4
        )


@pytest.mark.parametrize(
    ("variance", "distance", "entropy"),
    [(0.0, 1.5, 0.28), (0.06, 1.8, 0.34), (0.25, 3.7, 0.56), (1.0, 8.1, 0.79)],
)
def test_the_toy_localises_as_published(variance, distance, entropy):
    rows = [toy_row(16.0, variance, 1000, seed) for seed in range(3)]
    assert np.mean([row["distance"] for row in rows]) == pytest.approx(distance, rel=0.1)
    assert np.mean([row["entropy"] for row in rows]) == pytest.approx(entropy, abs=0.05)
    assert 14 < toy_row(0.0, variance, 1000, 0)["distance"] < 17


def test_the_toys_matrix_has_the_spectrum_that_was_asked_for():
    W = symmetric(64, 16.0, 0.25, 3).numpy()
    values = np.linalg.eigvalsh(W)
    assert (
        np.allclose(W, W.T)
        and values.sum() == pytest.approx(16.0)
        and values.var() == pytest.approx(0.25)
    )


def test_the_toys_tokens_forget_by_rho_and_the_last_looks_back():
    x = autoregressive(4000, 6, 3, 0.9, 0)
    assert float((x[:, 4] * x[:, 2]).mean()) == pytest.approx(0.81, abs=0.03)
    assert float(x[:, 5].var()) == pytest.approx(1.0, abs=0.03)
    W = symmetric(3, 1.0, 0.5, 0)
    A = looking_back(x[:5], W)
    scores = np.array([[float(x[b, 5] @ W @ x[b, t]) for t in range(5)] for b in range(5)])
    np.testing.assert_allclose(A.numpy(), np.exp(scores) / np.exp(scores).sum(1, keepdims=True))


def test_descent_on_the_penalty_leaves_the_trace():
    found = descend(64, 100, 0.02, 1)
    assert (
        found["drift"] < 1e-5 and found["gradient's trace"] < 1e-5 and found["penalty left"] < 1e-3
    )


def test_entropy_and_distance_of_a_trained_model_are_those_of_its_captured_patterns():
    from eigenlens.lab import NextBytes, Transformer

    task = NextBytes(
        ["the cat sat on the mat. " * 40], ["a dog ran in the park. " * 40], length=16, windows=8
    )
    torch.manual_seed(0)
    model = Transformer(task.config(layers=1, width=16, heads=2))
    with torch.no_grad(), capture(model) as calls:
        model(next(iter(task.held_out())).inputs[:16])
    A = calls[0].pattern().double().numpy()
    back = np.maximum(np.arange(16)[:, None] - np.arange(16), 0)
    entropy = -(A * np.log(np.where(A > 0, A, 1))).sum(3)[..., 1:] / np.log(np.arange(2, 17))
    found = qk.attention_numbers(model, task)
    assert found["distance"] == pytest.approx((A * back).sum(3).mean(), rel=1e-4)
    assert found["entropy"] == pytest.approx(entropy.mean(), rel=1e-4)


def test_claims_can_fail(done):
    tables = {name: [dict(row) for row in rows] for name, rows in done[0].tables.items()}
    for row in tables["toy"]:
        row["distance"] = 5.0
    for row in tables["correlations"]:
        row["high"] = 0.1
    for row in tables["descent"]:
        row["drift"] = row["gradient's trace"] = 1e-3
    found = {claim.claim: claim for claim in claims_of(tables, True)}
    for claim in (
        "toy: the smaller the variance, the nearer attention looks",
        "toy: without a trace attention does not localise",
        "the penalty's gradient has no trace",
        "penalty-only descent in W keeps the trace",
        "minilm: heads with a concentrated spectrum look nearer",
    ):
        assert found[claim].verdict == "not reproduced" and found[claim].reason, claim
    name = "minilm: heads with a concentrated spectrum look nearer"
    for low, why in ((-0.1, "the scale: 72 heads do not tell"), (0.05, "the claim: over 72 ")):
        for row in tables["correlations"]:
            row["low"] = low
        found = {claim.claim: claim for claim in claims_of(tables, True)}
        assert found[name].reason.startswith(why)
    for row in tables["correlations"]:
        row["high"] = -0.1
    found = {claim.claim: claim for claim in claims_of(tables, True)}
    assert found[name].verdict == "reproduced"


def test_a_miniature_of_the_papers_language_models_is_no_verdict(done):
    runs = {(run["penalty"], run["seed"]): run for run in done[0].tables["runs"]}
    found = {claim.claim: claim for claim in done[0].claims}
    claim = found["the penalty lowers the perplexity of a language model"]
    ratios = [runs[0.01, s]["perplexity"] / runs[0.0, s]["perplexity"] for s in (0, 1)]
    assert claim.verdict == "out of reach" and claim.measured == pytest.approx(np.mean(ratios))

"""Mind the gap: the mathematics against closed forms, and a quick run from end to end."""

import math

import pytest
import torch

from eigenlens.captures import capture
from eigenlens.models.load import load
from eigenlens.papers import PAPERS, mind_the_gap
from eigenlens.papers.fits import power_law_exponent
from eigenlens.papers.inputs import token_ids
from eigenlens.papers.mind_the_gap.encoders import encoder_rows, use_attention
from eigenlens.papers.mind_the_gap.models import (
    VARIANTS,
    Variant,
    attention_by_layer,
    attention_of,
    generator,
    gradient_norm,
    isometric,
    isometric_start,
    key_query,
    layer_outputs,
    markov,
    spectrum,
    stable_rank,
    uniform,
)
from eigenlens.papers.pictures import draw
from printed import check_printed


def test_the_markov_model_has_exponentials_of_mean_and_variance_one():
    A = markov(1500, generator(0))
    torch.testing.assert_close(A.sum(1), torch.ones(1500, dtype=torch.float64))
    entries = 1500 * A  # e^G over its row's mean
    assert float(entries.var()) == pytest.approx(1, abs=0.02)


def test_the_spectrum_of_four_hundred_tokens():
    found = [spectrum(markov(400, generator(seed))) for seed in range(3)]
    mean = {key: sum(row[key] for row in found) / 3 for key in found[0]}
    assert abs(mean["s1"] - 1) < 0.01
    assert 1.9 < mean["s2·√T"] < 2.3
    assert 0.9 < mean["λ2·√T"] < 1.1
    # what is left is the bulk
    assert mean["removed s1·√T"] == pytest.approx(mean["s2·√T"], rel=0.01)


def test_the_spectrum_of_a_matrix_that_is_known():
    """Half of the identity and half of the uniform matrix.

    Eigenvalues 1 and ½, and without the uniform part ½ and 0.
    """
    A = 0.5 * torch.eye(9, dtype=torch.float64) + 0.5 * uniform(9)
    assert spectrum(A) == pytest.approx(
        {"s1": 1.0, "s2·√T": 1.5, "λ2·√T": 1.5, "removed s1·√T": 1.5}
    )


def test_the_bulk_of_key_query_attention_shrinks_with_the_square_root():
    rows = [
        {
            "T": T,
            "s2": (
                sum(
                    spectrum(attention_of("key-query", T, T, generator(s, T)))["s2·√T"]
                    for s in range(4)
                )
                / math.sqrt(T)
            ),
        }
        for T in (64, 128, 256)
    ]
    assert power_law_exponent(rows, "T", "s2") == pytest.approx(-0.5, abs=0.15)


def test_tokens_are_isometric_and_key_query_scores_have_variance_one():
    X = isometric(150, 300, generator(0))
    torch.testing.assert_close(X @ X.T, torch.eye(150, dtype=torch.float64))
    scores = key_query(X, generator(1)).log()
    assert float((scores - scores.mean(1, keepdim=True)).std()) == pytest.approx(1, abs=0.05)


def test_stable_rank_is_of_the_gram_matrix():
    X = torch.diag(torch.tensor([2.0, 1.0, 1.0], dtype=torch.float64))
    assert stable_rank(X) == pytest.approx((16 + 1 + 1) / 16)
    assert stable_rank(1e200 * X) == pytest.approx(18 / 16)
    assert stable_rank(torch.eye(7, dtype=torch.float64)) == pytest.approx(7)
    assert stable_rank(torch.zeros(4, 4, dtype=torch.float64)) == 0


def test_tokens_that_are_all_equal_vanish_without_the_outlier():
    X = torch.randn(1, 6, dtype=torch.float64).expand(5, 6)
    W = [torch.randn(6, 6, dtype=torch.float64)]
    assert (
        float(
            layer_outputs(X, W, attention_by_layer("Markov", 5, 0), Variant(removed=True))[0]
            .abs()
            .max()
        )
        == 0
    )
    assert stable_rank(
        layer_outputs(X, W, attention_by_layer("Markov", 5, 0), Variant())[0]
    ) == pytest.approx(1)


def test_one_layer_collapses_and_without_the_outlier_does_not():
    """As the sheet has it: below 1.1 before and above 10 after, at 400 tokens."""
    X, W = isometric_start(400, 400, 1, 0)
    before, after = (
        stable_rank(layer_outputs(X, W, attention_by_layer("Markov", 400, 0), Variant(removed))[0])
        for removed in (False, True)
    )
    assert before < 1.1 and after > 10


def test_layers_are_the_formula_of_each_variant():
    X, W = isometric_start(12, 15, 2, 0)
    A = [markov(12, generator(0, layer, 1)) for layer in range(2)]
    for variant in VARIANTS:
        Y = X
        for attention, weight in zip(A, W):
            out = (attention - (1 / 12 if variant.removed else 0)) @ Y @ weight + (
                Y if variant.skip else 0
            )
            if variant.norm:
                out = (out - out.mean(1, keepdim=True)) / (
                    out.var(1, correction=0, keepdim=True) + 1e-5
                ).sqrt()
            Y = out
        torch.testing.assert_close(
            layer_outputs(X, W, attention_by_layer("Markov", 12, 0), variant)[-1], Y
        )


@pytest.mark.parametrize("removed", [False, True])
def test_gradient_norms_are_those_of_the_whole_jacobian(removed):
    variant, T, d, depth = Variant(removed), 10, 12, 3
    X, W = isometric_start(T, d, depth, 5)
    A = [
        markov(T, generator(5, layer, 1)) - (uniform(T) if removed else 0) for layer in range(depth)
    ]
    closed = torch.linalg.norm(A[2] @ A[1] @ A[0] @ X) * torch.linalg.norm(W[1] @ W[2])

    def last(first):
        return layer_outputs(X, [first, *W[1:]], attention_by_layer("Markov", T, 5), variant)[-1]

    assert float(torch.autograd.functional.jacobian(last, W[0]).norm()) == pytest.approx(
        float(closed)
    )
    assert gradient_norm("Markov", T, d, depth, variant, 5, probes=2000) == pytest.approx(
        float(closed), rel=0.05
    )


def test_the_causal_uniform_matrix_averages_the_tokens_so_far():
    X = torch.randn(6, 3, dtype=torch.float64)
    torch.testing.assert_close(
        uniform(6, True) @ X, torch.stack([X[: i + 1].mean(0) for i in range(6)])
    )


def test_an_encoder_attends_by_the_remedy_and_as_before_afterwards():
    """The first block's output with `spectral-gap-removal` is that of its own projections and the
    formula.
    """
    loaded = load("minilm")
    model, ids = loaded.backbone, torch.tensor([[101, 7592, 2088, 2003, 2307, 102]])
    with torch.no_grad():
        before = model(ids).last_hidden_state
        with use_attention(model, "spectral-gap-removal"):
            inside = model(ids, output_hidden_states=True).hidden_states
        torch.testing.assert_close(model(ids).last_hidden_state, before)
        block, X = model.encoder.layer[0], inside[0]
        own = block.attention.self
        q, k, v = (f(X).view(1, 6, 12, 32).transpose(1, 2) for f in (own.query, own.key, own.value))
        A = (q @ k.transpose(2, 3) / 32**0.5).softmax(3) - 1 / 6
        mixed = block.attention.output((A @ v).transpose(1, 2).reshape(1, 6, 384), X)
        torch.testing.assert_close(
            block.output(block.intermediate(mixed), mixed), inside[1], atol=1e-5, rtol=1e-4
        )


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gap") / "run"
    return folder, PAPERS["mind-the-gap"]("quick", output_dir=folder)


def test_what_is_printed_fits_a_page(quick, capsys):
    check_printed(quick[1], capsys)


def test_the_quick_run_judges_every_claim(quick):
    verdicts = {claim.claim: claim.verdict for claim in quick[1].claims}
    assert len(verdicts) == 13
    facts = [
        "one singular value is an outlier near 1",
        "the bulk of singular values has radius 2σT^(−1/2)",
        "Markov: after one layer the tokens are nearly of rank one",
        "Markov: without the outlier they are not",
        "Markov: removing the outlier keeps a higher rank along depth",
        "Markov: removing the outlier tames the growth of gradients with T",
    ]
    assert {verdicts[fact] for fact in facts} == {"reproduced"}


def test_under_a_causal_mask_another_matrix_is_the_outlier(quick):
    for model in ("Markov", "key-query"):
        plain, flat, own = (row["s1"] for row in quick[1].tables["causal"] if row["model"] == model)
        assert flat > 0.9 * plain and own < 1


def test_verdicts_follow_from_the_numbers(quick):
    tables = {name: [dict(row) for row in rows] for name, rows in quick[1].tables.items()}
    rows = [row for row in tables["depth"] if row["model"] == "Markov"]
    for row in rows:
        row["stable rank"] = 2.0 if "A⊥" in row["variant"] and "norm" in row["variant"] else 1.0
    for row in tables["encoder"]:
        ours = row["attention"] == "spectral-gap-removal"
        row["stable rank"] = 1.02 if ours else 1.0
    found = {claim.claim: claim for claim in mind_the_gap.claims_of(tables, True)}
    depth = found["Markov: removing the outlier keeps a higher rank along depth"]
    assert depth.verdict == "depends" and "not at A (0.00), A, skip (0.00)" in depth.note
    whole = "a whole encoder at its random start keeps a higher rank without the outlier"
    assert found[whole].verdict == "depends"
    for row in [*rows, *tables["encoder"]]:
        row["stable rank"] = 1.0
    for row in tables["spectrum runs"]:
        row["s1"], row["s2·√T"], row["λ2·√T"] = 1.5, 5.0, 3.0
    for row in tables["width"]:
        row["stable rank"] = 5.0 + row["T"] * (row["variant"] == "A")
    for row in tables["gradient runs"]:
        row["norm"] = row["T"]
    found = {claim.claim: claim for claim in mind_the_gap.claims_of(tables, True)}
    for name in (
        "one singular value is an outlier near 1",
        "the bulk of singular values has radius 2σT^(−1/2)",
        "the bulk of eigenvalues has radius σT^(−1/2)",
        "Markov: after one layer the tokens are nearly of rank one",
        "Markov: without the outlier they are not",
        "Markov: removing the outlier keeps a higher rank along depth",
        "key-query: removing the outlier tames the growth of gradients with T",
        whole,
    ):
        assert found[name].verdict == "not reproduced" and found[name].reason, name


def test_the_tables_of_the_quick_run_are_whole(quick):
    tables = quick[1].tables
    assert len(tables["cloud"]) == 2 * (100 + 200)
    assert len(tables["depth"]) == 2 * len(VARIANTS) * 4
    assert {row["attention"] for row in tables["encoder"]} == {"softmax", "spectral-gap-removal"}
    first = [row for row in tables["encoder"] if row["depth"] == 0 and row["weights"] == "trained"]
    assert first[0]["stable rank"] == first[1]["stable rank"]  # nothing has attended yet
    assert all(-1 <= row["cosine with its own"] <= 1 for row in tables["embeddings"])


def test_a_run_that_is_resumed_does_nothing_again(quick, monkeypatch):
    folder, done = quick
    for name in ("spectra", "clouds", "widths", "depths", "gradients", "causal", "encoder_rows"):
        monkeypatch.setattr(mind_the_gap, name, lambda *_: pytest.fail("it is finished"))
    assert PAPERS["mind-the-gap"]("quick", output_dir=folder, resume=True).record() == done.record()


def test_its_pictures_are_drawn(quick, tmp_path):
    assert mind_the_gap.paper.name == "mind-the-gap"
    drawn = draw(quick[1], tmp_path)
    assert {path.stem for path in drawn} == {"rank", "eigenvalues", "gradients", "encoder"}
    assert all(path.stat().st_size > 5_000 for path in drawn)


def test_what_is_left_of_patterns_is_what_is_not_uniform(quick):
    """`‖A − 11ᵀ/T‖² = ‖A‖² − 1` of rows that sum to 1, so that the share is `1 − 1/‖A‖²`."""
    loaded = load("minilm")
    ids = token_ids(loaded, "python-docs", 32, 8, 0)
    with torch.no_grad(), capture(loaded.backbone) as calls:
        loaded.backbone(input_ids=ids)
    squares = torch.stack([call.pattern().double().square().sum((2, 3)) for call in calls])
    assert quick[1].tables["embeddings"][0]["left of patterns"] == pytest.approx(
        float((1 - 1 / squares).mean()), rel=1e-4
    )


@pytest.mark.slow
def test_random_starts_differ_and_the_same_seed_is_the_same():
    sizes = ("minilm", "python-docs", 16, 3, 2, 0)
    one, other = encoder_rows(*sizes), encoder_rows(*sizes)
    assert one == other
    ends = {
        row["start"]: row["stable rank"]
        for row in one["encoder"]
        if row["attention"] == "softmax" and row["depth"] == 6
    }
    assert len(set(ends.values())) == 3

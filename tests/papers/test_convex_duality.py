"""Convex duality.

The drawn data by loops, tokens of pictures as the model gives them, and a quick run.
"""

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from eigenlens.lab.convex import heads_from_matrix, solve
from eigenlens.papers import PAPERS
from eigenlens.papers.convex_duality.blocks import counterexample, random_problem
from eigenlens.papers.convex_duality.claims import claims_of
from eigenlens.papers.convex_duality.tokens import HEADS, PictureTokens
from eigenlens.papers.pictures import draw
from printed import check_printed

PAPER = PAPERS["convex-duality"]


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    folder = tmp_path_factory.mktemp("convex") / "run"
    return folder, PAPER("quick", output_dir=folder)


def test_what_is_printed_fits_a_page(quick, capsys):
    check_printed(quick[1], capsys)


def test_the_quick_run_judges_every_claim(quick):
    verdicts = [claim.verdict for claim in quick[1].claims]
    # identity, certificate, enough heads, of every block; one head is worse
    assert verdicts[:5] == ["reproduced"] * 5
    # the bound where it holds, and where it does not
    assert verdicts[6] == "reproduced" and verdicts[7] == "not reproduced"
    assert verdicts[8] == "reproduced" and verdicts[11] == "out of reach"
    tables = quick[1].tables
    assert len(tables["blocks"]) == 8 and len(tables["heads"]) == 6 and len(tables["accuracy"]) == 4
    assert {row["heads"] for row in tables["head counts"]} == {1, 2, 6}


def test_a_run_that_is_resumed_does_nothing_again(quick, monkeypatch):
    folder, done = quick
    for name in ("block_run", "head_runs", "path_rows", "counterexample", "token_run"):
        monkeypatch.setattr(
            sys.modules["eigenlens.papers.convex_duality"],
            name,
            lambda *_: pytest.fail("it is finished"),
        )
    assert PAPER("quick", output_dir=folder, resume=True).record() == done.record()


def test_its_pictures_are_drawn(quick, tmp_path):
    drawn_files = draw(quick[1], tmp_path)
    assert {path.stem for path in drawn_files} == {"convex-duality", "certificates", "clusters"}
    assert all(path.stat().st_size > 3_000 for path in drawn_files)


def test_drawn_targets_are_those_of_two_heads():
    """A Z of rank 2 fits them, and no Z of rank 1 does."""
    problem = random_problem(PAPER.full, 3)
    X, Y = problem.block.X.numpy(), problem.loss.Y.numpy()
    assert X.shape == (24, 5, 3) and Y.shape == (24, 5, 2)
    assert (X**2).sum(2).mean() == pytest.approx(1, abs=0.15)
    features = np.einsum("nsa,nuk,nul->nsakl", X, X, X).reshape(24 * 5, 27)  # X[t,a] G[k,l]
    fitted, left, *_ = np.linalg.lstsq(features, Y.reshape(120, 2), rcond=None)
    np.testing.assert_allclose(features @ fitted, Y.reshape(120, 2), atol=1e-9)
    assert len(heads_from_matrix(problem.block, solve(problem, 0.1 * problem.beta_max()).Z)) >= 2


def test_the_counterexample_fits_without_error_and_is_no_optimum():
    (row,) = counterexample(replace(PAPER.quick, n=12), 0)
    problem = random_problem(replace(PAPER.quick, n=12), 0)
    assert row["excess"] == 0 and row["off"] > 0.1 and row["objective"] > row["optimum"]
    assert row["off"] <= row["slack"] + 1e-6  # with its second term the bound holds
    assert row["β"] == pytest.approx(0.1 * problem.beta_max())


def test_the_bound_is_judged_by_what_was_measured(quick):
    tables = dict(quick[1].tables)
    tables["heads"] = [{**row, "off": 2.0, "excess": 1.0} for row in tables["heads"]]
    verdicts = [claim.verdict for claim in claims_of(tables)]
    assert (
        verdicts[2] == "not reproduced"
        and verdicts[6] == "not reproduced"
        and verdicts[5] == "not reproduced"
    )
    tables["blocks"] = [
        {**row, "identity": 1e-3, "gap": 1e-3, "trained off": 1e-3} for row in tables["blocks"]
    ]
    tables["path"] = tables["path"][::-1]
    tables["clusters"] = [{**row, "purity": 0.5} for row in tables["clusters"]]
    found = claims_of(tables)
    for at in (0, 1, 3, 8, 9, 10):
        assert found[at].verdict == "not reproduced" and found[at].reason, found[at].claim


@pytest.mark.download
def test_tokens_are_the_principal_components_of_the_model_s_own():
    """Against scikit-learn, on the pictures to fit; the other pictures get the same components."""
    from sklearn.decomposition import PCA

    scale = replace(PAPER.quick, images=(6, 3, 4), features=5)
    tokens = PictureTokens(scale, 0)
    pictures, X, y, kept = tokens.draw(0)
    hidden = tokens.made[1].numpy()
    assert hidden.shape == (13, 16, 384) and [len(x) for x in X] == [6, 3, 4] == [
        len(p) for p in pictures
    ]
    pca = PCA(5).fit(hidden[:6].reshape(-1, 384))
    assert kept == pytest.approx(pca.explained_variance_ratio_.sum(), rel=1e-6)
    expected = pca.transform(hidden[6:9].reshape(-1, 384))
    scaled = X[1].flatten(0, 1).numpy()
    assert float(X[0].square().sum(2).mean()) == pytest.approx(1)
    ratio = np.linalg.norm(expected) / np.linalg.norm(scaled)
    np.testing.assert_allclose(
        np.abs(scaled) * ratio, np.abs(expected), atol=1e-6 * np.abs(expected).max()
    )
    assert torch.equal(torch.cat(y), tokens.made[2])


def test_the_linear_head_is_a_linear_map_of_the_mean_token():
    X = torch.randn(4, 6, 3).double()
    block = HEADS["linear head"](X)
    Z = torch.randn(block.shape).double()
    torch.testing.assert_close(block.apply(Z)[:, 0], X.mean(1) @ Z[0])

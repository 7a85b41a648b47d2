"""Every formula against a plain numpy computation of its definition, input by input, token by
token.
"""

import math

import numpy as np
import pytest
import torch

from eigenlens import EigenlensError
from eigenlens.stats import geometry
from eigenlens.stats.geometry import dirichlet_energy, squared_distances
from stats.by_hand import attention_by_hand, by_hand

LENGTH, WIDTH = 9, 6


def tokens(batch=4, length=LENGTH, width=WIDTH, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(batch, length, width, generator=draw, dtype=torch.float64) + 0.7


def some_valid(batch=4, length=LENGTH, seed=1):
    """A mask with holes, and at least two tokens an input."""
    draw = torch.Generator().manual_seed(seed)
    valid = torch.rand(batch, length, generator=draw) < 0.6
    valid[:, 2:4] = True
    return valid


def patterns(batch=4, heads=3, length=LENGTH, sharp=2.0, seed=2):
    draw = torch.Generator().manual_seed(seed)
    return torch.softmax(
        sharp * torch.randn(batch, heads, length, length, generator=draw, dtype=torch.float64), -1
    )


@pytest.mark.parametrize("shape", [(9, 6), (6, 9), (5, 5)])
@pytest.mark.parametrize("masked", [False, True])
def test_tokens(shape, masked):
    X = tokens(length=shape[0], width=shape[1])
    valid = some_valid(length=shape[0]) if masked else None
    # what is left out is never looked at
    spoiled = X if valid is None else torch.where(valid[..., None], X, math.nan)
    found = {
        "residual": geometry.relative_residual(spoiled, valid),
        "ranks": geometry.ranks(spoiled, valid),
        "cosine": geometry.mean_cosine(spoiled, valid),
        "high": geometry.high_frequency(spoiled, valid),
    }
    median = geometry.relative_residual(spoiled, valid, centre="median")
    for i, x in enumerate(X):
        kept = (x if valid is None else x[valid[i]]).numpy()
        expected = by_hand(kept)
        for name in ("residual", "cosine", "high"):
            assert found[name][i].item() == pytest.approx(expected[name], rel=1e-12)
        assert [r[i].item() for r in found["ranks"]] == pytest.approx(expected["ranks"], rel=1e-9)
        assert median[i].item() == pytest.approx(by_hand(kept, np.median)["residual"], rel=1e-12)


def test_float32_tokens_are_measured_in_float64():
    X = (tokens() * 1e-3 + 50).float()
    for i, x in enumerate(X.double().numpy()):
        assert geometry.relative_residual(X)[i].item() == pytest.approx(
            by_hand(x)["residual"], rel=1e-12
        )
        assert geometry.high_frequency(X)[i].item() == pytest.approx(by_hand(x)["high"], rel=1e-9)


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
def test_ranks_do_not_depend_on_the_scale(scale):
    for ours, expected in zip(
        geometry.ranks(tokens(1) * scale), by_hand(tokens(1)[0].numpy())["ranks"]
    ):
        assert ours.item() == pytest.approx(expected, rel=1e-9)


def test_ranks_of_nearly_collapsed_tokens():
    """Singular values far below the first, down to where squaring begins to lose them."""
    draw = np.random.default_rng(0)
    U, V = (np.linalg.qr(draw.normal(size=(n, 20)))[0] for n in (40, 30))
    for smallest in (1e-3, 1e-5, 1e-7, 1e-12):
        s = np.geomspace(1, smallest, 20)
        X = (U * s) @ V.T
        p = s / s.sum()
        effective, stable, participation = geometry.ranks(torch.from_numpy(X)[None])
        assert effective.item() == pytest.approx(np.exp(-(p * np.log(p)).sum()), rel=1e-3)
        assert stable.item() == pytest.approx((s**2).sum() / s[0] ** 2, rel=1e-12)
        assert participation.item() == pytest.approx((s**2).sum() ** 2 / (s**4).sum(), rel=1e-12)


@pytest.mark.parametrize("sharp", [0.1, 2.0, 30.0])
def test_patterns(sharp):
    P, X = patterns(sharp=sharp), tokens()
    found = (
        dirichlet_energy(P, squared_distances(X)),
        geometry.row_entropy(P),
        geometry.singular_ratio(P),
    )
    for b in range(4):
        for h in range(3):
            expected = attention_by_hand(P[b, h].numpy(), X[b].numpy())
            assert [x[b, h].item() for x in found] == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_patterns_of_a_part_of_the_tokens_are_renormalised():
    P, X, kept = patterns().tril(), tokens(), some_valid()
    P = P / P.sum(-1, keepdim=True)
    part = geometry.restricted(P, kept)
    found = (
        dirichlet_energy(part, squared_distances(X, kept)),
        geometry.row_entropy(part),
        geometry.singular_ratio(part),
    )
    for b in range(4):
        index = np.flatnonzero(kept[b].numpy())
        for h in range(3):
            cut = P[b, h].numpy()[np.ix_(index, index)]
            expected = attention_by_hand(cut / cut.sum(1, keepdims=True), X[b].numpy()[index])
            assert [x[b, h].item() for x in found] == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_a_query_that_sees_only_what_was_left_out_has_no_row():
    P = torch.tensor([[[[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.5, 0.25, 0.25]]]])
    kept = torch.tensor([[False, True, True]])
    part = geometry.restricted(P, kept)
    assert part[0, 0].tolist() == [[0, 0, 0], [0, 0, 0], [0, 0.5, 0.5]]
    assert geometry.row_entropy(part).item() == pytest.approx(math.log(2))


def real_like(length, kind, seed=0):
    """Patterns as heads make them, (4, 2, n, n): diffuse, sharp, to the neighbour, to one sink."""
    draw = torch.Generator().manual_seed(seed)
    scores = torch.randn(4, 2, length, length, generator=draw, dtype=torch.float64)
    if kind == "sharp":
        scores = scores * 4
    elif kind == "neighbour":
        place = torch.arange(length)
        scores = scores - 2 * (place[:, None] - place[None] - 1).abs()
    elif kind == "sink":
        scores[..., 0] += 12
    return torch.softmax(scores, -1)


@pytest.mark.parametrize("kind", ["diffuse", "sharp", "neighbour", "sink"])
@pytest.mark.parametrize(
    ("length", "dtype", "error"),
    [
        (2, torch.float32, 1e-5),
        (40, torch.float32, 1e-5),
        (128, torch.float32, 1e-5),
        (128, torch.float64, 1e-12),
        (300, torch.float32, 0.01),
    ],
)
def test_the_second_singular_value_has_the_stated_accuracy(kind, length, dtype, error):
    P = real_like(length, kind).to(dtype)
    s = np.linalg.svd(P.double().numpy(), compute_uv=False)
    assert np.abs(geometry.singular_ratio(P).numpy() - s[..., 1] / s[..., 0]).max() < error


def test_long_patterns_of_low_rank_are_exact_to_rounding():
    draw = torch.Generator().manual_seed(3)
    left, right = (
        torch.softmax(torch.randn(2, 2, *s, generator=draw, dtype=torch.float64), -1)
        for s in ((400, 6), (6, 400))
    )
    P = (left @ right).float()
    s = np.linalg.svd(P.double().numpy(), compute_uv=False)
    np.testing.assert_allclose(geometry.singular_ratio(P).numpy(), s[..., 1] / s[..., 0], atol=1e-6)


def everything(X, valid=None):
    effective, stable, participation = geometry.ranks(X, valid)
    first = {
        "residual": geometry.relative_residual(X, valid),
        "median": geometry.relative_residual(X, valid, "median"),
    }
    more = {"cosine": geometry.mean_cosine(X, valid), "high": geometry.high_frequency(X, valid)}
    found = {
        **first,
        **more,
        "effective": effective,
        "stable": stable,
        "participation": participation,
    }
    return {name: x.item() for name, x in found.items()}


def test_equal_tokens():
    X = (torch.randn(1, 1, 7, dtype=torch.float64) / 3).expand(1, 50, 7)
    found = everything(X)
    assert (found["residual"], found["median"], found["high"]) == (0, 0, 0)
    for name in ("cosine", "effective", "stable", "participation"):
        assert found[name] == pytest.approx(1, abs=1e-12)
    assert not dirichlet_energy(patterns(1, length=50), squared_distances(X)).any()


def test_one_token():
    X, valid = tokens(1), torch.arange(LENGTH)[None] == 4
    for found in (everything(X[:, :1]), everything(X, valid)):
        assert (found["residual"], found["median"], found["high"]) == (0, 0, 0)
        for name in ("cosine", "effective", "stable", "participation"):
            assert found[name] == pytest.approx(1, abs=1e-12)
    for P, x, kept in (
        (torch.ones(1, 2, 1, 1), X[:, :1], None),
        (geometry.restricted(patterns(1, 2), valid), X, valid),
    ):
        for measure in (
            geometry.row_entropy(P),
            geometry.singular_ratio(P),
            dirichlet_energy(P, squared_distances(x, kept)),
        ):
            assert measure.tolist() == [[0, 0]]


@pytest.mark.parametrize(
    "valid", [None, torch.zeros(1, 5, dtype=torch.bool), torch.ones(1, 5, dtype=torch.bool)]
)
def test_zeros_and_inputs_without_tokens(valid):
    X = torch.zeros(1, 5, 3)
    zero = {"residual", "median", "high", "effective", "stable", "participation"}
    assert everything(X, valid) == {"cosine": 1, **dict.fromkeys(zero, 0)}
    P = torch.zeros(1, 2, 5, 5)
    for measure in (
        geometry.row_entropy(P),
        geometry.singular_ratio(P),
        dirichlet_energy(P, squared_distances(X, valid)),
    ):
        assert measure.tolist() == [[0, 0]]


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(EigenlensError, match=r"not \(3, 4\) with None"):
        geometry.ranks(torch.zeros(3, 4))
    with pytest.raises(EigenlensError, match=r"with \(1, 3\)"):
        geometry.mean_cosine(torch.zeros(1, 4, 2), torch.ones(1, 3, dtype=torch.bool))
    with pytest.raises(EigenlensError, match="not 'middle'"):
        geometry.residual(torch.zeros(1, 4, 2), centre="middle")

"""Token clusters.

What goes from token to token adds up, rows keep the distances of the learned map, clusters by
scikit-learn.
"""

import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.metrics.cluster import contingency_matrix

from eigenlens.errors import EigenlensError
from eigenlens.lab.convex import (
    GatedAttention,
    LinearAttention,
    LinearMixer,
    Logistic,
    Problem,
    contributions,
    directions,
    k_means,
    nearest,
    purity,
    solve,
    token_clusters,
)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("gated", [False, True])
def test_what_a_token_gets_adds_up_to_the_output(gated):
    X = normal(3, 5, 4)
    block = GatedAttention(X, 2, normal(2, 4, 4, seed=1)) if gated else LinearAttention(X, 2)
    Z = normal(*block.shape, seed=2)
    parts = contributions(block, Z)
    torch.testing.assert_close(parts.sum(2), block.apply(Z))
    alone = LinearAttention(X[1, [3]][None], 2).apply(Z) if not gated else None
    if alone is not None:  # a token by itself gets only its own
        torch.testing.assert_close(parts[1, 3, 3], alone[0, 0])


def test_rows_keep_the_distances_of_the_learned_map():
    X = normal(3, 5, 4)
    block = LinearAttention(X, 2)
    Z = normal(*block.shape, seed=2)
    # (N, 32)
    whole = torch.einsum("nsa,aklb->nsklb", X, Z.view(4, 4, 4, 2)).flatten(0, 1).flatten(1)
    rows = (X @ directions(block, Z)).flatten(0, 1)
    assert rows.shape[1] == 4
    torch.testing.assert_close(
        torch.cdist(rows, rows), torch.cdist(whole, whole), atol=1e-6, rtol=1e-6
    )


def test_k_means_is_as_good_as_scikit_learn_s():
    points = torch.cat([normal(40, 3, seed=k) + 3 * normal(1, 3, seed=90 + k) for k in range(4)])
    centres = k_means(points, 4, starts=10)
    cost = float((points - centres[nearest(points, centres)]).square().sum())
    assert cost <= KMeans(4, n_init=10, random_state=0).fit(points.numpy()).inertia_ * 1.01
    assert len(k_means(torch.zeros(5, 2), 3)) == 3  # all alike
    with pytest.raises(EigenlensError, match="2 points cannot make 3"):
        k_means(torch.zeros(2, 2), 3)


def test_purity_is_that_of_the_contingency_table():
    label, classes = torch.randint(5, (200,)), torch.randint(3, (200,))
    expected = contingency_matrix(classes.numpy(), label.numpy()).max(0).sum() / 200
    assert purity(label, classes) == pytest.approx(expected)
    assert purity(classes, classes) == 1


@pytest.fixture(scope="module")
def found():
    """A token's class shows in its first two numbers, under two that are louder and say nothing."""
    classes = torch.arange(20) % 2
    X = normal(20, 6, 4, seed=3)
    X[..., 2:] *= 3
    X[..., 0] = torch.where(classes[:, None] == 1, 1.0, -1.0) + 0.2 * X[..., 0]
    X[..., 1] = 1 + 0.2 * X[..., 1]
    block = LinearAttention(X, 2)
    problem = Problem(block, Logistic(classes[:, None], 2), pooled=True)
    return block, classes, solve(problem, 0.05 * problem.beta_max(), tolerance=1e-5).Z


def test_the_learned_rows_separate_what_the_features_do_not(found):
    block, classes, Z = found
    each = classes[:, None].expand(-1, 6).flatten()
    clusters = token_clusters(block, Z, 2)
    plain = nearest(block.X.flatten(0, 1), k_means(block.X.flatten(0, 1), 2))
    assert purity(clusters.label.flatten(), each) > 0.95 > 0.7 > purity(plain, each)
    assert torch.equal(clusters.assign(block.X), clusters.label)


def test_flow_is_the_norm_of_what_goes_from_cluster_to_cluster(found):
    block, _, Z = found
    clusters = token_clusters(block, Z, 3)
    parts, total = contributions(block, Z).norm(dim=3), torch.zeros(3, 3, dtype=torch.float64)
    for i in range(20):
        for t in range(6):
            for u in range(6):
                total[clusters.label[i, t], clusters.label[i, u]] += parts[i, t, u]
    torch.testing.assert_close(clusters.flow, total / total.sum(1, keepdim=True))
    assert len(clusters.rows()) == 9 and "120 tokens in 3 clusters" in clusters.sentence
    assert "<svg" in clusters._repr_html_()


def test_what_has_no_rows_is_told(found):
    block, _, Z = found
    with pytest.raises(EigenlensError, match="linear mixer mixes tokens by position"):
        directions(LinearMixer(block.X, 2), Z)
    with pytest.raises(EigenlensError, match="Z is 0"):
        token_clusters(block, torch.zeros_like(Z), 2)

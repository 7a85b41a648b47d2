"""The best rank of each input, and closed forms for all inputs, against dense decompositions."""

import numpy as np
import pytest
import torch

from eigenlens.attention.feature_rank import joint_subspace
from eigenlens.captures import AttentionCall, Site
from eigenlens.errors import EigenlensError
from eigenlens.estimators.limit import BEST, SHARED, KeyQuerySVD, RankLimit, rank_limit
from eigenlens.estimators.rotation import joint, joint_grouped, moments
from eigenlens.estimators.subspace import GroupedSubspace, JointSubspace
from estimators.statistics_of import statistics_of
from stats.calls import FORMS, call

RANKS = (1, 2, 4)


def stacked(*calls, head, kv_head=False, centred=True):
    """All scaled queries of a head, or of its group, and all keys, of all inputs."""
    group = calls[0].group
    heads = [h for h in range(calls[0].heads) if h // group == head // group] if kv_head else [head]
    Q = np.concatenate([(c.q[:, h] * c.scale).flatten(0, 1) for c in calls for h in heads])
    K = np.concatenate([c.keys[:, head].flatten(0, 1) for c in calls])
    return Q, K - K.mean(0) if centred else K


def truncated(S, r):
    u, s, vt = np.linalg.svd(S, full_matrices=False)
    return (u[:, :r] * s[:r]) @ vt[:r]


@pytest.mark.parametrize("r", RANKS)
def test_joint_is_the_optimum_of_kq_svd_for_centred_keys(r):
    """All queries times all keys, of two inputs: the truncated SVD of that matrix itself."""
    calls = call("full", seed=1), call("full", seed=2)
    to_x, to_y = joint(moments(statistics_of(*calls, rows=False)))
    for head in range(4):
        Q, K = stacked(*calls, head=head)
        mine = Q @ to_x[head, :, :r].numpy() @ to_y[head, :, :r].numpy().T @ K.T
        np.testing.assert_allclose(mine, truncated(Q @ K.T, r), atol=1e-11)


@pytest.mark.parametrize("r", RANKS)
def test_kq_svd_as_published_is_the_optimum_for_keys_with_their_mean(r):
    each = call("full", seed=3)
    tensors = KeyQuerySVD.fit(statistics_of(each, rows=False), rank=r).tensors
    assert not tensors["centre"].any()
    for head in range(4):
        Q, K = stacked(each, head=head, centred=False)
        mine = Q @ tensors["to_x"][head].numpy() @ tensors["to_y"][head].numpy().T @ K.T
        np.testing.assert_allclose(mine, truncated(Q @ K.T, r), atol=1e-5)


@pytest.mark.parametrize("r", RANKS)
def test_one_pair_per_key_value_head_is_the_optimum_of_the_stacked_queries(r):
    calls = call("grouped", seed=4), call("grouped", seed=5)
    to_x, to_y = joint_grouped(moments(statistics_of(*calls, rows=False)), group=2)
    for head in range(4):
        Q, K = stacked(*calls, head=head, kv_head=True)
        mine = Q @ to_x[head, :, :r].numpy() @ to_y[head, :, :r].numpy().T @ K.T
        np.testing.assert_allclose(mine, truncated(Q @ K.T, r), atol=1e-11)
    assert torch.equal(to_y[0], to_y[1]) and not torch.equal(to_y[1], to_y[2])


def test_query_projections_by_head_gain_nothing_beside_shared_keys():
    """Least squares of one head's scores on the shared coordinates of the keys."""
    each = call("grouped", seed=6)
    to_x, to_y = joint_grouped(moments(statistics_of(each, rows=False)), group=2)
    for head in range(4):
        Q, K = stacked(each, head=head)
        shared = K @ to_y[head, :, :2].numpy()
        own = np.linalg.lstsq(shared, (Q @ K.T).T, rcond=None)[0]  # (2, queries)
        np.testing.assert_allclose(own.T, Q @ to_x[head, :, :2].numpy(), atol=1e-10)


def dense_errors(each, estimator, over, of):
    """Squared errors of all heads from the scores themselves, row by row."""
    estimate, H = estimator.estimate(each).scores.double(), each.heads
    valid = each.valid().expand(3, H, 9, 9)
    found = np.zeros(H)
    energy = np.zeros(H)
    for b, h, i in np.ndindex(3, H, 9):
        seen = valid[b, h, i] if over == "valid" else valid[b, h].any(0)
        if not valid[b, h, i].any():
            continue
        s = (each.q[b, h, i] * each.scale @ each.keys[b, h].T)[seen].numpy()
        wrong = estimate[b, h, i][seen].numpy() - s
        found[h] += ((wrong - wrong.mean() * (of == "centred")) ** 2).sum()
        energy[h] += ((s - s.mean()) ** 2).sum()
    return found / energy


@pytest.mark.parametrize("form", [form for form in FORMS if form not in {"capped", "biased"}])
@pytest.mark.parametrize("over", ["square", "valid"])
@pytest.mark.parametrize("of", ["scores", "centred"])
def test_errors_of_estimators_are_sums_over_rows(form, over, of):
    each = call(form)
    statistics = statistics_of(call(form, seed=7), rows=False)
    found = rank_limit(statistics, [each], RANKS)
    for name, kind, settings in (
        ("joint", JointSubspace, {"tail": False}),
        ("joint with tail", JointSubspace, {}),
        ("kq-svd", KeyQuerySVD, {}),
    ):
        for at, r in enumerate(RANKS):
            expected = dense_errors(each, kind.fit(statistics, rank=r, **settings), over, of)
            mine = found.error(name, of, over)[:, at]
            np.testing.assert_allclose(mine, expected, rtol=1e-4)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("of", ["scores", "centred"])
def test_the_best_of_each_input_is_its_own_decomposition(form, of):
    each = call(form)
    found = rank_limit(statistics_of(each, rows=False), [each], RANKS)
    valid = each.valid().expand(3, 4, 9, 9)
    left, shared, energy = np.zeros((4, 3)), np.zeros((4, 3)), np.zeros(4)
    for b in range(3):
        pieces = []
        for h in range(4):
            rows, keys = valid[b, h].any(1), valid[b, h].any(0)
            S = ((each.q[b, h][rows] * each.scale) @ each.keys[b, h][keys].T).numpy()
            flat = S - S.mean(1, keepdims=True)
            energy[h] += (flat**2).sum()
            pieces.append(S if of == "scores" else flat)
            left[h] += [((pieces[h] - truncated(pieces[h], r)) ** 2).sum() for r in RANKS]
        for h in range(4):
            same = [p for g, p in enumerate(pieces) if g // each.group == h // each.group]
            v = np.linalg.svd(np.concatenate(same), full_matrices=False)[2]
            shared[h] += [((pieces[h] - pieces[h] @ v[:r].T @ v[:r]) ** 2).sum() for r in RANKS]
    # the fifth of five components is what rank 4 leaves: it may be small
    np.testing.assert_allclose(found.error(BEST, of), left / energy[:, None], rtol=1e-6)
    np.testing.assert_allclose(found.error(SHARED, of), shared / energy[:, None], rtol=1e-6)


@pytest.mark.parametrize("form", ["full", "causal grouped", "padded"])
def test_nothing_of_a_rank_is_better_than_the_best_of_each_input(form):
    each = call(form)
    found = rank_limit(statistics_of(each, rows=False), [each], RANKS)
    for name in ("joint", "kq-svd", "key-pca", *(["joint-grouped"] if "grouped" in form else [])):
        assert bool((found.error(name) >= found.error(BEST) * (1 - 1e-5)).all())
        assert bool((found.error(name, "scores") >= found.error(name)).all())
    assert bool((found.error(SHARED) >= found.error(BEST) * (1 - 1e-9)).all())


def test_limits_of_shards_add_up():
    parts = [call("causal grouped", seed=seed) for seed in (1, 2, 3)]
    statistics = statistics_of(*parts, rows=False)
    whole, first, second = (RankLimit.of(statistics, RANKS) for _ in range(3))
    for part in parts:
        whole.add(part)
    first.add(parts[0])
    second.add(parts[1])
    second.add(parts[2])
    first.merge(second)
    for name in ("joint", BEST, SHARED, "joint-grouped"):
        torch.testing.assert_close(first.error(name), whole.error(name))
    with pytest.raises(EigenlensError, match=r"known are .*joint.*kq-svd"):
        whole.error("jiont")
    with pytest.raises(EigenlensError, match=f"no error of '{BEST}' is known over valid pairs"):
        whole.error(BEST, over="valid")


def test_ranks_beyond_a_head_are_left_out():
    each = call("full")
    assert rank_limit(statistics_of(each, rows=False), [each], (2, 5, 16)).ranks == (2, 5)


def test_kq_svd_spends_a_query_coordinate_on_the_constants_of_rows():
    """Keys far from zero: its first coordinate of a query is `q·k̄`, and one fewer is free."""
    each = call("full", batch=1)
    far = AttentionCall(Site("self", 0), "self", "", each.q, each.k + 50, each.v, 1.0)
    statistics = statistics_of(far, rows=False)
    found = rank_limit(statistics, [far], RANKS)
    to_x = KeyQuerySVD.fit(statistics, rank=1).tensors["to_x"][..., 0]  # (H, D)
    mean = far.k[0].mean(1).float()
    torch.testing.assert_close(torch.cosine_similarity(to_x, mean).abs(), torch.ones(4))
    ours, theirs = found.error("joint"), found.error("kq-svd")
    assert bool((theirs > ours).all()) and bool((theirs[:, 1] < ours[:, 0]).all())


def test_grouped_projections_cost_and_keep_what_is_shared():
    statistics = statistics_of(call("grouped"), rows=False)
    own = JointSubspace.fit(statistics, rank=2).cost(128, 32)
    shared = GroupedSubspace.fit(statistics, rank=2).cost(128, 32)
    assert own.per_pair == shared.per_pair == 128 * 128 * 2
    assert own.per_token - shared.per_token == 128 * 32 * 2 / 2  # half of the keys' projections
    assert (own.cached, shared.cached) == (2, 1)


def test_joint_subspace_of_moments_in_double_precision_is_joint():
    found = moments(statistics_of(call("full"), rows=False))
    for mine, other in zip(joint(found), joint_subspace(found.queries, found.keys, 5)):
        torch.testing.assert_close(mine, other)

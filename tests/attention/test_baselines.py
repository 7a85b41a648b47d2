"""The baselines that are made from tensors.

What each becomes at full size; their parts against loops and linear algebra.
"""

import pytest
import torch
import torch.nn.functional as F

from eigenlens.attention import Shape, make, mechanisms
from eigenlens.attention.feature_rank import FeatureRank, joint_subspace
from eigenlens.attention.linformer import Linformer, segments
from eigenlens.attention.mean_only import MeanOnly
from eigenlens.attention.nystrom import Nystrom, inverse
from eigenlens.attention.uniform_keys import UniformKeys, evenly_spaced
from eigenlens.errors import EigenlensError

B, H, N, D = 2, 3, 30, 8


def inputs(n=N, **options):
    return [torch.randn(B, H, n, D, **options) for _ in range(3)]


def layer(length):
    return Shape(H, D, H * D, length)


def padded(n, gone):
    keys = torch.ones(B, n, dtype=torch.bool)
    keys[0, gone] = False
    return keys


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["mean row", "mean map", "feature rank"])
def test_those_made_from_tensors_equal_their_dense_form_with_gradients(name, causal):
    torch.manual_seed(5)
    mechanism = {
        "mean row": MeanOnly(torch.randn(H, N)),
        "mean map": MeanOnly(torch.randn(H, N, N)),
        "feature rank": FeatureRank.of(torch.randn(H, D, 4), torch.randn(H, D, 4)),
    }[name]
    qkv = inputs(requires_grad=True)
    if name == "mean row" and causal:
        with pytest.raises(EigenlensError, match="causal"):
            mechanism(*qkv, causal=True)
        return
    given = {"causal": causal, "keys": padded(N, slice(25, None))}
    wanted, weight = [*qkv, *mechanism.parameters()], torch.randn(B, H, N, D)
    outs = mechanism(*qkv, **given), mechanism.reference(*qkv, **given)
    torch.testing.assert_close(*outs, atol=1e-5, rtol=1e-5)
    found = [torch.autograd.grad((out * weight).sum(), wanted, allow_unused=True) for out in outs]
    # a form that never touches an input has no gradient there: zero
    for x, left, right in zip(wanted, *found):
        left, right = (torch.zeros_like(x) if g is None else g for g in (left, right))
        torch.testing.assert_close(left, right, atol=2e-5, rtol=1e-4)


def test_a_mean_row_is_its_softmax_and_a_mean_map_its_softmax_under_the_mask():
    mean, (q, k, v) = torch.randn(H, N, N), inputs()
    row = MeanOnly(mean[:, 0])(q, k, v)
    torch.testing.assert_close(
        row, torch.einsum("hj,bhje->bhe", mean[:, 0].softmax(1), v)[:, :, None].expand_as(v)
    )
    found = MeanOnly(mean)(q, k, v, causal=True)
    for i in (0, 7, 29):
        wanted = torch.einsum("hj,bhje->bhe", mean[:, i, : i + 1].softmax(1), v[:, :, : i + 1])
        torch.testing.assert_close(found[:, :, i], wanted, atol=1e-5, rtol=1e-5)
    with pytest.raises(EigenlensError, match="the mean was made for 30 keys"):
        MeanOnly(mean)(*inputs(20))


def test_what_is_fitted_has_no_name_and_what_is_named_has_settings():
    assert not {"mean-only", "interpolated-keys"} & set(mechanisms())
    for name in ("nystrom", "uniform-keys", "linformer", "feature-rank"):
        assert mechanisms()[name].Settings.__dataclass_fields__


@pytest.mark.parametrize("name", ["uniform", "linformer", "feature rank"])
def test_at_full_size_it_is_full_attention(name):
    eye = torch.eye(D).expand(H, D, D)
    mechanism = {
        "uniform": UniformKeys.of(N),
        "linformer": Linformer.of(H, N, N),
        "feature rank": FeatureRank.of(eye, eye),
    }
    qkv = inputs()
    torch.testing.assert_close(
        mechanism[name](*qkv), F.scaled_dot_product_attention(*qkv), atol=1e-5, rtol=1e-5
    )


def test_nystrom_with_every_token_a_landmark_is_full_attention():
    qkv = inputs(6)
    found = Nystrom.of(6, iterations=30)(*qkv)
    torch.testing.assert_close(found, F.scaled_dot_product_attention(*qkv), atol=1e-3, rtol=1e-3)


def test_the_iterated_inverse_is_the_pseudo_inverse():
    a = (2 * torch.randn(4, 8, 8, dtype=torch.float64)).softmax(-1)
    torch.testing.assert_close(inverse(a, 40), torch.linalg.pinv(a), atol=1e-8, rtol=1e-6)


@pytest.mark.parametrize("mechanism", [Nystrom.of(4), UniformKeys.of(5)])
@pytest.mark.parametrize("gone", [slice(20, None), slice(0, 10), slice(3, None), [0, 4, 5, 13, 29]])
def test_a_padded_input_gives_what_it_gives_alone(mechanism, gone):
    """Landmarks and chosen keys follow the tokens that stand, fewer than the landmarks too."""
    q, k, v = inputs()
    keys = padded(N, gone)
    alone = [x[:1, :, keys[0]] for x in (q, k, v)]
    found = mechanism(q, k, v, keys=keys)
    torch.testing.assert_close(found[:1, :, keys[0]], mechanism(*alone), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found[1:], mechanism(q[1:], k[1:], v[1:]), atol=1e-5, rtol=1e-5)


def test_an_input_shorter_than_linformers_length_is_one_that_is_padded():
    mechanism = make("linformer", layer(N), size=7)
    torch.nn.init.normal_(mechanism.keys)
    q, k, v = inputs()
    whole = mechanism(q, k, v, keys=torch.arange(N).expand(B, N) < 20)
    short = mechanism(q[:, :, :20], k[:, :, :20], v[:, :, :20])
    torch.testing.assert_close(whole[:, :, :20], short, atol=1e-5, rtol=1e-5)
    with pytest.raises(EigenlensError, match="made for at most 30 keys, but there are 31"):
        mechanism(*inputs(31))
    with pytest.raises(
        EigenlensError, match="linformer has weights of its own and needs length in its shape"
    ):
        make("linformer")


def test_feature_rank_starts_as_the_first_dimensions():
    mechanism, (q, k, v) = make("feature-rank", layer(N), rank=3), inputs()
    wanted = F.scaled_dot_product_attention(
        q[..., :3], k[..., :3], v, is_causal=True, scale=D**-0.5
    )
    torch.testing.assert_close(mechanism(q, k, v, causal=True), wanted, atol=1e-5, rtol=1e-5)
    frozen = FeatureRank.of(torch.randn(H, D, 2), torch.randn(H, D, 2), learned=False)
    assert not any(p.requires_grad for p in frozen.parameters())


def test_the_joint_subspace_beats_every_other_of_its_rank():
    """Its mean squared error is the sum of the squared singular values left out, and no nearby
    subspace has less.
    """
    q, k = (
        torch.randn(500, D, dtype=torch.float64) @ torch.randn(D, D, dtype=torch.float64)
        for _ in range(2)
    )
    cq, ck = (x.T @ x / len(x) for x in (q, k))
    a, b = (x[0] for x in joint_subspace(cq[None], ck[None], 3))

    def error(m):
        # every query with every key
        return (q @ (torch.eye(D, dtype=torch.float64) - m) @ k.T).square().mean()

    values = torch.linalg.svdvals(torch.linalg.cholesky(cq).T @ torch.linalg.cholesky(ck))
    torch.testing.assert_close(error(a @ b.T), values[3:].square().sum(), atol=1e-9, rtol=1e-9)
    for _ in range(20):
        nearby = (a + 0.01 * torch.randn_like(a)) @ (b + 0.01 * torch.randn_like(b)).T
        assert error(nearby) > error(a @ b.T)


def test_positions_are_evenly_spaced_and_segments_cover_all():
    assert evenly_spaced(8, 2).tolist() == [2, 6]
    assert evenly_spaced(5, 5).tolist() == [0, 1, 2, 3, 4]
    assert (segments(10, 4) > 0).sum(1).tolist() == [3, 2, 3, 2]
    torch.testing.assert_close(segments(10, 4) @ torch.ones(10), torch.ones(4))
    with pytest.raises(EigenlensError, match="9 keys"):
        evenly_spaced(8, 9)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("linformer", {"size": 0}),
        ("nystrom", {"landmarks": 0}),
        ("uniform-keys", {"keys": 0}),
        ("feature-rank", {"rank": 0}),
    ],
)
def test_settings_that_cannot_be_are_refused(name, settings):
    with pytest.raises(EigenlensError, match="at least 1"):
        make(name, layer(N), **settings)

"""Every baseline: its fast form is its dense one, gradients too, and where it should it becomes full attention."""

import pytest
import torch
import torch.nn.functional as F

from eigenlens.attention import feature_rank, full, linformer, mean_only, nystrom, uniform_keys
from eigenlens.attention.feature_rank import FeatureRank, joint_subspace
from eigenlens.attention.linformer import Linformer, segments
from eigenlens.attention.mean_only import MeanOnly
from eigenlens.attention.nystrom import Nystrom, inverse
from eigenlens.attention.uniform_keys import UniformKeys, evenly_spaced
from eigenlens.errors import EigenlensError

B, H, N, D = 2, 3, 30, 8


def made(name, size):
    torch.manual_seed(5)
    if name == "full":
        return full.FullAttention(), lambda q, k, v, _: full.dense(q, k, v)
    if name == "uniform":
        return UniformKeys(size), uniform_keys.dense
    if name == "linformer":
        mechanism = Linformer(H, N, size)
        with torch.no_grad():
            for p in mechanism.parameters():
                p.add_(0.1 * torch.randn_like(p))
        return mechanism, linformer.dense
    if name == "nystrom":
        return Nystrom(size), nystrom.dense
    if name == "feature rank":
        return FeatureRank(torch.randn(H, D, size), torch.randn(H, D, size)), feature_rank.dense
    return MeanOnly(torch.randn(H, N) if name == "mean row" else torch.randn(H, N, N)), mean_only.dense


NAMES = ("full", "uniform", "linformer", "nystrom", "feature rank", "mean row", "mean map")


@pytest.mark.parametrize("size", [1, 4, 7])
@pytest.mark.parametrize("name", NAMES)
def test_the_fast_form_is_the_dense_one_with_its_gradients(name, size):
    mechanism, dense = made(name, size)
    qkv = [torch.randn(B, H, N, D, requires_grad=True) for _ in range(3)]
    wanted, weight = [*qkv, *mechanism.parameters()], torch.randn(B, H, N, D)
    outs = mechanism(*qkv), dense(*qkv, mechanism)
    torch.testing.assert_close(*outs, atol=1e-5, rtol=1e-5)
    found = [torch.autograd.grad((out * weight).sum(), wanted, allow_unused=True) for out in outs]
    for x, left, right in zip(wanted, *found):  # a form that never touches an input has no gradient there: zero
        left, right = (torch.zeros_like(x) if g is None else g for g in (left, right))
        torch.testing.assert_close(left, right, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["uniform", "linformer", "feature rank"])
def test_at_full_size_it_is_full_attention(name):
    eye = torch.eye(D).expand(H, D, D)
    mechanism = {"uniform": UniformKeys(N), "linformer": Linformer(H, N, N), "feature rank": FeatureRank(eye, eye)}[name]
    qkv = [torch.randn(B, H, N, D) for _ in range(3)]
    torch.testing.assert_close(mechanism(*qkv), F.scaled_dot_product_attention(*qkv), atol=1e-5, rtol=1e-5)


def test_nystrom_with_every_token_a_landmark_is_full_attention():
    qkv = [torch.randn(B, H, 6, D) for _ in range(3)]
    found = Nystrom(6, iterations=30)(*qkv)
    torch.testing.assert_close(found, F.scaled_dot_product_attention(*qkv), atol=1e-3, rtol=1e-3)


def test_the_iterated_inverse_is_the_pseudo_inverse():
    a = (2 * torch.randn(4, 8, 8, dtype=torch.float64)).softmax(-1)
    torch.testing.assert_close(inverse(a, 40), torch.linalg.pinv(a), atol=1e-8, rtol=1e-6)


def test_the_joint_subspace_beats_every_other_of_its_rank():
    """Its mean squared error is the sum of the squared singular values left out, and no nearby subspace has less."""
    q, k = (torch.randn(500, D, dtype=torch.float64) @ torch.randn(D, D, dtype=torch.float64) for _ in range(2))
    cq, ck = (x.T @ x / len(x) for x in (q, k))
    a, b = (x[0] for x in joint_subspace(cq[None], ck[None], 3))

    def error(m):
        return (q @ (torch.eye(D, dtype=torch.float64) - m) @ k.T).square().mean()  # every query with every key

    values = torch.linalg.svdvals(torch.linalg.cholesky(cq).T @ torch.linalg.cholesky(ck))
    torch.testing.assert_close(error(a @ b.T), values[3:].square().sum(), atol=1e-9, rtol=1e-9)
    for _ in range(20):
        nearby = (a + 0.01 * torch.randn_like(a)) @ (b + 0.01 * torch.randn_like(b)).T
        assert error(nearby) > error(a @ b.T)


def test_positions_are_evenly_spaced_and_stretches_cover_all():
    assert evenly_spaced(8, 2).tolist() == [2, 6]
    assert evenly_spaced(5, 5).tolist() == [0, 1, 2, 3, 4]
    assert (segments(10, 4) > 0).sum(1).tolist() == [3, 2, 3, 2]
    torch.testing.assert_close(segments(10, 4) @ torch.ones(10), torch.ones(4))
    with pytest.raises(EigenlensError, match="9 keys"):
        evenly_spaced(8, 9)


@pytest.mark.parametrize("name", ["uniform", "linformer", "nystrom", "mean row"])
def test_what_cannot_be_causal_says_so(name):
    with pytest.raises(EigenlensError, match="causal"):
        made(name, 4)[0](*(torch.randn(B, H, N, D) for _ in range(3)), causal=True)


@pytest.mark.parametrize("name", ["full", "feature rank", "mean map"])
def test_causal_forms_do_not_look_ahead(name):
    mechanism = made(name, 4)[0]
    q, k, v = (torch.randn(B, H, N, D) for _ in range(3))
    before = mechanism(q, k, v, causal=True)
    k[:, :, 20:], v[:, :, 20:] = 9.0, 9.0
    torch.testing.assert_close(mechanism(q, k, v, causal=True)[:, :, :20], before[:, :, :20])

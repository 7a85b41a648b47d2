"""Quadratic amplifiers: a planted neuron, and dense matrices with all their eigenvalues."""

import json
import types

import pytest
import torch
from torch import nn

from diagnostics.passes import subject_of
from eigenlens import EigenlensError
from eigenlens.anatomy.blocks import Branch, Mlp
from eigenlens.captures import Site
from eigenlens.diagnostics.amplifier import (
    MOST,
    Amplifier,
    channel_norms,
    eigenpairs,
    gated_branch,
    matrices,
)
from tiny import of_catalogue, small_bert, small_llama


def dense(G, U, W, k):
    """S_k as it is written."""
    total = sum(W[k, i] * torch.outer(G[i], U[i]) for i in range(len(G)))
    return (total + total.T) / 2


def planted(d=64, M=96, channels=(11, 40), size=100.0):
    """Weights of size d^-½, and one neuron that reads s* by gate and up alike and writes into two
    channels.
    """
    draw = torch.Generator().manual_seed(0)
    G, U, W = (
        torch.randn(*shape, generator=draw, dtype=torch.float64) * 0.01
        for shape in ((M, d), (M, d), (d, M))
    )
    s = torch.randn(d, generator=draw, dtype=torch.float64)
    s /= s.norm()
    G[5], U[5] = s, s
    W[:, 5] = 0
    W[channels[0], 5], W[channels[1], 5] = size, -0.7 * size
    return G, U, W, s


def test_a_planted_neuron_is_found():
    G, U, W, s = planted()
    amplifier = Amplifier()
    amplifier._look("self/3", G, U, W)
    rows = amplifier.top()
    assert [row["channel"] for row in rows[:2]] == [11, 40]
    _, vectors, _ = eigenpairs(G, U, W[[11, 40]], 64)
    for row, vector in zip(rows[:2], vectors):
        assert abs(row["λ₁"]) / abs(row["λ₂"]) > 100
        assert abs(float(vector @ s)) > 0.999
    found = {n.name: n.mean for n in amplifier.found()}
    assert (
        found["gain"] == pytest.approx(100, rel=1e-3)
        and found["dominance"] > 100
        and found["shared"] > 0.999
    )
    assert found["concentration"] > 100
    finding = amplifier.result()
    assert (
        "L3: its channel 11 grows with the square of one direction of the input" in finding.sentence
    )
    assert finding.plot() is not None


def test_the_norms_of_all_channels_are_those_of_the_dense_matrices():
    G, U, W = (torch.randn(*shape, dtype=torch.float64) for shape in ((30, 12), (30, 12), (12, 30)))
    expected = [float(torch.einsum("i,ia,ib->ab", W[k], G, U).norm()) for k in range(12)]
    for rows in (4096, 7):  # at once, and in blocks
        assert channel_norms(G, U, W, rows).tolist() == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_random_weights_have_the_eigenvalues_of_the_dense_matrices(dtype):
    torch.manual_seed(1)
    G, U, W = (
        torch.randn(*shape, dtype=torch.float64) for shape in ((200, 96), (200, 96), (96, 200))
    )
    values, vectors, residual = eigenpairs(*(x.to(dtype) for x in (G, U, W[:5])), 64)
    for k in range(5):
        S = dense(G, U, W, k)
        theta, V = torch.linalg.eigh(S)
        order = theta.abs().argsort(descending=True)
        assert values[k].tolist() == pytest.approx(theta[order[:2]].tolist(), rel=1e-4)
        assert abs(float(vectors[k] @ V[:, order[0]])) > 0.999
    assert float(residual.max()) < 1e-2


def test_rank_one_and_nothing_are_finite():
    d, M = 8, 6
    G, U, W = torch.zeros(M, d), torch.zeros(M, d), torch.zeros(d, M)
    empty = Amplifier()
    empty._look("self/0", G, U, W)
    finding = empty.result()
    assert [(n.name, n.mean) for n in finding.numbers] == [("gain", 0.0)]  # 0/0 is no dominance
    assert finding.sentence.startswith("No MLP amplifies anything") and finding.plot() is not None
    json.dumps(finding.record(), allow_nan=False)
    G[2, 3], U[2, 3], W[1, 2] = 2.0, 3.0, 1.0
    one = Amplifier()
    one._look("self/0", G, U, W)
    assert one.top()[0]["channel"] == 1 and one.top()[0]["λ₁"] == pytest.approx(6.0)
    assert {n.name: n.mean for n in one.found()}["dominance"] == MOST


class RootMean(nn.Module):
    """Gemma's norm: the weight is the gain less 1."""

    def __init__(self, d):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.randn(d)), 1e-6

    def forward(self, x):
        return x / (x.square().mean(-1, keepdim=True) + self.eps).sqrt() * (1 + self.weight)


@pytest.mark.parametrize("kind", ["gemma", "layer norm", "fused"])
def test_hᵀSh_is_what_a_gated_mlp_gives_with_a_linear_gate(kind):
    """With the identity as activation the quadratic form is exact.

    H must be of unit size, as the norm makes it.
    """
    d, M = 10, 14
    torch.manual_seed(2)
    wide, narrow, gate = (
        nn.Linear(d, M, bias=False),
        nn.Linear(M, d, bias=False),
        nn.Linear(d, M, bias=False),
    )
    norm = RootMean(d) if kind == "gemma" else nn.LayerNorm(d)
    if kind != "gemma":
        nn.init.normal_(norm.weight)
    scale = types.SimpleNamespace(vector=torch.randn(d))
    both = nn.Linear(d, 2 * M, bias=False)
    mlp = Mlp(wide, narrow, lambda z: z, gate)
    if kind == "fused":
        both.weight.data = torch.cat([gate.weight.data, wide.weight.data])
        mlp = Mlp(both, narrow, lambda z: z, fused=True)
    branch = Branch("mlp", lambda u, _: u, mlp, before=norm, scale=lambda y: y * scale.vector)
    G, U, W = (x.detach() for x in matrices(branch))
    h = torch.randn(d)
    sigma = h.square().mean().sqrt() if kind == "gemma" else (h - h.mean()).square().mean().sqrt()
    with torch.no_grad():
        u = norm(h[None, None])[0, 0]
        expected = narrow(gate(u) * wide(u)) * scale.vector
    for k in range(d):
        assert float(h @ dense(G, U, W, k) @ h / sigma**2) == pytest.approx(
            float(expected[k]), rel=1e-3, abs=1e-4
        )


@pytest.mark.download
def test_a_real_model_has_its_spike_channel_as_its_strongest_amplifier():
    model = of_catalogue("smollm2")
    studied = subject_of(model, {"input_ids": torch.arange(4)[None]})
    amplifier = Amplifier()
    sites = studied.block_sites()
    # where its activations step up and down
    studied.sites = {site: studied.sites[site] for site in (Site("self", 11), Site("self", 28))}
    assert amplifier.begin(studied) == ""
    assert {row["layer"]: row["channel"] for row in reversed(amplifier.top())} == {11: 507, 28: 507}
    branch = gated_branch(sites[Site("self", 11)])
    G, U, W = (x.double() for x in matrices(branch))
    gain = branch.before.weight.detach().double()
    assert torch.allclose(G, branch.linear.gate.weight.detach().double() * gain)
    theta = torch.linalg.eigvalsh(0.5 * (x := G.T @ (W[507, :, None] * U)) + 0.5 * x.T)
    order = theta.abs().argsort(descending=True)
    row = next(row for row in amplifier.top() if row["layer"] == 11)
    assert [row["λ₁"], row["λ₂"]] == pytest.approx(theta[order[:2]].tolist(), rel=1e-3)


def test_models_without_a_gate_or_with_unknown_blocks_are_told():
    ids = {"input_ids": torch.arange(6)[None]}
    assert Amplifier().begin(subject_of(small_bert(), ids)) == "no MLP of this model has a gate"
    module = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True).eval()
    message = Amplifier().begin(subject_of(module, {"x": torch.randn(1, 3, 8)}))
    assert "not known" in message


def test_products_beyond_float32_are_taken_in_double_and_weights_that_are_no_numbers_are_told():
    model = small_llama()
    mlp = model.model.layers[1].mlp
    with torch.no_grad():
        for part in (mlp.gate_proj, mlp.up_proj, mlp.down_proj):
            part.weight.mul_(1e20)
    studied = subject_of(model, {"input_ids": torch.arange(6)[None]})
    amplifier = Amplifier()
    assert amplifier.begin(studied) == ""
    G, U, W = (x.double() for x in matrices(gated_branch(studied.block_sites()[Site("self", 1)])))
    row = next(row for row in amplifier.top() if row["layer"] == 1)
    theta = torch.linalg.eigvalsh(dense(G, U, W, row["channel"]))
    assert abs(row["λ₁"]) == pytest.approx(float(theta.abs().max()), rel=1e-3)
    json.dumps(amplifier.result().record(), allow_nan=False)
    with torch.no_grad():
        mlp.up_proj.weight[0, 0] = torch.inf
    assert (
        "the MLP weights of self/1 are not finite: the weights are too large, or not finite"
        in Amplifier().begin(studied)
    )


def test_two_orders_of_channels_are_never_mixed():
    G, U, W, _ = planted()
    one, other = Amplifier(), Amplifier()
    one._look("self/3", G, U, W)
    other._look("self/3", -G, 2 * U, W.flip(0))  # another order, other signs, larger numbers
    other._look("self/4", G, U, W)
    before = one.top()
    one.merge(other)
    one.merge(other)
    assert one.top()[: len(before)] == before and {row["layer"] for row in one.top()} == {3, 4}
    other.merge(one)
    assert other.top()[0]["λ₁"] == pytest.approx(-2 * before[0]["λ₁"], rel=1e-6)


def test_what_is_known_is_not_read_again(monkeypatch):
    studied = subject_of(small_llama(), {"input_ids": torch.arange(6)[None]})
    amplifier = Amplifier()
    amplifier.begin(studied)
    again = Amplifier.from_state(amplifier.state())
    monkeypatch.setattr("eigenlens.diagnostics.amplifier.channel_norms", None)
    assert again.begin(studied) == "" and again.result().record() == amplifier.result().record()


def test_passes_that_are_merged_or_kept_are_one_pass():
    studied = subject_of(small_llama(), {"input_ids": torch.arange(6)[None]})
    one, other = Amplifier(channels=3), Amplifier(channels=3)
    assert one.begin(studied) == other.begin(studied) == ""
    kept = Amplifier.from_state({name: x.clone() for name, x in one.state().items()}, channels=3)
    before = one.result().record()
    assert kept.result().record() == before and len(before["numbers"]) == 8
    kept.merge(other)
    assert kept.result().record() == before
    with pytest.raises(EigenlensError, match="at least 2"):
        Amplifier(channels=1)

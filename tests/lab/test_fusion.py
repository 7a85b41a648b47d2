"""The three fusions of all layers, each against its definition."""

import pytest
import torch

from eigenlens.errors import EigenlensError
from eigenlens.lab.fusion import Fusion

LAYERS, B, T, C = 4, 2, 5, 6


def streams():
    torch.manual_seed(0)
    return [torch.randn(B, T, C, requires_grad=True) for _ in range(LAYERS)]


def test_gates_sum_to_one_at_every_token_and_follow_the_shared_map():
    fusion, given = Fusion("gate", LAYERS, C), streams()
    with torch.no_grad():
        fusion.weight.copy_(torch.randn(C))
    gates = fusion.gates(given)
    torch.testing.assert_close(gates.sum(0), torch.ones(B, T))
    out = fusion(given)
    for b in range(B):
        for t in range(T):
            logits = torch.stack([h[b, t] @ fusion.weight for h in given])
            weights = logits.exp() / logits.exp().sum()
            torch.testing.assert_close(out[b, t], sum(w * h[b, t] for w, h in zip(weights, given)))
    assert float(gates.detach().std(dim=2).max()) > 0.01  # a weight of each token, not one for all


def test_uniform_gates_are_the_mean_and_so_is_the_start_of_concat():
    mean = sum(streams()) / LAYERS
    for kind in ("gate", "concat"):
        torch.testing.assert_close(Fusion(kind, LAYERS, C)(streams()), mean)


def test_concat_is_the_weighted_sum():
    fusion, given = Fusion("concat", LAYERS, C), streams()
    with torch.no_grad():
        fusion.alpha.copy_(torch.tensor([0.1, -0.5, 2.0, 0.0]))
    torch.testing.assert_close(fusion(given), 0.1 * given[0] - 0.5 * given[1] + 2.0 * given[2])
    # (L·C, C): the map of the concatenation that it is
    kernel = torch.cat([a * torch.eye(C) for a in fusion.alpha])
    torch.testing.assert_close(fusion(given), torch.cat(given, 2) @ kernel)


def test_max_is_the_largest_of_each_element():
    given = streams()
    expected = given[0]
    for other in given[1:]:
        expected = torch.where(other > expected, other, expected)
    torch.testing.assert_close(Fusion("max", LAYERS, C)(given), expected)


@pytest.mark.parametrize("kind", ["concat", "max", "gate"])
def test_every_layer_learns(kind):
    given = streams()
    fusion = Fusion(kind, LAYERS, C)
    fusion(given).square().sum().backward()
    assert all(h.grad is not None and float(h.grad.abs().sum()) > 0 for h in given)
    assert all(p.grad is not None and float(p.grad.abs().sum()) > 0 for p in fusion.parameters())


def test_what_a_fusion_cannot_be_is_said():
    with pytest.raises(EigenlensError, match="no fusion 'mean'; there are concat, max, gate"):
        Fusion("mean", LAYERS, C)
    with pytest.raises(EigenlensError, match="at least 1 layer, not 0"):
        Fusion("gate", 0, C)
    with pytest.raises(EigenlensError, match="of 4 layers, and it was given 3"):
        Fusion("gate", LAYERS, C)(streams()[:3])
    with pytest.raises(EigenlensError, match="'max' has no gates"):
        Fusion("max", LAYERS, C).gates(streams())

"""The laboratory's transformer: shapes, switches, costs, and that its attention can be seen and exchanged."""

import pytest
import torch

import eigenlens as el
from eigenlens.attention.full import FullAttention
from eigenlens.attention.uniform_keys import UniformKeys
from eigenlens.errors import EigenlensError
from eigenlens.lab import Config, Transformer

SMALL = Config(vocabulary=20, length=12, width=16, layers=2, heads=2)
IDS = torch.arange(24).reshape(2, 12) % 20


def test_ids_become_logits():
    assert Transformer(SMALL)(IDS).shape == (2, 12, 20)
    assert Transformer(SMALL)(IDS[:, :5]).shape == (2, 5, 20)
    with pytest.raises(EigenlensError, match="13 tokens"):
        Transformer(SMALL)(torch.zeros(1, 13, dtype=torch.long))


@pytest.mark.parametrize("part", ["skip", "mlp", "norm"])
def test_a_part_can_be_taken_out(part):
    torch.manual_seed(0)
    whole = Transformer(SMALL)
    torch.manual_seed(0)
    without = Transformer(Config(**{**vars(SMALL), part: False}))
    assert not torch.allclose(whole(IDS), without(IDS))
    fewer = {"skip": 0, "mlp": 2 * (16 * 64 * 2 + 64 + 16), "norm": 5 * 32}[part]
    assert sum(p.numel() for p in whole.parameters()) - sum(p.numel() for p in without.parameters()) == fewer


def test_a_causal_model_does_not_look_ahead_and_another_does():
    for causal in (True, False):
        model = Transformer(Config(**{**vars(SMALL), "causal": causal}))
        changed = IDS.clone()
        changed[:, 8] += 1
        same = torch.allclose(model(IDS)[:, :8], model(changed % 20)[:, :8], atol=1e-6)
        assert same == causal


def test_capture_sees_the_scores_of_every_layer():
    model = Transformer(SMALL)
    with el.capture(model) as calls:
        model(IDS)
    assert [str(call.site) for call in calls] == ["self/0", "self/1"]
    x = model.tokens(IDS) + model.positions(torch.arange(12))
    block = model.blocks[0]
    q, k, _ = block.attention.project(block.norm_1(x)).chunk(3, 2)
    first = q[:, :, :8] @ k[:, :, :8].transpose(1, 2) / 8**0.5  # head 0 is the first 8 of 16 features
    torch.testing.assert_close(calls[0].scores()[:, 0], first, atol=1e-5, rtol=1e-5)


def test_neighbours_attend_to_each_other_from_the_start():
    torch.manual_seed(0)
    config = Config(vocabulary=20, length=64, width=32, layers=1, heads=2)
    with el.capture(model := Transformer(config)) as calls:
        model(torch.randint(20, (8, 64)))
    near = (torch.arange(64)[:, None] - torch.arange(64)).abs() <= 2
    pattern = calls[0].pattern().mean((0, 1))
    assert pattern[near].sum() / pattern.sum() > 3 * near.float().mean()


def test_every_layer_can_attend_in_its_own_way():
    model = Transformer(SMALL, [FullAttention(), UniformKeys(3)])
    weights = model.tokens.weight
    before = model(IDS)
    model.attend_with([FullAttention(), FullAttention()])
    assert model.tokens.weight is weights
    assert not torch.allclose(before, model(IDS))
    with pytest.raises(EigenlensError, match="1 mechanisms were given for 2 layers"):
        model.attend_with([FullAttention()])


def test_the_cost_is_what_the_matrix_products_take():
    """Against torch's own counter of floating point operations, with the scores formed by hand so that it sees them."""
    from torch.utils.flop_counter import FlopCounterMode

    class ByHand(FullAttention):
        def forward(self, q, k, v, causal=False):
            return (q @ k.transpose(2, 3) * q.shape[3] ** -0.5).softmax(3) @ v

    model = Transformer(SMALL, [ByHand(), ByHand()])
    counter = FlopCounterMode(display=False)
    with counter:
        model(IDS[:1])
    assert counter.get_total_flops() == 2 * model.cost(12)

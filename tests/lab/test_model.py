"""The laboratory's transformer.

Shapes, switches, costs, and that its attention can be seen and exchanged.
"""

import itertools

import numpy as np
import pytest
import torch

import eigenlens as el
from eigenlens.attention.softmax import Softmax
from eigenlens.attention.uniform_keys import UniformKeys
from eigenlens.errors import EigenlensError
from eigenlens.lab import Config, Switches, Transformer

SMALL = Config(vocabulary=20, length=12, width=16, layers=2, heads=2)
IDS = torch.arange(24).reshape(2, 12) % 20


def test_ids_become_logits():
    assert Transformer(SMALL)(IDS).shape == (2, 12, 20)
    assert Transformer(SMALL)(IDS[:, :5]).shape == (2, 5, 20)
    with pytest.raises(EigenlensError, match="13 tokens"):
        Transformer(SMALL)(torch.zeros(1, 13, dtype=torch.long))


@pytest.mark.parametrize("on", list(itertools.product([True, False], repeat=5)))
def test_every_setting_of_the_switches_is_the_model_written_out(on):
    """Against loops over layers and heads in numpy.

    Weights are moved from their start so that biases and norms count.
    """
    switches = Switches(*on)
    torch.manual_seed(0)
    model = Transformer(Config(**{**vars(SMALL), **vars(switches)})).double()
    for weight in model.parameters():
        weight.data += 0.3 * torch.randn_like(weight)
    assert all(block.switches == switches for block in model.blocks)
    np.testing.assert_allclose(
        model(IDS).detach().numpy(), by_hand(model, IDS, switches), rtol=1e-9, atol=1e-9
    )


def by_hand(model, ids, on):
    w = {name: x.detach().numpy() for name, x in model.state_dict().items()}

    def linear(x, name):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(x, name):
        if not on.norm:
            return x
        centred = x - x.mean(-1, keepdims=True)
        return (
            centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * w[f"{name}.weight"]
            + w[f"{name}.bias"]
        )

    def attention(x, name):
        out = np.zeros_like(x)
        for h in range(2):
            q, k, v = (
                linear(x, f"{name}.project")[:, 16 * part + 8 * h : 16 * part + 8 * h + 8]
                for part in range(3)
            )
            p = np.exp(q @ k.T / 8**0.5)
            out += (
                (p / p.sum(1, keepdims=True)) @ v @ w[f"{name}.out.weight"][:, 8 * h : 8 * h + 8].T
            )
        return out + w[f"{name}.out.bias"]

    def mlp(x, name):
        z = linear(x, f"{name}.wide")
        return linear(
            0.5 * z * (1 + np.tanh((2 / np.pi) ** 0.5 * (z + 0.044715 * z**3))), f"{name}.narrow"
        )

    found = []
    for sequence in ids:
        x = w["tokens.weight"][sequence] + w["positions.weight"]
        for i in range(2):
            if on.attention:
                x = (x if on.attention_skip else 0) + attention(
                    norm(x, f"blocks.{i}.norm_1"), f"blocks.{i}.attention"
                )
            if on.mlp:
                x = (x if on.mlp_skip else 0) + mlp(norm(x, f"blocks.{i}.norm_2"), f"blocks.{i}")
        found.append(norm(x, "norm") @ w["tokens.weight"].T)
    return np.stack(found)


@pytest.mark.parametrize(
    ("part", "fewer"),
    [
        ("attention_skip", 0),
        ("mlp_skip", 0),
        ("mlp", 2 * (16 * 64 * 2 + 64 + 16 + 32)),
        ("norm", 5 * 32),
        ("attention", 2 * (16 * 64 + 64 + 32)),
    ],
)
def test_a_part_that_is_taken_out_has_no_weights(part, fewer):
    whole, without = Transformer(SMALL), Transformer(Config(**{**vars(SMALL), part: False}))
    assert (
        sum(p.numel() for p in whole.parameters()) - sum(p.numel() for p in without.parameters())
        == fewer
    )
    assert len(without.mechanisms) == (0 if part == "attention" else 2)


def test_vectors_and_a_read_out_of_its_own():
    torch.manual_seed(0)
    inputs = torch.randn(3, 12, 4)
    shape = {**vars(SMALL), "vocabulary": None, "features": 4, "classes": 5}
    each = Transformer(Config(**shape))
    pooled = Transformer(Config(**{**shape, "pooled": True}))
    pooled.load_state_dict(each.state_dict())
    assert each(inputs).shape == (3, 12, 5)
    # a linear map of the mean is the mean of the maps
    torch.testing.assert_close(pooled(inputs), each(inputs).mean(1))
    x = inputs @ each.vectors.weight.T + each.vectors.bias + each.positions.weight
    torch.testing.assert_close(each.embed(inputs), x)


def test_without_positions_the_model_sees_a_set():
    torch.manual_seed(0)
    order = torch.randperm(12)
    for positions in (True, False):
        model = Transformer(Config(**{**vars(SMALL), "positions": positions}))
        same = torch.allclose(model(IDS)[:, order], model(IDS[:, order]), atol=1e-6)
        assert same != positions


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({}, "vocabulary=None, features=None"),
        ({"vocabulary": 5, "features": 2, "classes": 2}, "vocabulary=5, features=2"),
        ({"features": 2}, "give classes"),
        ({"vocabulary": 5, "pooled": True}, "give classes"),
        ({"vocabulary": 5, "width": 30}, "30 does not divide into 4 heads"),
    ],
)
def test_a_shape_that_cannot_be_is_refused(wrong, message):
    with pytest.raises(EigenlensError, match=message):
        Config(**wrong)


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
    # head 0 is the first 8 of 16 features
    first = q[:, :, :8] @ k[:, :, :8].transpose(1, 2) / 8**0.5
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
    model = Transformer(SMALL, [Softmax(), UniformKeys.of(3)])
    weights = model.tokens.weight
    before = model(IDS)
    model.attend_with([Softmax(), Softmax()])
    assert model.tokens.weight is weights
    assert not torch.allclose(before, model(IDS))
    with pytest.raises(EigenlensError, match="1 mechanisms were given for 2 layers"):
        model.attend_with([Softmax()])


def test_the_cost_is_what_the_matrix_products_take():
    """Against torch's own counter of floating point operations, with the scores formed by hand so
    that it sees them.
    """
    from torch.utils.flop_counter import FlopCounterMode

    class ByHand(Softmax):
        def forward(self, q, k, v, causal=False):
            return (q @ k.transpose(2, 3) * q.shape[3] ** -0.5).softmax(3) @ v

    for other in (
        {},
        {"classes": 3},
        {"classes": 3, "pooled": True},
        {"mlp": False, "features": 4, "vocabulary": None, "classes": 2},
    ):
        model = Transformer(Config(**{**vars(SMALL), **other}), [ByHand(), ByHand()])
        counter = FlopCounterMode(display=False)
        with counter:
            model(IDS[:1] if "features" not in other else torch.zeros(1, 12, 4))
        assert counter.get_total_flops() == 2 * model.cost(12)

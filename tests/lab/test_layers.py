"""Heads, widths and mechanisms of layers: what they give, cost, show and learn."""

import pytest
import torch

from eigenlens.attention import make, mechanisms
from eigenlens.attention.head_mix import HeadMix
from eigenlens.attention.softmax import Softmax
from eigenlens.errors import EigenlensError
from eigenlens.lab import Config, Transformer
from lab.moved import IDS, SHAPE, moved


def test_heads_of_one_layer_attend_in_their_own_ways():
    model = moved(mechanism=[("softmax", 1), ("softmax", 1)])
    assert all(
        isinstance(mechanism, HeadMix) and mechanism.counts == (1, 1)
        for mechanism in model.mechanisms
    )
    plain = moved()
    plain.load_state_dict(model.state_dict())
    torch.testing.assert_close(model(IDS), plain(IDS))


def test_heads_need_not_share_out_the_width():
    model = Transformer(Config(**{**SHAPE, "heads": 3}, rank=4, value_width=2))
    assert model(IDS).shape == (2, 12, 20)
    assert model.blocks[0].attention.project.weight.shape == (3 * (4 + 4 + 2), 16)


def test_fusion_reads_out_all_layers():
    model = moved(fusion="concat")
    streams = [model.embed(IDS)]
    for block in model.blocks:
        streams.append(block(streams[-1]))
    alpha = model.fusion.alpha
    torch.testing.assert_close(
        model(IDS), model.read(model.norm(alpha[0] * streams[1] + alpha[1] * streams[2]))
    )


@pytest.mark.parametrize("causal", [False, True])
def test_patterns_and_head_outputs_make_up_the_attention(causal):
    model = moved(causal=causal, gate="G1", rank=3, value_width=5)
    inside = []
    for block in model.blocks:
        block.attention.register_forward_hook(
            lambda module, given, out: inside.append((module, given[0], out))
        )
    model(IDS)
    inside = inside[:2]
    for (module, x, out), A, z in zip(inside, model.patterns(IDS), model.head_outputs(IDS)):
        assert (
            A.shape == (2, 2, 12, 12)
            and z.shape == (2, 2, 12, 5)
            and module.w_o.shape == (2, 5, 16)
        )
        torch.testing.assert_close(A.sum(3), torch.ones(2, 2, 12, dtype=torch.float64))
        v = module.project(x)[..., 12:].view(2, 12, 2, 5).transpose(1, 2)
        torch.testing.assert_close(z, (A @ v) * module.gate.values(x))
        torch.testing.assert_close(
            out, torch.einsum("bhte,hec->btc", z, module.w_o) + module.out.bias
        )
        # without their biases
        q, k = (torch.einsum("btc,hcd->bhtd", x, w) for w in (module.w_q, module.w_k))
        bias = module.project.bias.view(-1)
        q, k = (t + bias[start : start + 6].view(2, 1, 3) for t, start in ((q, 0), (k, 6)))
        scores = q @ k.transpose(2, 3) * 3**-0.5
        scores = (
            scores.masked_fill(torch.ones(12, 12).triu(1).bool(), -torch.inf) if causal else scores
        )
        torch.testing.assert_close(A, scores.softmax(3))


def test_a_mechanism_that_does_not_say_its_weights_has_no_patterns():
    class Bare(torch.nn.Module):
        def forward(self, q, k, v, causal=False):
            return v

        def cost(self, n, d):
            return 0

    model = Transformer(Config(**SHAPE), [Bare(), Bare()])
    assert model(IDS).shape == (2, 12, 20)
    with pytest.raises(EigenlensError, match="Bare does not say"):
        model.patterns(IDS)


def test_costs_count_gates_and_both_widths():
    base = Transformer(Config(**SHAPE))
    narrow = Transformer(Config(**SHAPE, rank=2, value_width=6))
    assert base.attention_cost(12) == 2 * 2 * 2 * 12 * 12 * 8
    assert narrow.attention_cost(12) == 2 * 2 * 12 * 12 * (2 + 6)
    assert narrow.cost(12) - narrow.attention_cost(12) == 12 * (
        2 * (16 * 2 * (2 + 2 + 6) + 2 * 6 * 16 + 2 * 16 * 64) + 20 * 16
    )
    gated = Transformer(Config(**SHAPE, gate="G1"))
    assert gated.cost(12) - base.cost(12) == 12 * 2 * 16 * 16


def test_mechanisms_begin_in_their_own_way():
    """The model's start leaves the weights of mechanisms and gates alone."""
    torch.manual_seed(0)
    model = Transformer(
        Config(
            **SHAPE, mechanism="linformer", mechanism_settings={"linformer": {"size": 4}}, gate="G1"
        )
    )
    fresh = make("linformer", model.mechanisms[0].shape, size=4)
    for left, right in zip(model.mechanisms[0].parameters(), fresh.parameters()):
        torch.testing.assert_close(left, right)
    x = torch.nn.functional.layer_norm(torch.randn(4, 12, 16), (16,))
    gate = model.blocks[0].attention.gate.values(x).detach()
    assert float((gate - 0.5).abs().max()) < 0.2


def test_mechanisms_that_read_the_stream_are_given_what_the_projections_are():
    class CallView(Softmax):
        reads_stream = True

        def forward(self, q, k, v, *, causal=False, x=None):
            self.x = x
            return super().forward(q, k, v, causal=causal, x=x)

    model = Transformer(Config(**SHAPE), [CallView(), Softmax()])
    model(IDS)
    torch.testing.assert_close(model.mechanisms[0].x, model.blocks[0].norm_1(model.embed(IDS)))


@pytest.mark.parametrize("name", sorted(mechanisms()))
def test_every_mechanism_learns_in_a_model(name):
    causal = "both ways" not in mechanisms()[name].directions
    torch.manual_seed(0)
    model = Transformer(
        Config(vocabulary=20, length=64, width=16, layers=2, heads=2, causal=causal, mechanism=name)
    )
    ids = torch.randint(20, (2, 64))
    model(ids).square().mean().backward()
    silent = [
        path
        for path, weight in model.named_parameters()
        if weight.grad is None or not torch.isfinite(weight.grad).all()
    ]
    assert not silent
    with torch.no_grad():
        assert all(pattern.shape == (2, 2, 64, 64) for pattern in model.patterns(ids))
    assert model.cost(64) > 0


@torch.no_grad()
@pytest.mark.parametrize("off", ["", "attention_skip", "mlp_skip", "mlp", "norm"])
def test_explain_knows_post_norm_blocks_and_refuses_gates(off):
    from eigenlens.anatomy.blocks import read_stacks
    from eigenlens.anatomy.frozen import freeze

    config = {"norm_position": "post", "activation": "relu", "rank": 3, "value_width": 5}
    model = moved(**config, **({off: False} if off else {}))
    (stack,) = read_stacks(model)
    x = torch.randn(2, 12, 16, dtype=torch.float64)
    for block, module in zip(stack.blocks, model.blocks):
        torch.testing.assert_close(block.run(x, {}), module(x))
    (graph,) = freeze(model, {"ids": IDS}, forward=lambda batch: model(batch["ids"]))
    torch.testing.assert_close(model.read(graph(model.embed(IDS))), model(IDS))
    with pytest.raises(EigenlensError):
        read_stacks(moved(gate="G1"))


def test_a_gated_mechanism_knows_the_width_of_values():
    model = Transformer(Config(**SHAPE, mechanism="gated", value_width=5, rank=3))
    assert model(IDS).shape == (2, 12, 20)

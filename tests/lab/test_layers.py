"""A mechanism for every layer and head, gates, norms and widths: the model is what the
configuration says.
"""

import json
from dataclasses import asdict

import numpy as np
import pytest
import torch

from eigenlens.attention import make, mechanisms
from eigenlens.attention.head_mix import HeadMix
from eigenlens.attention.softmax import Softmax
from eigenlens.errors import EigenlensError
from eigenlens.lab import Config, Transformer
from eigenlens.lab.layers import gate_of, layers_of

SHAPE = {"vocabulary": 20, "length": 12, "width": 16, "layers": 2, "heads": 2}
IDS = torch.arange(24).reshape(2, 12) * 7 % 20


def moved(**config):
    """A model in double precision whose weights have left their start."""
    torch.manual_seed(0)
    model = Transformer(Config(**{**SHAPE, **config})).double()
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.3 * torch.randn_like(weight)
    return model


def names(model):
    return [mechanism.name for mechanism in model.mechanisms]


def test_a_name_is_for_all_layers_and_letters_are_repeated():
    assert layers_of("full", 2, 4) == [(("softmax", 4),)] * 2
    assert layers_of("F", 3, 1) == [(("softmax", 1),)] * 3
    assert names(Transformer(Config(**{**SHAPE, "layers": 4}, mechanism="FF"))) == ["softmax"] * 4
    letters = {
        kind.letter: name
        for name, kind in mechanisms().items()
        if kind.letter and "causal" in kind.directions
    }
    text = "".join(letters)
    model = Transformer(
        Config(**{**SHAPE, "layers": 2 * len(text), "causal": True}, mechanism=text)
    )
    assert names(model) == 2 * list(letters.values())


def test_heads_of_one_layer_attend_in_their_own_ways():
    model = moved(mechanism=[("softmax", 1), ("softmax", 1)])
    assert all(
        isinstance(mechanism, HeadMix) and mechanism.counts == (1, 1)
        for mechanism in model.mechanisms
    )
    plain = moved()
    plain.load_state_dict(model.state_dict())
    torch.testing.assert_close(model(IDS), plain(IDS))


def test_every_layer_can_have_a_list_of_its_own_and_settings_go_by_name():
    config = Config(
        **SHAPE,
        causal=True,
        mechanism=["full", [("full", 1), ("local", 1)]],
        mechanism_settings={"local": {"window": 3}},
    )
    model = Transformer(config)
    assert isinstance(model.mechanisms[0], Softmax) and isinstance(model.mechanisms[1], HeadMix)
    _, second = model.patterns(IDS)
    far = torch.arange(12)[:, None] - torch.arange(12) >= 3
    assert (
        float(second[:, 1][:, far].detach().abs().max()) == 0
        and float(second[:, 0][:, far].detach().max()) > 0
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"mechanism": "hardmax"}, "no mechanism 'hardmax'"),
        ({"mechanism": "FFF"}, "'FFF' of 3 layers does not divide 2 layers"),
        ({"mechanism": ["softmax"]}, "1 mechanisms are listed for 2 layers"),
        ({"mechanism": [("softmax", 1)]}, "given for 1 heads, and a layer has 2"),
        ({"mechanism": [("softmax", 3), ("softmax", -1)]}, "at least one head"),
        ({"mechanism": ["softmax", 3]}, "a name or a list of"),
        ({"mechanism": 3}, "mechanism is a text or a list, not 3"),
        ({"mechanism_settings": {"softmax": {"heat": 2}}}, "no setting 'heat' of softmax"),
        ({"mechanism_settings": {"hardmax": {}}}, "no mechanism 'hardmax'"),
        ({"mechanism_settings": {"softmax": 2}}, "mechanism_settings is a table"),
        (
            {"mechanism_settings": {"local": {"windw": 2}}},
            "no setting 'windw' of local; it has window",
        ),
        (
            {"mechanism": "local", "mechanism_settings": {"local": {"window": "a"}}},
            "window of local is a whole number, not 'a'",
        ),
        (
            {"mechanism": "local", "mechanism_settings": {"local": {"window": 0}}},
            "a window has at least 1 token",
        ),
        ({"width": "a"}, "width is a whole number, not 'a'"),
        ({"causal": "no"}, "causal is true or false, not 'no'"),
        ({"mechanism_settings": None}, "mechanism_settings is a table, not None"),
        ({"gate": 3}, "gate is a text, not 3"),
        ({"gate": "G1-bias=nan"}, "bias of a gate is a finite number"),
        ({"size": -1.0}, "size is a number above 0"),
        ({"size": float("nan")}, "size is a number above 0"),
        (
            {"mechanism": "linformer", "causal": True},
            "linformer runs both ways, and the model causal",
        ),
        ({"norm_position": "middle"}, "norm_position is 'pre' or 'post', not 'middle'"),
        ({"activation": "tanh"}, "activation is 'gelu' or 'relu'"),
        ({"fusion": "mean"}, "no fusion 'mean'"),
        ({"rank": 0}, "rank is at least 1, not 0"),
        ({"gate": "G7"}, "no gate 'G7'"),
        ({"gate": "G1-hard"}, "no option 'hard' of a gate"),
        ({"gate": "G1-bias=x"}, "is a number, not 'x'"),
        ({"gate": "G5-head"}, "no heads"),
        ({"heads": 3}, "give rank and value_width"),
    ],
)
def test_what_cannot_be_is_refused(wrong, message):
    with pytest.raises(EigenlensError, match=message):
        Config(**{**SHAPE, **wrong})


def test_gates_are_read_from_their_names():
    assert vars(gate_of("G1")) == {
        "position": "G1",
        "per": "element",
        "shared": False,
        "form": "sigmoid",
        "bias": 0.0,
    }
    assert vars(gate_of("G3-head-silu")) == {
        "position": "G3",
        "per": "head",
        "shared": False,
        "form": "silu",
        "bias": 0.0,
    }
    found = gate_of("G2-shared-bias=-1.5")
    assert found.position == "G2" and found.shared and found.bias == -1.5


def test_a_configuration_goes_through_json():
    config = Config(
        **SHAPE,
        mechanism=["full", [("full", 1), ("full", 1)]],
        mechanism_settings={"full": {}},
        gate="G1",
        fusion="max",
    )
    again = Config(**json.loads(json.dumps(asdict(config))))
    assert again == config and hash(again) == hash(config)


def linear(x, w, name):
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def norm(x, w, name):
    centred = x - x.mean(-1, keepdims=True)
    return (
        centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * w[f"{name}.weight"]
        + w[f"{name}.bias"]
    )


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def softmax(z):
    p = np.exp(z - z.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def by_hand(model, ids, D=8, E=8, gate=None, post=False, relu=False):
    """The model in numpy, loops over layers and heads; every row of queries and keys has D numbers,
    of values E.
    """
    w = {name: x.detach().numpy() for name, x in model.state_dict().items()}
    found = []
    for sequence in ids:
        x = w["tokens.weight"][sequence] + w["positions.weight"]
        for i in range(2):
            u = x if post else norm(x, w, f"blocks.{i}.norm_1")
            rows = linear(u, w, f"blocks.{i}.attention.project")
            g = w.get(f"blocks.{i}.attention.gate.weight")  # (C, H, D or E)
            y = w[f"blocks.{i}.attention.out.bias"].copy()
            for h in range(2):
                q, k = (rows[:, 2 * D * part + D * h :][:, :D] for part in range(2))
                v = rows[:, 4 * D + E * h :][:, :E]
                opened = sigmoid(u @ g[:, h]) if g is not None and gate != "G5" else 1.0
                q, k, v = (
                    q * (opened if gate == "G4" else 1),
                    k * (opened if gate == "G3" else 1),
                    v * (opened if gate == "G2" else 1),
                )
                z = softmax(q @ k.T / D**0.5) @ v * (opened if gate == "G1" else 1)
                y = y + z @ w[f"blocks.{i}.attention.out.weight"][:, E * h : E * h + E].T
            if gate == "G5":
                y = y * sigmoid(u @ g[:, 0])
            x = norm(x + y, w, f"blocks.{i}.norm_1") if post else x + y
            z = linear(x if post else norm(x, w, f"blocks.{i}.norm_2"), w, f"blocks.{i}.wide")
            z = (
                np.maximum(z, 0)
                if relu
                else 0.5 * z * (1 + np.tanh((2 / np.pi) ** 0.5 * (z + 0.044715 * z**3)))
            )
            y = linear(z, w, f"blocks.{i}.narrow")
            x = norm(x + y, w, f"blocks.{i}.norm_2") if post else x + y
        found.append((x if post else norm(x, w, "norm")) @ w["tokens.weight"].T)
    return np.stack(found)


@pytest.mark.parametrize(
    ("config", "hand"),
    [
        ({"norm_position": "post", "activation": "relu"}, {"post": True, "relu": True}),
        ({"mlp_width": 5}, {}),
        ({"rank": 3, "value_width": 5}, {"D": 3, "E": 5}),
        ({"rank": 1}, {"D": 1}),
        *[({"gate": gate}, {"gate": gate}) for gate in ("G1", "G2", "G3", "G4", "G5")],
        ({"gate": "G1-head"}, {"gate": "G1"}),
        ({"gate": "G2", "rank": 3, "value_width": 5}, {"gate": "G2", "D": 3, "E": 5}),
        ({"gate": "G4", "rank": 3, "value_width": 5}, {"gate": "G4", "D": 3, "E": 5}),
    ],
)
def test_the_model_is_the_one_written_out(config, hand):
    model = moved(**config)
    np.testing.assert_allclose(
        model(IDS).detach().numpy(), by_hand(model, IDS, **hand), rtol=1e-9, atol=1e-9
    )


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

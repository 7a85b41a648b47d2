"""Ablated models equal forwards written out from their weights, and come back exactly as they
were.
"""

import types

import pytest
import torch
import transformers as tf
from torch import nn
from transformers.models.bert.modeling_bert import BertLayer

from captures.families import CAUSAL, FAMILIES, build, inputs
from collapses.by_hand import (
    COMBINATIONS,
    SWITCHES,
    distance,
    forward,
    in_dtype,
    lively,
    masks,
    model_of,
    outputs,
)
from collapses.forwards_by_hand import FORWARDS
from eigenlens.anatomy import Switches
from eigenlens.captures.precision import stays_double
from eigenlens.collapses.ablation import VARIANTS, ablate
from eigenlens.errors import EigenlensError

ONE_OFF = [{}, *({name: False} for name in SWITCHES)]
PAPER = {
    "SAN": {"attention_skip": False, "mlp_skip": False, "mlp": False},
    "SAN+MLP": {"attention_skip": False, "mlp_skip": False},
    "SAN+skip": {"mlp": False},
    "full": {},
}
PADDED = [
    (kind, side)
    for kind in FORWARDS
    for side in ("right", "left")
    if kind != "vit" and (side == "right" or kind.partition("-")[0] in CAUSAL)
]


def batch(kind, padding="none", cache=False):
    name = kind.partition("-")[0]
    given = in_dtype(inputs(name, padding))
    return {**given, "use_cache": False} if not cache and name in CAUSAL | {"t5"} else given


@torch.no_grad()
def run(model, given):
    with stays_double():
        return outputs(model(**given))


def furthest(ours, theirs, given):
    return max(distance(a, b, real) for a, b, real in zip(ours, theirs, masks(given)))


def without(model, given, **switches):
    with ablate(model, **switches):
        return run(model, given)


@pytest.mark.parametrize("kind", FORWARDS)
def test_forwards_by_hand_are_the_models_own(kind):
    model, given = model_of(kind), batch(kind)
    assert furthest(forward(kind, model, given), run(model, given), given) < 1e-12


@pytest.mark.parametrize("kind", FORWARDS)
def test_every_combination_of_switches_equals_the_forward_by_hand(kind):
    model, given = model_of(kind), batch(kind)
    for switches in (
        COMBINATIONS if kind.startswith(("bert", "gpt")) else [*ONE_OFF, *PAPER.values()]
    ):
        assert (
            furthest(
                without(model, given, **switches), forward(kind, model, given, **switches), given
            )
            < 1e-10
        ), switches


@pytest.mark.parametrize("kind", FORWARDS)
def test_each_switch_alone_changes_the_output(kind):
    """Or the comparison with forwards by hand would say little."""
    model, given = model_of(kind), batch(kind)
    plain = run(model, given)
    # side by side, one stays for both
    one_skip = ("attention_skip", "mlp_skip") if kind == "gpt_neox" else ()
    for name in SWITCHES:
        far = furthest(without(model, given, **{name: False}), plain, given)
        assert far == 0 if name in one_skip else far > 1e-2, name


@pytest.mark.parametrize(("kind", "side"), PADDED, ids=lambda x: x)
def test_padding_stays_out(kind, side):
    model, given = model_of(kind), batch(kind, side)
    for switches in [*ONE_OFF, PAPER["SAN"]]:
        assert (
            furthest(
                without(model, given, **switches), forward(kind, model, given, **switches), given
            )
            < 1e-10
        ), switches


@pytest.mark.parametrize("name", PAPER)
def test_the_variants_of_the_paper(name):
    model, given = model_of("bert"), batch("bert", "right")
    want = forward("bert", model, given, **PAPER[name])
    assert set(VARIANTS) == set(PAPER)
    for given_as in (name, VARIANTS[name], Switches(**PAPER[name])):
        with ablate(model, given_as):
            assert furthest(run(model, given), want, given) < 1e-10


@pytest.mark.parametrize("kind", ["gpt2", "llama", "gpt_neox", "t5"])
def test_a_cache_that_is_written_makes_no_difference(kind):
    model, given = model_of(kind), batch(kind, cache=True)
    for switches in ({}, {"mlp": False}, {"attention_skip": False, "norm": False}):
        assert (
            furthest(
                without(model, given, **switches), forward(kind, model, given, **switches), given
            )
            < 1e-10
        ), switches


@torch.no_grad()
def test_a_cache_can_be_read_token_by_token():
    model, given = model_of("llama"), batch("llama")
    with ablate(model, mlp=False), stays_double():
        start = model(input_ids=given["input_ids"][:, :-1], use_cache=True)
        last = model(input_ids=given["input_ids"][:, -1:], past_key_values=start.past_key_values)[0]
    assert distance(last[:, -1], forward("llama", model, given, mlp=False)[0][:, -1]) < 1e-10


@torch.no_grad()
@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "gpt_oss"])
def test_all_switches_on_is_the_plain_model_in_float32(name):
    model, given = lively(name, torch.float32), inputs(name, "right")
    plain = outputs(model(**given))
    with ablate(model):
        again = outputs(model(**given))
    for one, other in zip(again, plain):
        assert distance(one, other) < 1e-5


@torch.no_grad()
def test_a_model_with_a_head_and_a_loaded_model_are_ablated_alike():
    head = tf.BertForMaskedLM(FAMILIES["bert"][1]).eval().double()
    given = batch("bert")
    body = forward("bert", head.bert, given, mlp=False)[0]
    with stays_double():
        for model in (head, types.SimpleNamespace(module=head)):
            with ablate(model, mlp=False):
                assert distance(head(**given).logits, head.cls(body)) < 1e-10


@torch.no_grad()
def test_training_goes_on_with_the_same_dropout():
    model, given = build("bert").train(), inputs("bert")
    torch.manual_seed(1)
    plain = model(**given)[0]
    torch.manual_seed(1)
    with ablate(model):
        again = model(**given)[0]
    assert all(part.training for part in model.modules())
    torch.testing.assert_close(again, plain)
    assert distance(model(**given)[0], plain) > 1e-2  # there is dropout


@pytest.mark.parametrize("kind", FORWARDS)
def test_the_model_is_exactly_as_it_was(kind):
    model, given = model_of(kind), batch(kind)
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    attributes = {path: set(vars(module)) for path, module in model.named_modules()}
    before = run(model, given)
    without(model, given, norm=False, mlp=False)
    assert {path: set(vars(module)) for path, module in model.named_modules()} == attributes
    assert list(model.state_dict()) == list(weights)
    assert all(torch.equal(value, weights[key]) for key, value in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert all(torch.equal(a, b) for a, b in zip(run(model, given), before))


def test_an_exception_inside_restores_the_model():
    model, given = model_of("gpt2"), batch("gpt2")
    before = run(model, given)[0]
    with pytest.raises(KeyboardInterrupt), ablate(model, "SAN"):
        run(model, given)
        raise KeyboardInterrupt
    assert "forward" not in vars(model.h[0])
    assert torch.equal(run(model, given)[0], before)


def test_an_inner_block_ends_before_the_outer_one():
    model, given = model_of("bert"), batch("bert")
    before = run(model, given)
    with ablate(model, mlp=False):
        outer = run(model, given)
        assert furthest(outer, forward("bert", model, given, mlp=False), given) < 1e-10
        with ablate(model, "full"):
            pass
        assert torch.equal(run(model, given)[0], outer[0])
    assert torch.equal(run(model, given)[0], before[0])


def test_a_forward_of_the_modules_own_comes_back():
    model, given = model_of("bert"), batch("bert")
    layer, called = model.encoder.layer[1], []

    def counted(self, *args, **kwargs):
        called.append(1)
        return type(self).forward(self, *args, **kwargs)

    layer.forward = mine = types.MethodType(counted, layer)
    before = run(model, given)
    without(model, given, attention_skip=False)
    assert vars(layer)["forward"] is mine
    called.clear()
    assert torch.equal(run(model, given)[0], before[0])
    assert called == [1]


@pytest.mark.parametrize(
    ("model", "missing"),
    [
        (
            lambda: nn.Sequential(nn.Linear(3, 3)),
            "Sequential are not known to eigenlens (it has no numbered layers)",
        ),
        (
            lambda: nn.TransformerEncoder(
                nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1
            ),
            "TransformerEncoderLayer with self_attn",
        ),
        (
            lambda: tf.XLNetModel(
                tf.XLNetConfig(vocab_size=9, d_model=8, n_layer=1, n_head=2, d_inner=8)
            ),
            "XLNetLayer with rel_attn, ff",
        ),
        (
            lambda: tf.FunnelModel(
                tf.FunnelConfig(
                    vocab_size=9, block_sizes=[1], d_model=8, n_head=2, d_head=4, d_inner=8
                )
            ),
            "FunnelModel",
        ),
        (lambda: build("gpt_oss"), "GptOssDecoderLayer with self_attn, mlp"),
    ],
)
def test_a_family_that_is_not_known_is_named(model, missing):
    with pytest.raises(EigenlensError) as error, ablate(model()):
        pass
    assert missing in str(error.value) and "it knows those of BERT" in str(error.value)


def test_a_variant_that_does_not_exist():
    with (
        pytest.raises(EigenlensError, match=r"'SAN-skip'.*SAN, SAN\+MLP, SAN\+skip, full"),
        ablate(build("bert"), "SAN-skip"),
    ):
        pass


class Louder(BertLayer):
    """Has all the parts of a BERT block, and puts them together in another way."""

    def forward(self, hidden_states, attention_mask=None, encoder_hidden_states=None, **kwargs):
        return super().forward(hidden_states, attention_mask, **kwargs) + 0.1 * hidden_states


GRANITE = tf.GraniteConfig(
    vocab_size=99,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    residual_multiplier=0.5,
)


def louder_bert():
    model = build("bert")
    model.encoder.layer[1].__class__ = Louder
    return model


@pytest.mark.parametrize(
    ("build_model", "block"),
    # Llama's parts, but weighed
    [(louder_bert, "Louder"), (lambda: tf.GraniteModel(GRANITE).eval(), "GraniteDecoderLayer")],
    ids=["louder", "granite"],
)
def test_a_block_that_only_looks_like_a_known_one_is_refused(build_model, block):
    model, given = build_model(), {**inputs("bert"), "use_cache": False}
    before = model(**given)[0]
    with (
        pytest.raises(EigenlensError, match=f"{block}.*not built the way"),
        ablate(model, mlp=False),
    ):
        model(**given)
    assert torch.equal(model(**given)[0], before)

"""Hard cases of freezing and ablating.

Padding, caches, nesting, dropout, blocks that only look like known ones.
"""

import copy

import pytest
import torch
import transformers as tf

from captures.families import CAUSAL, FAMILIES, build, inputs
from collapses.by_hand import On, distance, forward, in_dtype, lively, masks, model_of, outputs
from eigenlens import EigenlensError, capture
from eigenlens.anatomy import freeze
from eigenlens.captures.precision import stays_double
from eigenlens.collapses.ablation import ablate
from eigenlens.collapses.sampling import PathSample, rerun_paths

PRE_NORM = [
    "modernbert",
    "gpt2",
    "opt",
    "gpt_neox",
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "phi",
    "gemma2",
    "t5",
    "clip",
]
DECODERS, TWO_SIDED = sorted(CAUSAL - {"gpt_oss"}), ["t5", "bart", "marian", "whisper"]
CACHED = [(n, p) for n in DECODERS for p in ("none", "left", "right")] + [
    (n, p) for n in TWO_SIDED for p in ("none", "right")
]


@torch.no_grad()
@pytest.mark.parametrize("name", PRE_NORM)
def test_right_padding_does_not_lose_the_last_norm(name):
    model, given = lively(name), in_dtype(inputs(name, "right"))
    given |= {"use_cache": False} if name in CAUSAL | {"t5"} else {}
    with stays_double():
        found, own = freeze(model, given), outputs(model(**given))
    for graph, output, real in zip(found, own, masks(given)):
        assert distance(graph(graph.inputs), output, real) < 1e-10


@torch.no_grad()
@pytest.mark.parametrize(("name", "padding"), CACHED)
def test_freeze_with_the_cache_that_a_model_makes_by_default(name, padding):
    model, given = lively(name), in_dtype(inputs(name, padding))
    with stays_double():
        found, own = freeze(model, given), outputs(model(**given))
    for graph, output, real in zip(
        found, own, masks(given) if "attention_mask" in given else [None, None]
    ):
        assert distance(graph(graph.inputs), output, real) < 1e-10


def test_the_self_check_also_with_a_cache():
    config = tf.GraniteConfig(
        vocab_size=99,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        residual_multiplier=0.5,
    )
    model = tf.GraniteModel(config).eval()
    with pytest.raises(EigenlensError, match="not built the way"), ablate(model):
        model(**inputs("llama"))


@pytest.mark.parametrize("name", ["bert", "albert", "t5"])
def test_the_check_of_a_block_is_not_captured(name):
    model, given = build(name), inputs(name)
    with torch.no_grad():
        with capture(model) as plain:
            model(**given)
        with capture(model) as first, ablate(model, mlp=False):
            model(**given)
        with ablate(model, mlp=False), capture(model) as second:
            model(**given)
            model(**given)
    sites = [str(call.site) for call in plain]
    assert [str(call.site) for call in first] == sites and [
        str(call.site) for call in second
    ] == 2 * sites


def test_nested_ablations_run():
    model, given = model_of("bert"), inputs("bert")
    with ablate(model, mlp=False), ablate(model, norm=False), stays_double(), torch.no_grad():
        out = model(**given)[0]
    assert distance(out, forward("bert", model, given, norm=False)[0]) < 1e-10  # or a clear error


@torch.no_grad()
def test_t5_paths_keep_their_position_bias():
    model, given = model_of("t5"), {**inputs("t5"), "use_cache": False}
    sample = PathSample(torch.tensor([[1]]), torch.tensor([[2]]), torch.zeros(1))
    with stays_double():
        found = rerun_paths(model, given, sample, stack="encoder")[0]
    small = copy.deepcopy(model)
    small.encoder.block[1].layer[0].SelfAttention.o.weight.data[
        :, [c for c in range(32) if c // 8 != 2]
    ] = 0
    want = forward("t5", small, given, layers=[On(attention=False), On(attention_skip=False)])[0]
    assert distance(found, want) < 1e-10


@torch.no_grad()
def test_gpt2_with_cross_attention():
    config = copy.deepcopy(FAMILIES["gpt2"][1])
    config.add_cross_attention = True
    model, source = tf.GPT2Model(config).eval(), torch.randn(3, 5, 32)
    given = {**inputs("gpt2"), "encoder_hidden_states": source, "use_cache": False}
    (graph,) = freeze(model, given)
    assert distance(graph(graph.inputs), model(**given)[0]) < 1e-4


@torch.no_grad()
@pytest.mark.parametrize("name", ["opt", "t5", "bart", "marian"])
def test_dropout_in_training(name):
    model, given = build(name).train(), inputs(name)
    torch.manual_seed(1)
    plain = outputs(model(**given))[-1]
    torch.manual_seed(1)
    with ablate(model):
        again = outputs(model(**given))[-1]
    assert distance(again, plain) < 1e-5


def test_an_unknown_block_in_nested_lists_is_named():
    model = tf.FunnelModel(
        tf.FunnelConfig(vocab_size=9, block_sizes=[1], d_model=8, n_head=2, d_head=4, d_inner=8)
    )
    with pytest.raises(EigenlensError, match="FunnelLayer with"), ablate(model):
        pass

"""The frozen graph gives the model's own output, and is the linear map that a frozen forward by
hand is.
"""

import copy

import numpy as np
import pytest
import torch
import transformers as tf

from captures.families import CAUSAL, FAMILIES, build, inputs
from collapses.by_hand import (
    distance,
    frozen,
    in_dtype,
    lively,
    lively_lab,
    masks,
    model_of,
    outputs,
)
from collapses.forwards_by_hand import FORWARDS
from eigenlens import EigenlensError
from eigenlens.anatomy import freeze
from eigenlens.captures.precision import stays_double
from tiny import of_catalogue

# its experts are no MLP that could be frozen
READ = [name for name in FAMILIES if name != "gpt_oss"]
CACHES = CAUSAL | {"t5", "bart", "marian", "whisper"}
POST_NORM = [
    "bert",
    "roberta",
    "xlm_roberta",
    "camembert",
    "distilbert",
    "albert",
    "electra",
    "bart",
    "marian",
]
PADDED = [
    *((name, "right") for name in POST_NORM),
    *((name, "left") for name in READ if name in CAUSAL),
]
LIMIT = {torch.float32: 1e-4, torch.float64: 1e-10}


def batch(name, padding="none", dtype=torch.float64, **sizes):
    given = in_dtype(inputs(name, padding, **sizes), dtype)
    return {**given, "use_cache": False} if name in CACHES else given


@torch.no_grad()
def frozen_and_own(model, given):
    """Pairs of a stack's graph and the model's own output of that stack, from a run of its own."""
    with stays_double():
        graphs, own = freeze(model, given), outputs(model(**given))
    assert len(graphs) == len(own)
    return list(zip(graphs, own))


@pytest.mark.parametrize("dtype", LIMIT, ids=["float32", "float64"])
@pytest.mark.parametrize("name", READ)
def test_the_graph_gives_the_models_own_output(name, dtype):
    model, given = lively(name, dtype), batch(name, dtype=dtype)
    for graph, own in frozen_and_own(model, given):
        assert graph.valid is None
        assert distance(graph(graph.inputs), own) < LIMIT[dtype]
        assert distance(graph.output, own) < LIMIT[dtype]
        split = graph(graph.inputs, bias=False) + graph(torch.zeros_like(graph.inputs))
        assert distance(split, own) < LIMIT[dtype]


@pytest.mark.parametrize("dtype", LIMIT, ids=["float32", "float64"])
@pytest.mark.parametrize(("name", "side"), PADDED, ids=lambda x: x)
def test_padding_is_known_and_left_out(name, side, dtype):
    model, given = lively(name, dtype), batch(name, side, dtype)
    for (graph, own), real in zip(frozen_and_own(model, given), masks(given)):
        assert torch.equal(graph.valid, real)
        assert distance(graph(graph.inputs), own, real) < LIMIT[dtype]
        # what stands in padding does not matter
        other = torch.where(real[..., None], graph.inputs, 7.0)
        assert distance(graph(other), own, real) < LIMIT[dtype]


@pytest.mark.parametrize("kind", FORWARDS)
def test_on_any_stream_it_is_the_forward_by_hand_with_everything_held(kind):
    name = kind.partition("-")[0]
    model, given = model_of(kind), batch(name)
    for stack, (graph, _) in enumerate(frozen_and_own(model, given)):
        x, by_hand = frozen(kind, model, given, stack)
        assert distance(graph.inputs, x) < 1e-12
        y, nothing = torch.randn_like(x), torch.zeros_like(x)
        with torch.no_grad():
            assert distance(graph(y), by_hand(y)) < 1e-10
            assert distance(graph(y, bias=False), by_hand(y) - by_hand(nothing)) < 1e-10


@pytest.mark.parametrize("name", READ)
def test_it_is_linear(name):
    model, given = lively(name), batch(name)
    for graph, _ in frozen_and_own(model, given):
        x, y = torch.randn_like(graph.inputs), torch.randn_like(graph.inputs)
        with torch.no_grad():
            both = graph(2 * x - 3 * y, bias=False)
            assert distance(both, 2 * graph(x, bias=False) - 3 * graph(y, bias=False)) < 1e-10
            # (2, 1, B, T, C): leading axes are streams
            side_by_side = graph(torch.stack([x, y])[:, None])
            assert distance(side_by_side[1, 0], graph(y)) < 1e-12
            assert distance(graph(x, bias=False) + graph(torch.zeros_like(x)), graph(x)) < 1e-12


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "gpt_neox"])
def test_it_is_not_the_jacobian(name):
    """The derivative of the model also moves patterns, norms and gates; the graph does not, and yet
    gives the output.
    """
    model, given = lively(name), batch(name)
    if name == "bert":
        given = {key: given[key] for key in ("input_ids", "attention_mask")}
    (graph, own), *_ = frozen_and_own(model, given)
    block = next(
        module
        for path, module in model.named_modules()
        if path.rpartition(".")[2] == "0" and any(module.children())
    )
    v = torch.randn_like(graph.inputs)

    def nudged(step):
        hook = block.register_forward_pre_hook(lambda _m, args: (args[0] + step * v, *args[1:]))
        try:
            with stays_double(), torch.no_grad():
                return outputs(model(**given))[0]
        finally:
            hook.remove()

    with torch.no_grad():
        slope = (nudged(1e-5) - nudged(-1e-5)) / 2e-5
        assert distance(graph(v, bias=False), slope) > 0.1
        assert distance(nudged(0.0), own) < 1e-12


@pytest.mark.parametrize("name", sorted(CAUSAL - {"gpt_oss"}))
def test_no_later_token_reaches_an_earlier_one(name):
    model, given = lively(name), batch(name)
    (graph, _), *_ = frozen_and_own(model, given)
    y = torch.zeros_like(graph.inputs)
    y[:, 6:] = torch.randn_like(y[:, 6:])
    with torch.no_grad():
        moved = graph(y, bias=False)
    assert not moved[:, :6].any()
    assert bool(moved[:, 6:].abs().sum(-1).gt(0).all())


def test_every_token_reaches_every_other_in_an_encoder():
    (graph, _), *_ = frozen_and_own(lively("bert"), batch("bert"))
    y = torch.zeros_like(graph.inputs)
    y[:, -1] = torch.randn_like(y[:, -1])
    with torch.no_grad():
        assert bool(graph(y, bias=False)[:, 0].abs().sum(-1).gt(0).all())


@pytest.mark.parametrize(
    "name", [name for name in READ if name not in {"vit", "deit", "dinov2", "whisper", "clip"}]
)
def test_a_single_token(name):
    model, given = lively(name), batch(name, length=1)
    for graph, own in frozen_and_own(model, given):
        assert distance(graph(graph.inputs), own) < 1e-10


@pytest.mark.parametrize(
    "name", ["bert", "albert", "distilbert", "gpt2", "llama", "gemma2", "phi", "t5"]
)
def test_tokens_that_are_all_equal(name):
    model, given = lively(name), batch(name)
    given["input_ids"] = torch.full_like(given["input_ids"], 7)
    for path, parameter in model.named_parameters():
        if "position_embeddings" in path or "wpe" in path:
            parameter.data.zero_()
    found = frozen_and_own(model, given)
    stream = found[0][0].inputs
    assert float((stream - stream[:, :1]).abs().max()) < 1e-12
    for graph, own in found:
        assert distance(graph(graph.inputs), own) < 1e-10


@pytest.mark.parametrize(
    "settings", [{"feed_forward_proj": "gated-gelu"}, {"feed_forward_proj": "relu"}], ids=str
)
def test_a_gated_and_an_ungated_t5(settings):
    config = tf.T5Config(
        vocab_size=99,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
        **settings,
    )
    model = tf.T5Model(config).eval().double()
    for graph, own in frozen_and_own(model, batch("t5")):
        assert distance(graph(graph.inputs), own) < 1e-10


def test_a_decoder_that_reads_an_encoder_has_it_in_its_bias():
    """Cross-attention reads another stack: nothing of it goes over the stream, all of it is
    constant.
    """
    model, given = lively("t5"), batch("t5")
    (_, _), (graph, own) = frozen_and_own(model, given)
    for block in graph.blocks:
        cross = next(
            branch for stage in block for branch in stage.branches if branch.kind == "cross"
        )
        assert not cross.linear(torch.randn_like(graph.inputs)).any()
        assert cross.bias.norm() > 0.01
    assert distance(graph(graph.inputs), own) < 1e-10


def test_a_model_with_a_head_and_a_forward_of_ones_own():
    model, given = tf.BertForMaskedLM(FAMILIES["bert"][1]).eval().double(), batch("bert")
    with stays_double():
        (graph,) = freeze(
            model, {"words": given["input_ids"]}, forward=lambda b: model(input_ids=b["words"])
        )
        own = model(**given, output_hidden_states=True).hidden_states[-1].detach()
    assert distance(graph(graph.inputs), own) < 1e-10


@torch.no_grad()
def test_the_model_is_left_as_it_was():
    model, given = build("llama"), batch("llama", dtype=torch.float32)
    before = model(**given)[0]
    freeze(model, given)
    assert torch.equal(model(**given)[0], before)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@torch.no_grad()
@pytest.mark.parametrize("off", ["", "attention_skip", "mlp_skip", "mlp", "norm"])
@pytest.mark.parametrize("causal", [True, False])
def test_the_labs_own_transformer(causal, off):
    model, ids = lively_lab(3, causal=causal, **({off: False} if off else {}))
    (graph,) = freeze(model, {"ids": ids}, forward=lambda batch: model(batch["ids"]))
    assert distance(model.read(graph(model.embed(ids))), model(ids)) < 1e-10
    assert [len(block) for block in graph.blocks] == [1 if off == "mlp" else 2] * 2


def test_an_activation_that_is_not_zero_at_zero_is_refused():
    config = copy.deepcopy(FAMILIES["bert"][1])
    config.hidden_act = "sigmoid"
    with pytest.raises(EigenlensError, match="not zero at zero"):
        freeze(tf.BertModel(config).eval(), inputs("bert"))


def test_experts_are_refused_by_name():
    with pytest.raises(EigenlensError, match="GptOssDecoderLayer"):
        freeze(build("gpt_oss"), inputs("gpt_oss"))


REAL = {"minilm": 6, "smollm2": 30, "dinov2-small": 12}


@pytest.mark.parametrize("name", REAL)
def test_real_weights_in_float32(name):
    model = of_catalogue(name)
    if model.kind == "vision":
        given = {
            "pixel_values": (
                torch.from_numpy(np.random.default_rng(0).normal(size=(1, 3, 112, 112))).float()
            )
        }
    else:
        words = ["The cat that I saw yesterday sat on the mat, and it was black.", "No."][
            : 2 if name == "minilm" else 1
        ]
        given = dict(model.tokenizer(words, return_tensors="pt", padding=len(words) > 1))
        given |= {"use_cache": False} if name == "smollm2" else {}
    with torch.no_grad():
        (graph,), own = freeze(model.backbone, given), model.backbone(**given).last_hidden_state
    assert len(graph.blocks) == REAL[name]
    assert graph.inputs.dtype == torch.float32
    assert distance(graph(graph.inputs), own, graph.valid) < 1e-4

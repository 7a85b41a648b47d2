"""What is read of each family.

Its stacks, the stages of a block, where the norms stand, and that run part by part it is itself.
"""

import pytest
import torch
from torch import nn

from captures.families import FAMILIES, build, inputs
from collapses.by_hand import distance, lively
from eigenlens import EigenlensError
from eigenlens.anatomy import Stage, Switches, read_stacks
from eigenlens.anatomy.check import check_block
from eigenlens.captures.precision import stays_double
from eigenlens.lab.model import Config, Transformer

POST = ("attention | n", "mlp | n")
PRE = ("n attention", "n mlp")
PARALLEL = ("n attention + n mlp",)
SANDWICH = ("n attention n", "n mlp n")
SCALED = ("n attention s", "n mlp s")
READS = ("n attention", "n cross", "n mlp")
POST_READS = ("attention | n", "cross | n", "mlp | n")

EXPECTED = {  # stack: (blocks, stages of each, the norm behind the last)
    **{
        name: {"encoder": (3, POST, None)}
        for name in ("bert", "roberta", "xlm_roberta", "camembert", "electra")
    },
    "distilbert": {"transformer": (3, POST, None)},
    "albert": {"encoder": (1, POST, None)},
    "modernbert": {"self": (3, PRE, "final_norm")},
    "gpt2": {"self": (3, PRE, "ln_f")},
    "opt": {"decoder": (3, PRE, "decoder.final_layer_norm")},
    "gpt_neox": {"self": (3, PARALLEL, "final_layer_norm")},
    "phi": {"self": (3, PARALLEL, "final_layernorm")},
    **{name: {"self": (3, PRE, "norm")} for name in ("llama", "mistral", "qwen2", "qwen3")},
    "gemma2": {"self": (3, SANDWICH, "norm")},
    "t5": {
        "encoder": (2, PRE, "encoder.final_layer_norm"),
        "decoder": (2, READS, "decoder.final_layer_norm"),
    },
    **{
        name: {"encoder": (2, POST, None), "decoder": (2, POST_READS, None)}
        for name in ("bart", "marian")
    },
    "whisper": {
        "encoder": (2, PRE, "encoder.layer_norm"),
        "decoder": (2, READS, "decoder.layer_norm"),
    },
    "vit": {"self": (2, PRE, "layernorm")},
    "deit": {"self": (2, PRE, "layernorm")},
    "dinov2": {"encoder": (2, SCALED, "layernorm")},
    "clip": {
        "text_model.encoder": (3, PRE, "text_model.final_layer_norm"),
        "vision_model.encoder": (2, PRE, None),
    },
}


def words(stage: Stage) -> str:
    """`n attention` for a norm before, `attention n` for one within, `s` for a scale, `| n` for a
    norm of the sum.
    """
    parts = []
    for branch in stage.branches:
        marks = (branch.before and "n", branch.kind, branch.within and "n", branch.scale and "s")
        parts.append(" ".join(mark for mark in marks if mark))
    return " + ".join(parts) + (" | n" if stage.after else "")


@pytest.mark.parametrize("name", EXPECTED)
def test_stacks_stages_and_norms(name):
    model = build(name)
    path_of = {id(module): path for path, module in model.named_modules()}
    found = {}
    for stack in read_stacks(model):
        (stages,) = {tuple(map(words, block.stages)) for block in stack.blocks}
        found[stack.name] = (
            len(stack.blocks),
            stages,
            None if stack.final is None else path_of[id(stack.final)],
        )
        assert [path_of[id(block.module)] for block in stack.blocks] == [
            block.path for block in stack.blocks
        ]
    assert found == EXPECTED[name]


def test_every_family_of_the_tests_is_read_or_refused():
    assert set(FAMILIES) - set(EXPECTED) == {"gpt_oss"}


@torch.no_grad()
@pytest.mark.parametrize("name", EXPECTED)
def test_a_block_run_part_by_part_is_the_block(name):
    """Every block on the input that it gets in a run of the model."""
    model, given = lively(name), inputs(name, "right")
    given = {key: x.double() if x.is_floating_point() else x for key, x in given.items()}
    if name in {
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
        "bart",
        "marian",
        "whisper",
    }:
        given["use_cache"] = False
    seen, hooks = [], []
    for block in (block for stack in read_stacks(model) for block in stack.blocks):

        def note(_module, args, kwargs, out, block=block):
            x, more = block.bind_call(args, kwargs)
            ours = block.run(x, more)
            ours, theirs = (ours, out) if torch.is_tensor(out) else (ours[0], out[0])
            seen.append((block.path, distance(ours, theirs)))

        hooks.append(block.module.register_forward_hook(note, with_kwargs=True))
    with stays_double():
        model(**given)
    for hook in hooks:
        hook.remove()
    assert {path for path, _ in seen} == {
        block.path for stack in read_stacks(model) for block in stack.blocks
    }
    assert max(error for _, error in seen) < 1e-12


SMALL = {"vocabulary": 11, "length": 9, "width": 16, "layers": 2, "heads": 2}


@torch.no_grad()
@pytest.mark.parametrize("off", ["", "attention_skip", "mlp_skip", "mlp", "norm"])
def test_the_labs_own_blocks(off):
    model = Transformer(Config(**SMALL, **({off: False} if off else {})))
    (stack,) = read_stacks(model)
    x = torch.randn(3, 9, 16)
    assert len(stack.blocks) == 2 and stack.final is model.norm
    for block, module in zip(stack.blocks, model.blocks):
        assert distance(block.run(x, {}), module(x)) < 1e-6
        assert [branch.kind for stage in block.stages for branch in stage.branches] == [
            "attention",
            "mlp",
        ][: 1 + (off != "mlp")]


@pytest.mark.parametrize(
    ("switches", "keeps"),
    [
        ({}, True),
        ({"attention_skip": False}, True),
        ({"mlp_skip": False}, True),
        ({"attention_skip": False, "mlp_skip": False}, False),
        ({"attention_skip": False, "mlp": False}, False),
        ({"mlp_skip": False, "attention": False}, False),
        ({"attention_skip": False, "attention": False}, True),
        ({"attention_skip": False, "mlp_skip": False, "attention": False, "mlp": False}, True),
    ],
)
def test_branches_side_by_side_share_one_skip(switches, keeps):
    (stack,) = read_stacks(build("phi"))
    assert stack.blocks[0].stages[0].keeps_input(Switches(**switches)) is keeps


@torch.no_grad()
def test_the_check_names_block_class_and_size_of_the_difference():
    model = build("llama")
    block = read_stacks(model)[0].blocks[1]
    x, more = (
        torch.randn(1, 5, 32),
        {"position_embeddings": model.rotary_emb(torch.randn(1, 5, 32), torch.arange(5)[None])},
    )
    own = block.module(x, **more)
    check_block(block, own, x, more)
    with pytest.raises(
        EigenlensError,
        match=r"layers\.1 \(LlamaDecoderLayer\).*its output would be off by 1\.0e-01",
    ):
        check_block(block, own / 1.1, x, more)
    with pytest.raises(EigenlensError, match="its output would be off by"):
        check_block(block, own * torch.nan, x, more)


def test_a_model_without_blocks():
    with pytest.raises(
        EigenlensError,
        match=r"Linear are not known to eigenlens \(it has no numbered layers\); it knows those of BERT",
    ):
        read_stacks(nn.Linear(2, 2))

"""The whole results that are then damaged.

Two small models, a study of each, and one of every other kind of result.
"""

import contextlib
import os
import random
import shutil
import tempfile
from functools import cache
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

import eigenlens as el
from eigenlens.reports.page import drawing_library

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"{a}{b}" for a in "abcdef" for b in "aeiouklm")]
SIZES = {
    "vocab_size": len(WORDS),
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}


def tokenizer():
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        eos_token="[SEP]",
    )


@cache
def world() -> Path:
    """A folder with `bert`, `llama`, their studies `full` and `causal`, a `plan`, `evaluation`,
    `collapse`, `explanation`.
    """
    torch.manual_seed(0)
    folder = Path(tempfile.mkdtemp(prefix="eigenlens-fuzz-"))
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
        BertModel(
            BertConfig(**SIZES, max_position_embeddings=32, initializer_range=0.3),
            add_pooling_layer=False,
        ).save_pretrained(folder / "bert")
        config = LlamaConfig(
            **SIZES,
            num_key_value_heads=1,
            max_position_embeddings=32,
            initializer_range=0.3,
            eos_token_id=3,
        )
        LlamaForCausalLM(config).save_pretrained(folder / "llama")
        for name in ("bert", "llama"):
            tokenizer().save_pretrained(folder / name)
    rng = random.Random(0)
    documents = [" ".join(rng.choices(WORDS[4:], k=60)) for _ in range(12)]
    (folder / "text.jsonl").write_text("".join(f'{{"text": "{text}"}}\n' for text in documents))
    text = folder / "text.jsonl"
    made = el.study(folder / "bert", text, folder / "full", max_inputs=10, max_length=8, rank=4)
    el.study(folder / "llama", text, folder / "causal", max_inputs=10, max_length=8, rank=4)
    plan = el.plan(made, budget=0.5, max_inputs=2, output_dir=folder / "plan")
    el.evaluate(folder / "bert", plan=plan, max_inputs=2, output_dir=folder / "evaluation")
    el.collapse(
        folder / "bert", text, folder / "collapse", max_inputs=3, paths=2, bounds=1, max_length=8
    )
    el.explain(folder / "llama", documents[0][:24], output_dir=folder / "explanation")
    drawing_library()  # the first page of a machine starts a program for it
    return folder


def forget() -> None:
    """Take the folder away again."""
    if world.cache_info().currsize:
        shutil.rmtree(world(), ignore_errors=True)
        world.cache_clear()

"""Small models of many families with their linear operators."""

import torch
import transformers as tf

from captures.families import GQA, inputs
from collapses.by_hand import in_dtype, lively, outputs
from eigenlens.captures.precision import stays_double
from eigenlens.explanations import (
    linearize,
)

BERTS = ["bert", "distilbert", "albert", "roberta"]
LLAMAS = ["llama", "mistral", "qwen2", "gemma"]
VISION = ["vit", "dinov2"]
CAUSAL = ["gpt2", *LLAMAS]
STACKS = ["t5", "bart", "whisper"]
FAMILIES = [*BERTS, *CAUSAL, *VISION, *STACKS]
OTHERS = ["gpt_neox", "phi", "gemma2", "qwen3", "modernbert", "opt", "clip", "marian"]
LIMIT = {torch.float32: 1e-4, torch.float64: 1e-10}


def built(name, dtype=torch.float64):
    if name != "gemma":
        return lively(name, dtype)
    model = tf.GemmaModel(tf.GemmaConfig(**GQA)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.2)
    return model.to(dtype)


def batch(name, padding="none", dtype=torch.float64, **sizes):
    given = in_dtype(inputs(name, padding, **sizes), dtype)
    return (
        {**given, "use_cache": False}
        if name in {*CAUSAL, *STACKS, *OTHERS} - {"clip", "modernbert"}
        else given
    )


@torch.no_grad()
def operators_and_own(model, given):
    """Pairs of a stack's operator and the model's own output of that stack, from a run of its
    own.
    """
    with stays_double():
        own = outputs(model(**given))
    return list(zip(linearize(model, given), own, strict=True))


def op_of(name, padding="none", **sizes):
    return linearize(built(name), batch(name, padding, **sizes))[0]

"""Small random models of every family, with padded inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

TEXT = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
GROUPED = {**TEXT, "num_key_value_heads": 2, "head_dim": 8}
PICTURE = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 16,
    "patch_size": 4,
}
CAUSAL = ("gpt2", "llama", "mistral", "qwen2", "gemma")
FAMILIES = ("bert", "distilbert", "albert", "roberta", *CAUSAL, "vit", "dinov2")
SPREAD = 0.2
"""Standard deviation of the weights.

With the library's own 0.02 patterns are flat and activations nearly linear.
"""


def small_model(family: str, seed: int, spread: float | None = SPREAD) -> nn.Module:
    """Three blocks of 32 channels in float64, no weight at its neutral value.

    Without a `spread`, as the library starts it.
    """
    import transformers as tf

    makers: dict[str, Callable[[], Any]] = {
        "bert": lambda: tf.BertModel(tf.BertConfig(**TEXT), add_pooling_layer=False),
        "distilbert": lambda: tf.DistilBertModel(
            tf.DistilBertConfig(
                vocab_size=97,
                dim=32,
                hidden_dim=64,
                n_layers=3,
                n_heads=4,
                max_position_embeddings=64,
            )
        ),
        "albert": lambda: tf.AlbertModel(
            tf.AlbertConfig(**TEXT, embedding_size=16), add_pooling_layer=False
        ),
        "roberta": lambda: tf.RobertaModel(tf.RobertaConfig(**TEXT), add_pooling_layer=False),
        "gpt2": lambda: tf.GPT2Model(
            tf.GPT2Config(vocab_size=97, n_embd=32, n_layer=3, n_head=4, n_positions=64)
        ),
        "llama": lambda: tf.LlamaModel(tf.LlamaConfig(**GROUPED)),
        "mistral": lambda: tf.MistralModel(tf.MistralConfig(**GROUPED, sliding_window=6)),
        "qwen2": lambda: tf.Qwen2Model(tf.Qwen2Config(**TEXT, num_key_value_heads=2)),
        "gemma": lambda: tf.GemmaModel(tf.GemmaConfig(**GROUPED)),
        "vit": lambda: tf.ViTModel(
            tf.ViTConfig(**PICTURE, intermediate_size=64), add_pooling_layer=False
        ),
        "dinov2": lambda: tf.Dinov2Model(tf.Dinov2Config(**PICTURE)),
    }
    torch.manual_seed(seed)
    model: nn.Module = makers[family]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if spread is None:
                break
            if parameter.ndim >= 2:
                parameter.normal_(0, spread)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    return model.double()


def small_batch(
    family: str, seed: int, number: int = 3, length: int = 12, padded: bool = True
) -> dict[str, Tensor]:
    """Random tokens or pictures.

    Texts lose 0, 3, 6, … of their tokens to padding, of causal models on the left.
    """
    generator = torch.Generator().manual_seed(seed)
    if family in ("vit", "dinov2"):
        return {
            "pixel_values": torch.randn(number, 3, 16, 16, generator=generator, dtype=torch.float64)
        }
    ids = torch.randint(3, 97, (number, length), generator=generator)
    short = 3 * torch.arange(number)[:, None] * padded
    real = (
        torch.arange(length) >= short if family in CAUSAL else torch.arange(length) < length - short
    )
    return {"input_ids": ids * real, "attention_mask": real.long()}

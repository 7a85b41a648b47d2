"""flan-t5-small: T5, 8 + 8 layers, 6 heads, width 512, tuned further for titles.

ONNX encoder and decoder in 8 bits.
"""

from pathlib import Path

from eigenlens.models.archives import member
from eigenlens.models.recipes.onnx_weights import onnx_weights
from eigenlens.models.recipes.transformers_folder import (
    write_json_file,
    write_tokenizer,
    write_weights,
)

DATA = "traceforge_title_model/data/span"

CONFIG = {
    "model_type": "t5",
    "architectures": ["T5ForConditionalGeneration"],
    "vocab_size": 32128,
    "d_model": 512,
    "d_kv": 64,
    "d_ff": 1024,
    "num_layers": 8,
    "num_decoder_layers": 8,
    "num_heads": 6,
    "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128,
    "feed_forward_proj": "gated-gelu",
    "layer_norm_epsilon": 1e-6,
    "is_encoder_decoder": True,
    "decoder_start_token_id": 0,
    "pad_token_id": 0,
    "eos_token_id": 1,
    # Input embedding and output head differ in this family. transformers 5 sets the flag to true
    # whatever is written here, but reads it first (the head's input is then not rescaled) and
    # leaves two stored, unequal tensors untied.
    "tie_word_embeddings": False,
    "dtype": "float32",
}

TOKENIZER = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "model_max_length": 512,
    "pad_token": "<pad>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "additional_special_tokens": [f"<extra_id_{i}>" for i in range(100)],
}


def convert(archive: Path, folder: Path) -> None:
    encoder = onnx_weights(member(archive, f"{DATA}/encoder.onnx"), "flan-t5-small")
    decoder = onnx_weights(member(archive, f"{DATA}/decoder.onnx"), "flan-t5-small")
    weights = {
        "encoder." + k.removeprefix("enc."): w for k, w in encoder.items() if k.startswith("enc.")
    }
    # The encoder's embedding is the shared one, which the decoder's graph holds too.
    del weights["encoder.embed_tokens.weight"]
    weights |= {k.removeprefix("m."): w for k, w in decoder.items() if k.startswith("m.")}
    write_weights(folder, weights)
    write_json_file(folder, "config.json", CONFIG)
    write_tokenizer(folder, member(archive, f"{DATA}/tokenizer.json"), TOKENIZER)

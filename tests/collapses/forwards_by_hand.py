"""Forwards of nine transformers written out from their weights, with every part of a block on or
off.

Nothing of a model runs here but its embeddings: no block, attention, MLP or norm module is called.
The norms of the embeddings and behind the last block always stay.
"""

import math
from functools import partial

import torch

from collapses import tape
from collapses.parts_by_hand import (
    angles_of,
    attend,
    by_head,
    conv,
    erf_gelu,
    lin,
    normed,
    seen,
    self_attention,
    sublayer,
    switched,
    tanh_gelu,
    turned,
    two_maps,
)


def post_norm(x, mask, heads, on, blocks):
    """BERT's kind: blocks are (q, k, v, out), norm, (wide, narrow), norm, act."""
    x = tape.start(x)
    for layer, (maps, norm_1, mlp, norm_2, act) in enumerate(blocks):
        f = self_attention(*maps, heads, seen(mask, x.shape[1]))
        x = sublayer(x, "attention", norm_1, f, on[layer], post=True)
        x = sublayer(x, "mlp", norm_2, two_maps(*mlp, act), on[layer], post=True)
    return (x,)


def bert(model, given, on):
    def parts(block):
        s, o = block.attention.self, block.attention.output
        mlp = block.intermediate.dense, block.output.dense
        return (
            (s.query, s.key, s.value, o.dense),
            o.LayerNorm,
            mlp,
            block.output.LayerNorm,
            erf_gelu,
        )

    x, blocks = model.embeddings(input_ids=given["input_ids"]), map(parts, model.encoder.layer)
    return post_norm(x, given["attention_mask"], model.config.num_attention_heads, on, blocks)


def albert(model, given, on):
    block = model.encoder.albert_layer_groups[0].albert_layers[0]  # the same one in every layer
    a, mlp = block.attention, (block.ffn, block.ffn_output)
    parts = (
        (a.query, a.key, a.value, a.dense),
        a.LayerNorm,
        mlp,
        block.full_layer_layer_norm,
        tanh_gelu,
    )
    x = lin(model.embeddings(given["input_ids"]), model.encoder.embedding_hidden_mapping_in)
    return post_norm(
        x,
        given["attention_mask"],
        a.num_attention_heads,
        on,
        [parts] * model.config.num_hidden_layers,
    )


def distilbert(model, given, on):
    def parts(block):
        a, mlp = block.attention, (block.ffn.lin1, block.ffn.lin2)
        return (
            (a.q_lin, a.k_lin, a.v_lin, a.out_lin),
            block.sa_layer_norm,
            mlp,
            block.output_layer_norm,
            erf_gelu,
        )

    x, blocks = model.embeddings(given["input_ids"]), map(parts, model.transformer.layer)
    return post_norm(x, given["attention_mask"], model.config.n_heads, on, blocks)


def gpt2(model, given, on):
    ids, H = given["input_ids"], model.config.n_head
    x = tape.start(model.wte.weight[ids] + model.wpe.weight[: ids.shape[1]])
    allowed = seen(given["attention_mask"], ids.shape[1], causal=True)

    def attention(u, a):
        q, k, v = (by_head(part, H) for part in conv(u, a.c_attn).chunk(3, -1))
        return conv(attend(q, k, v, allowed, q.shape[-1] ** -0.5), a.c_proj)

    for now, block in switched(on, model.h):
        x = sublayer(x, "attention", block.ln_1, partial(attention, a=block.attn), now)
        x = sublayer(
            x, "mlp", block.ln_2, two_maps(block.mlp.c_fc, block.mlp.c_proj, tanh_gelu, conv), now
        )
    return (normed(x, model.ln_f),)


def vit(model, given, on):
    x, H = tape.start(model.embeddings(given["pixel_values"])), model.config.num_attention_heads
    for now, block in switched(on, model.layers):
        a, m = block.attention, block.mlp
        f = self_attention(a.q_proj, a.k_proj, a.v_proj, a.o_proj, H, torch.ones(1, 1, 1, 1))
        x = sublayer(x, "attention", block.layernorm_before, f, now)
        x = sublayer(x, "mlp", block.layernorm_after, two_maps(m.fc1, m.fc2, erf_gelu), now)
    return (normed(x, model.layernorm),)


def llama(model, given, on):
    ids, c = given["input_ids"], model.config
    x, angles = tape.start(model.embed_tokens.weight[ids]), angles_of(model, ids.shape[1])
    allowed = seen(given["attention_mask"], ids.shape[1], causal=True)

    def mlp(u, m):
        z = lin(u, m.gate_proj)
        return tape.weigh_mlp(lin(tape.hold(z * torch.sigmoid(z)) * lin(u, m.up_proj), m.down_proj))

    for now, block in switched(on, model.layers):
        a, H, G = block.self_attn, c.num_attention_heads, c.num_key_value_heads
        f = self_attention(a.q_proj, a.k_proj, a.v_proj, a.o_proj, H, allowed, G, angles)
        x = sublayer(x, "attention", block.input_layernorm, f, now)
        x = sublayer(x, "mlp", block.post_attention_layernorm, partial(mlp, m=block.mlp), now)
    return (normed(x, model.norm),)


def gpt_neox(model, given, on):
    ids, H = given["input_ids"], model.config.num_attention_heads
    x, angles = tape.start(model.embed_in.weight[ids]), angles_of(model, ids.shape[1])
    allowed = seen(given["attention_mask"], ids.shape[1], causal=True)

    def attention(u, a):
        # rows: heads × [q, k, v]
        q, k, v = lin(u, a.query_key_value).view(*u.shape[:2], H, 3, -1).permute(3, 0, 2, 1, 4)
        return lin(
            attend(turned(q, angles), turned(k, angles), v, allowed, q.shape[-1] ** -0.5), a.dense
        )

    for now, block in switched(on, model.layers):
        f, g = (
            partial(attention, a=block.attention),
            two_maps(block.mlp.dense_h_to_4h, block.mlp.dense_4h_to_h, erf_gelu),
        )
        norms = block.input_layernorm, block.post_attention_layernorm
        # one skip for both, kept while one of the branches that run has its own
        if model.config.use_parallel_residual:
            kept = (
                (now.attention and now.attention_skip)
                or (now.mlp and now.mlp_skip)
                or not (now.attention or now.mlp)
            )
            u, w = (normed(x, norm) if now.norm else x for norm in norms)
            x = x * kept + (f(u) if now.attention else 0) + (g(w) if now.mlp else 0)
        else:
            x = sublayer(sublayer(x, "attention", norms[0], f, now), "mlp", norms[1], g, now)
    return (normed(x, model.final_layer_norm),)


def bucket(distance, both_ways, buckets=32, far=128):
    """T5's bucket of key position minus query position."""
    side = 0
    if both_ways:
        buckets //= 2
        side = buckets if distance > 0 else 0
    n = abs(distance) if both_ways else max(-distance, 0)
    exact = buckets // 2
    if n < exact:
        return side + n
    return side + min(
        buckets - 1, exact + int(math.log(n / exact) / math.log(far / exact) * (buckets - exact))
    )


def t5_stack(stack, x, mask, on, source=None, source_mask=None):
    x, decodes, T, H = tape.start(x), source is not None, x.shape[1], stack.config.num_heads
    table = stack.block[0].layer[0].SelfAttention.relative_attention_bias.weight  # (32, H)
    index = torch.tensor([[bucket(j - i, not decodes) for j in range(T)] for i in range(T)])
    bias, allowed = table[index].permute(2, 0, 1), seen(mask, T, causal=decodes)

    def read(u, a):
        q, k, v = (
            by_head(lin(u, a.q), H),
            by_head(lin(source, a.k), H),
            by_head(lin(source, a.v), H),
        )
        return lin(attend(q, k, v, seen(source_mask, T), 1.0), a.o)

    for now, block in switched(on, stack.block):
        first, *middle, last = block.layer
        a, m = first.SelfAttention, last.DenseReluDense
        x = sublayer(
            x,
            "attention",
            first.layer_norm,
            self_attention(a.q, a.k, a.v, a.o, H, allowed, scale=1.0, bias=bias),
            now,
        )
        for cross in middle:
            x = sublayer(
                x, "attention", cross.layer_norm, partial(read, a=cross.EncDecAttention), now
            )
        x = sublayer(x, "mlp", last.layer_norm, two_maps(m.wi, m.wo, lambda z: z.clamp_min(0)), now)
    return normed(x, stack.final_layer_norm)


def t5(model, given, on):
    """The encoder's output, and that of the decoder that reads it."""
    mask, words = given["attention_mask"], model.shared.weight
    encoded = t5_stack(model.encoder, words[given["input_ids"]], mask, on)
    start = words[given["decoder_input_ids"]]
    return encoded, t5_stack(
        model.decoder, start, given["decoder_attention_mask"], on, encoded, mask
    )


FORWARDS = {
    "bert": bert,
    "albert": albert,
    "distilbert": distilbert,
    "gpt2": gpt2,
    "vit": vit,
    "llama": llama,
    "gpt_neox": gpt_neox,
    "gpt_neox-sequential": gpt_neox,
    "t5": t5,
}

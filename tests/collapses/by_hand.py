"""Forwards of nine transformers written out from their weights, with every part of a block on or
off.

Nothing of a model runs here but its embeddings: no block, attention, MLP or norm module is called.
A sublayer is

    y = N( [skip on, or the branch is off] · x  +  [the branch is on] · f(x) )

with N before f in pre-norm families; the norms of the embeddings and behind the last block always
stay.

`frozen` runs the same forwards on other streams with the patterns, norms and gates of a first run.
"""

import copy
import math
from dataclasses import dataclass
from functools import partial
from itertools import product

import torch
from torch.nn.functional import linear

from captures.families import FAMILIES, build

SWITCHES = ("attention_skip", "mlp_skip", "mlp", "norm", "attention")
COMBINATIONS = [dict(zip(SWITCHES, on)) for on in product((True, False), repeat=5)]


@dataclass(frozen=True)
class On:
    """The switches of every layer; a list of these has its own for each."""

    attention_skip: bool = True
    mlp_skip: bool = True
    mlp: bool = True
    norm: bool = True
    attention: bool = True

    def __getitem__(self, _layer):
        return self


class Tape:
    """Patterns, spreads of norms and gates of MLPs of a first run, which later runs use in place of
    their own.

    Later runs may start stack `stack` from another `stream`, and weigh heads (L, H) and MLPs.
    """

    def __init__(self, records=False):
        self.kept, self.starts, self.first, self.records = [], [], True, records

    def rewind(self, stack=0, stream=None, heads=None, mlp=1.0):
        self.queue, self.first, self.begun, self.attended = iter(self.kept), False, 0, 0
        self.stack, self.stream, self.heads, self.mlp = stack, stream, heads, mlp

    def hold(self, x):
        if self.records and self.first:
            self.kept.append(x)
        return x if self.first else next(self.queue)

    def start(self, x):
        if self.records and self.first:
            self.starts.append(x)
        if self.first:
            return x
        self.begun += 1
        return self.stream if self.begun - 1 == self.stack else x

    def weigh_heads(self, z):
        if self.first or self.heads is None:
            return z
        self.attended += 1
        return z * self.heads[self.attended - 1].view(1, -1, 1, 1)

    def weigh_mlp(self, y):
        return y if self.first else y * self.mlp


tape = Tape()


def lively(name, dtype=torch.float64, **settings):
    """A small model of the family with no weight at its neutral value: norms, scales and biases are
    random too.
    """
    cls, config = FAMILIES[name]
    if settings:
        config = copy.deepcopy(config)
        for key, value in settings.items():
            setattr(config, key, value)
        config._attn_implementation = "eager"
        model = cls(config).eval()
    else:
        model = build(name)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.normal_(0, 0.2)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    return model.to(dtype)


def in_dtype(given, dtype=torch.float64):
    return {
        key: x.to(dtype) if torch.is_tensor(x) and x.is_floating_point() else x
        for key, x in given.items()
    }


def lin(x, module):
    return linear(x, module.weight, module.bias)


def conv(x, module):
    """GPT-2's linear map, whose weight is stored as (in, out)."""
    return x @ module.weight + module.bias


def normed(x, module):
    """Layer norm, or an RMS norm where there is no bias."""
    bias, eps = (
        (module.bias, module.eps) if hasattr(module, "bias") else (0.0, module.variance_epsilon)
    )
    x = x - x.mean(-1, keepdim=True) if hasattr(module, "bias") else x
    return x / tape.hold((x.square().mean(-1, keepdim=True) + eps).sqrt()) * module.weight + bias


def tanh_gelu(z):
    return 0.5 * z * (1 + torch.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))


def erf_gelu(z):
    return 0.5 * z * (1 + torch.erf(z / math.sqrt(2)))


def by_head(x, heads):
    """(B, T, H·D) → (B, H, T, D)."""
    return x.view(*x.shape[:2], heads, -1).transpose(1, 2)


def attend(q, k, v, allowed, scale, bias=0.0):
    """(B, H, T, D) → (B, T, H·E); a query without any key gets zeros."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    e = torch.exp(q @ k.transpose(2, 3) * scale + bias) * allowed
    z = tape.weigh_heads(tape.hold(e / e.sum(-1, keepdim=True).clamp_min(1e-300)) @ v)
    return z.transpose(1, 2).flatten(2)


def seen(mask, length, causal=False):
    """Which keys a query may see, (B, 1, T, S)."""
    keys = mask.bool()[:, None, None, :]
    rows = torch.ones(length, mask.shape[1], dtype=torch.bool)
    return keys & (rows.tril() if causal else rows)


def turned(x, angles):
    """Rotate the first 2·F channels of x (B, H, T, D) in pairs (i, i+F) by angles (T, F)."""
    f = angles.shape[-1]
    a, b, rest = x[..., :f], x[..., f : 2 * f], x[..., 2 * f :]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)


def angles_of(model, length):
    """(T, F): position × the model's stored frequencies, which are rounded to float32 and so are
    taken as they are.
    """
    return torch.arange(length, dtype=torch.float64)[:, None] * model.rotary_emb.inv_freq.double()


def switched(on, blocks):
    return ((on[layer], block) for layer, block in enumerate(blocks))


def sublayer(x, kind, norm, f, on, post=False):
    """One branch beside its skip."""
    skip, runs = (on.mlp_skip, on.mlp) if kind == "mlp" else (on.attention_skip, on.attention)
    total = torch.zeros_like(x) if runs and not skip else x
    if runs:
        total = total + f(normed(x, norm) if on.norm and not post else x)
    return normed(total, norm) if on.norm and post else total


def self_attention(q, k, v, out, H, allowed, G=None, angles=None, scale=None, bias=0.0):
    """The body of a self-attention with maps of its own for queries, keys and values."""

    def f(u):
        heads = [by_head(lin(u, m), n) for m, n in ((q, H), (k, G or H), (v, G or H))]
        turn = (
            heads
            if angles is None
            else [turned(heads[0], angles), turned(heads[1], angles), heads[2]]
        )
        return lin(attend(*turn, allowed, scale or heads[0].shape[-1] ** -0.5, bias), out)

    return f


def two_maps(wide, narrow, act, apply=lin):
    """`φ(z) = z · (φ(z)/z)`, so that the gate can be held."""

    def f(u):
        z = apply(u, wide)
        return tape.weigh_mlp(apply(z * tape.hold(act(z) / z), narrow))

    return f


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


def model_of(kind):
    """The small model of a kind of FORWARDS, in float64."""
    name, _, form = kind.partition("-")
    return lively(name, use_parallel_residual=False) if form else lively(name)


@torch.no_grad()
def forward(kind, model, given, layers=None, **switches):
    """The outputs of all stacks, with the same switches in every layer or a list `layers` of
    `On`.
    """
    return FORWARDS[kind](model, given, layers or On(**switches))


@torch.no_grad()
def frozen(kind, model, given, stack=0):
    """The model's stream into a stack, and the frozen graph from any stream `y` to the stack's
    output.
    """
    mine = Tape(records=True)

    def run(**weights):
        global tape
        tape = mine
        try:
            if weights:
                tape.rewind(stack, **weights)
            return forward(kind, model, given)[stack]
        finally:
            tape = Tape()

    run()
    return mine.starts[stack], lambda y, heads=None, mlp=1.0: run(stream=y, heads=heads, mlp=mlp)


def outputs(out):
    """What a model gave, stack by stack, the encoder first."""
    if hasattr(out, "text_model_output"):
        return [out.text_model_output.last_hidden_state, out.vision_model_output.last_hidden_state]
    encoded = getattr(out, "encoder_last_hidden_state", None)
    return [out.last_hidden_state] if encoded is None else [encoded, out.last_hidden_state]


def masks(given):
    """Which tokens of each stack are no padding, or None."""
    names = [name for name in ("attention_mask", "decoder_attention_mask") if name in given]
    return [given[name].bool() for name in names] or [None]


def distance(ours, theirs, real=None):
    """‖ours − theirs‖ / ‖theirs‖ over real tokens."""
    if real is not None:
        ours, theirs = ours[real], theirs[real]
    return float((ours - theirs).norm() / theirs.norm().clamp_min(1e-30))

"""Weights by head, whichever way a family stores them.

The queries, keys, values and outputs that the model itself makes.
"""

import numpy as np
import pytest
import torch
from torch import nn

from captures.families import FAMILIES, inputs
from collapses.by_hand import distance, lively
from eigenlens import EigenlensError, capture
from eigenlens.anatomy import read_head_weights, read_stacks
from eigenlens.lab.model import Config, Transformer

NORMED = {"qwen3"}  # a norm of its own on queries and keys, behind the projections
ROTATED = {"modernbert", "gpt_neox", "llama", "mistral", "qwen2", "qwen3", "phi", "gemma2"}
READ = [name for name in FAMILIES if name != "gpt_oss"]


def attentions(model):
    """The attention modules of all blocks, with their output projections and kinds."""
    branches = [
        b
        for stack in read_stacks(model)
        for block in stack.blocks
        for stage in block.stages
        for b in stage.branches
    ]
    return [(b.linear.module, b.linear.output, b.kind) for b in branches if b.kind != "mlp"]


@torch.no_grad()
@pytest.mark.parametrize("name", READ)
def test_they_give_the_models_own_queries_keys_values_and_outputs(name):
    model, given = lively(name, torch.float32), inputs(name)
    given |= {"use_cache": False} if name in {"t5", "bart", "marian", "whisper"} else {}
    seen, hooks = {}, []

    def note(module, args, kwargs, out):
        seen.setdefault(id(module), (args, kwargs, out))

    for module, output, _ in attentions(model):
        hooks += [
            part.register_forward_hook(note, with_kwargs=True)
            for part in (module, output)
            if part is not None
        ]
    with capture(model) as calls:
        model(**given)
    for hook in hooks:
        hook.remove()
    projected = calls
    if name in ROTATED:
        with capture(model, before_rope=True) as projected:
            model(**given)
    by_name = dict(model.named_modules())
    assert len({call.name for call in calls}) == len(
        {id(module) for module, *_ in attentions(model)}
    )
    checked = 0
    for module, output, kind in attentions(model):
        call = next(call for call in calls if by_name[call.name] is module)
        before = next(call for call in projected if by_name[call.name] is module)
        args, kwargs, out = seen[id(module)]
        x = args[0] if args else kwargs["hidden_states"]
        source = x
        if kind == "cross":
            source = (
                kwargs["encoder_hidden_states"]
                if "encoder_hidden_states" in kwargs
                else kwargs["key_value_states"]
            )
        w = read_head_weights(module, call.heads, call.k.shape[1], output)
        if name not in NORMED:
            q = torch.einsum("btc,hcd->bhtd", x, w.query) + w.query_bias[:, None]
            k = torch.einsum("bsc,gcd->bgsd", source, w.key) + w.key_bias[:, None]
            assert distance(k, before.k) < 1e-5
            assert distance(q * scale_of(q, before), before.scaled_q) < 1e-5
        v = torch.einsum("bsc,gce->bgse", source, w.value) + w.value_bias[:, None]
        assert distance(v, call.v) < 1e-5
        z = call.pattern() @ call.values  # (B, H, T, E)
        out = out if output is None else seen[id(output)][2]
        own = out if torch.is_tensor(out) else out[0]
        ours = sum(z[:, h] @ w.output[h] for h in range(call.heads)) + w.output_bias
        if name == "albert":  # its attention module adds the skip and norms
            norm = module.LayerNorm
            ours = nn.functional.layer_norm(ours + x, (32,), norm.weight, norm.bias, norm.eps)
        assert distance(ours, own) < 1e-4
        checked += 1
    assert checked >= 1


def scale_of(q, call):
    """What the call's own scale is, up to a factor that the model puts into its queries."""
    ratio = (call.scaled_q * q).sum() / q.square().sum()
    assert 0 < ratio <= 1 + 1e-5
    return ratio


@torch.no_grad()
def test_products_of_a_head_are_numpy_products():
    model = lively("llama")
    w = read_head_weights(model.layers[0].self_attn, 4, 2)
    a = model.layers[0].self_attn
    Q, K, V, O = (m.weight.numpy() for m in (a.q_proj, a.k_proj, a.v_proj, a.o_proj))  # (out, in)
    assert (w.group, w.query.shape, w.key.shape, w.output.shape) == (
        2,
        (4, 32, 8),
        (2, 32, 8),
        (4, 8, 32),
    )
    for head in range(4):
        mine, shared = slice(8 * head, 8 * head + 8), slice(8 * (head // 2), 8 * (head // 2) + 8)
        np.testing.assert_allclose(w.qk(head).numpy(), Q[mine].T @ K[shared], atol=1e-12)
        np.testing.assert_allclose(w.vo(head).numpy(), V[shared].T @ O[:, mine].T, atol=1e-12)


@torch.no_grad()
@pytest.mark.parametrize("bias", [True, False])
def test_torchs_own_attention(bias):
    module, x = (
        nn.MultiheadAttention(12, 3, bias=bias, batch_first=True).eval(),
        torch.randn(2, 5, 12),
    )
    for parameter in module.parameters():
        parameter.normal_(0, 0.5)
    w = read_head_weights(module, 3, 3)
    q, k, v = (
        torch.einsum("btc,hcd->bhtd", x, m) + b[:, None]
        for m, b in ((w.query, w.query_bias), (w.key, w.key_bias), (w.value, w.value_bias))
    )
    z = (q @ k.transpose(2, 3) / 2).softmax(-1) @ v
    ours = torch.einsum("bhte,hec->btc", z, w.output) + w.output_bias
    assert distance(ours, module(x, x, x)[0]) < 1e-5


@torch.no_grad()
def test_the_labs_attention():
    model = Transformer(Config(vocabulary=11, length=9, width=16, layers=1, heads=2))
    attention, x = model.blocks[0].attention, torch.randn(2, 9, 16)
    for parameter in attention.parameters():
        parameter.normal_(0, 0.5)
    w = read_head_weights(attention, 2, 2)
    q, k, v = (
        torch.einsum("btc,hcd->bhtd", x, m) + b[:, None]
        for m, b in ((w.query, w.query_bias), (w.key, w.key_bias), (w.value, w.value_bias))
    )
    z = (q @ k.transpose(2, 3) / 8**0.5).softmax(-1) @ v
    assert distance(torch.einsum("bhte,hec->btc", z, w.output) + w.output_bias, attention(x)) < 1e-5


def test_biases_are_zero_where_there_are_none():
    w = read_head_weights(lively("llama").layers[0].self_attn, 4, 2)
    assert [tuple(b.shape) for b in (w.query_bias, w.key_bias, w.value_bias, w.output_bias)] == [
        (4, 8),
        (2, 8),
        (2, 8),
        (32,),
    ]
    assert not any(b.any() for b in (w.query_bias, w.key_bias, w.value_bias, w.output_bias))


def test_a_module_without_projections_is_named():
    with pytest.raises(
        EigenlensError, match="ReLU cannot be read: it has none of the projections query, q_proj"
    ):
        read_head_weights(nn.ReLU(), 2, 2)


def test_a_projection_that_is_no_matrix_is_named():
    module = nn.ModuleDict(
        {
            "query": nn.LayerNorm(4),
            "key": nn.Linear(4, 4),
            "value": nn.Linear(4, 4),
            "out": nn.Linear(4, 4),
        }
    )
    holder = nn.Module()
    for key, part in module.items():
        setattr(holder, key, part)
    with pytest.raises(EigenlensError, match="LayerNorm has no weight matrix"):
        read_head_weights(holder, 2, 2)


def projected(module, x, weights):
    """Queries, keys and values (B, heads, T, D) from the weights by head."""
    parts = (
        (weights.query, weights.query_bias),
        (weights.key, weights.key_bias),
        (weights.value, weights.value_bias),
    )
    return [torch.einsum("btc,hcd->bhtd", x, w) + b[:, None] for w, b in parts]


@torch.no_grad()
@pytest.mark.parametrize("shared", [True, False])
def test_gpt_bigcode_stores_one_matrix_in_two_orders(shared):
    """Multi-query: all queries, then one key and one value; otherwise head by head."""
    from transformers import GPTBigCodeConfig, GPTBigCodeModel

    sizes = {"n_embd": 32, "n_head": 4, "n_layer": 1, "n_positions": 16, "vocab_size": 20}
    model = GPTBigCodeModel(GPTBigCodeConfig(**sizes, multi_query=shared)).eval()
    for parameter in model.parameters():
        parameter.normal_(0, 0.3)
    module, given = model.h[0].attn, {}
    hook = module.register_forward_pre_hook(lambda _, args: given.setdefault("x", args[0]))
    with capture(model) as calls:
        model(torch.arange(6)[None])
    hook.remove()
    call = calls[0]
    weights = read_head_weights(module, 4, call.k.shape[1], module.c_proj)
    assert weights.group == (4 if shared else 1)
    for ours, theirs in zip(projected(module, given["x"], weights), (call.q, call.k, call.v)):
        assert distance(ours, theirs) < 1e-5


@torch.no_grad()
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_queries_that_share_a_key_may_stand_beside_it(kv_heads):
    """Falcon: key-value heads × [their queries, key, value]."""
    from transformers import FalconConfig
    from transformers.models.falcon.modeling_falcon import FalconAttention

    config = FalconConfig(
        hidden_size=32,
        num_attention_heads=4,
        num_kv_heads=kv_heads,
        num_hidden_layers=1,
        bias=True,
        new_decoder_architecture=kv_heads > 1,
        multi_query=kv_heads == 1,
    )
    module, x = FalconAttention(config, layer_idx=0), torch.randn(2, 5, 32)
    for parameter in module.parameters():
        parameter.normal_(0, 0.3)
    # (B, heads, T, D)
    theirs = [y.transpose(1, 2) for y in module._split_heads(module.query_key_value(x))]
    weights = read_head_weights(module, 4, kv_heads, module.dense)
    for at, ours in enumerate(projected(module, x, weights)):
        # Falcon repeats keys for their queries
        ours = ours.repeat_interleave(theirs[at].shape[1] // ours.shape[1], 1)
        assert distance(ours, theirs[at]) < 1e-5


def test_a_number_of_heads_that_does_not_fit_is_told():
    module = nn.Module()
    # 4 query heads share one key of width 8
    module.c_attn, module.c_proj = nn.Linear(32, 48), nn.Linear(32, 32)
    with pytest.raises(EigenlensError, match="do not fit 4 query and 4 key-value heads"):
        read_head_weights(module, 4, 4)
    with pytest.raises(
        EigenlensError, match="has 48 rows, which does not fit 3 query and 2 key-value heads"
    ):
        read_head_weights(module, 3, 2)
    assert read_head_weights(module, 4, 1).key.shape == (1, 32, 8)

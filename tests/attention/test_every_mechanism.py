"""Every mechanism that has a name: its fast form is its dense one, under every mask, at every
length, without a look ahead.
"""

import dataclasses

import pytest
import torch

from eigenlens import attention
from eigenlens.attention import Shape, make, mechanisms, register
from eigenlens.errors import EigenlensError
from tiny import small_bert, small_llama

B, H, D, C, LONGEST = 2, 4, 6, 10, 24
SMALL = {
    "linear": {"chunk": 4},
    "delta": {"chunk": 4},
    "gated-linear": {"chunk": 4},
    "gated-delta": {"chunk": 4},
    "fastmax": {"chunk": 4},
    "performer": {"features": 16, "chunk": 4},
    "conv": {"kernel": 5, "stride": 2},
    "linformer": {"size": 5},
    "nystrom": {"landmarks": 4},
    "uniform-keys": {"keys": 5},
    "feature-rank": {"rank": 3},
    "window": {"window": 5, "sinks": 2},
    "local": {"window": 3},
    "sinkhorn": {"iterations": 3},
    "gated": {"per": "head"},
}
"""Settings that let a short input cross the edges of chunks, windows and strides."""
NAMES = sorted(mechanisms())
CAUSAL = [name for name in NAMES if "causal" in mechanisms()[name].directions]
BOTH_WAYS = [name for name in NAMES if "both ways" in mechanisms()[name].directions]
DIRECTIONS = [(name, True) for name in CAUSAL] + [(name, False) for name in BOTH_WAYS]
PAIRS = [name for name in NAMES if mechanisms()[name].takes_pairs]
FREE = [name for name in NAMES if not mechanisms()[name].own_weights]


def made(name, length=LONGEST, dtype=torch.float32, heads=H):
    torch.manual_seed(7)
    mechanism = make(name, Shape(heads, D, C, length), **SMALL.get(name, {})).to(dtype)
    with torch.no_grad():
        for p in mechanism.parameters():
            p.add_(0.2 * torch.randn_like(p))
    return mechanism


def inputs(T=21, S=None, dtype=torch.float32, G=H, size=1.0):
    torch.manual_seed(3)
    S = T if S is None else S
    shapes = (B, H, T, D), (B, G, S, D), (B, G, S, D + 1), (B, T, C)
    return [(size * torch.randn(shape)).to(dtype).requires_grad_() for shape in shapes]


def cross(mechanism):
    """Whether it can attend from T tokens to S others: not where every token reads its own place,
    or looks around it.
    """
    return not mechanism.reads_stream and mechanism.name not in ("window", "local")


def padding(T, left=False):
    keys = torch.ones(B, T, dtype=torch.bool)
    gone = max(1, T // 3)
    if left:
        keys[0, :gone] = False
    else:
        keys[0, T - gone :] = False
    return keys


def assert_same(mechanism, q, k, v, x, rows=None, tolerance=1e-5, **terms):
    """Outputs of both forms and all their gradients, at queries that stand."""
    x = x if mechanism.reads_stream else None
    wanted = [q, k, v, *([x] if x is not None else []), *mechanism.parameters()]
    weight = torch.randn(*q.shape[:3], v.shape[3], dtype=q.dtype)
    weight = weight if rows is None else weight * rows[:, None, :, None]
    outs = [(form(q, k, v, x=x, **terms) * weight) for form in (mechanism, mechanism.reference)]
    torch.testing.assert_close(*outs, atol=tolerance, rtol=tolerance)
    found = [torch.autograd.grad(out.sum(), wanted, allow_unused=True) for out in outs]
    for at, left, right in zip(wanted, *found):
        left, right = (torch.zeros_like(at) if g is None else g for g in (left, right))
        assert torch.isfinite(left).all()
        size = float(right.abs().max().clamp_min(1.0))
        torch.testing.assert_close(left, right, atol=2 * tolerance * size, rtol=1e-4)


@pytest.mark.parametrize("T", [1, 2, 7, 16, 21])
@pytest.mark.parametrize(("name", "causal"), DIRECTIONS)
def test_the_fast_form_is_the_dense_one_with_its_gradients(name, causal, T):
    assert_same(made(name, T), *inputs(T), causal=causal)


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize(("name", "causal"), DIRECTIONS)
def test_padding_is_honoured_by_both_forms(name, causal, left):
    keys = padding(21, left)
    assert_same(made(name, 21), *inputs(21), rows=keys, causal=causal, keys=keys)


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize(("name", "causal"), DIRECTIONS)
def test_what_stands_at_padding_does_not_matter(name, causal, left):
    """An independent check of both forms: the keys, values and stream of padding are replaced by
    something else.
    """
    mechanism, keys = made(name, 21), padding(21, left)
    q, k, v, x = (t.detach() for t in inputs(21))
    given = {"causal": causal, "keys": keys, "x": x if mechanism.reads_stream else None}
    before = mechanism(q, k, v, **given)
    gone = ~keys[:, None, :, None]
    q, k, v = (torch.where(gone, torch.full_like(t, 3.0), t) for t in (q, k, v))
    if mechanism.reads_stream:
        given["x"] = torch.where(~keys[:, :, None], torch.full_like(x, 3.0), x)
    after = mechanism(q, k, v, **given)
    stands = keys[:, None, :, None].expand_as(before)
    torch.testing.assert_close(after[stands], before[stands], atol=1e-5, rtol=1e-5)
    assert torch.isfinite(after).all()


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("kind", ["window", "bias"])
@pytest.mark.parametrize("causal", [False, True])
def test_other_masks_of_pairs_are_honoured(name, kind, causal):
    if (causal and name not in CAUSAL) or (not causal and name not in BOTH_WAYS):
        pytest.skip("not in this direction")
    place = torch.arange(21)
    pairs = (
        ((place[:, None] - place).abs() <= 4)[None, None]
        if kind == "window"
        else torch.randn(1, H, 21, 21)
    )
    assert_same(made(name, 21), *inputs(21), causal=causal, pairs=pairs)
    if kind == "window":
        q, k, _, x = (t.detach() for t in inputs(21))
        A = made(name, 21).weights(q, k, causal=causal, pairs=pairs, x=x)
        assert float(A.masked_fill(pairs, 0.0).abs().max()) == 0.0


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(PAIRS)))
def test_masks_that_cannot_be_honoured_are_refused(name):
    q, k, v, x = inputs(8)
    pairs = torch.ones(1, 1, 8, 8, dtype=torch.bool).triu()
    with pytest.raises(EigenlensError, match=f"{name} knows causality and padding"):
        made(name, 8)(q, k, v, causal=name in CAUSAL, pairs=pairs, x=x)


@pytest.mark.parametrize(("name", "causal"), DIRECTIONS)
def test_shared_key_value_heads_are_repeated(name, causal):
    mechanism = made(name, 9)
    q, k, v, x = inputs(9, G=2)
    given = {"causal": causal, "x": x}
    repeated = mechanism(q, k[:, [0, 0, 1, 1]], v[:, [0, 0, 1, 1]], **given)
    torch.testing.assert_close(mechanism(q, k, v, **given), repeated)


@pytest.mark.parametrize("name", CAUSAL)
@pytest.mark.parametrize("at", [1, 8, 13, 20])
def test_no_earlier_output_moves_when_a_later_token_does(name, at):
    mechanism = made(name, 21)
    q, k, v, x = (t.detach() for t in inputs(21))
    before = mechanism(q, k, v, causal=True, x=x)
    for t in (q, k, v):
        t[:, :, at:] += 5 * torch.randn_like(t[:, :, at:])
    x[:, at:] += 5 * torch.randn_like(x[:, at:])
    after = mechanism(q, k, v, causal=True, x=x)
    assert float((after - before)[:, :, :at].abs().max()) < 1e-6
    assert float((after - before)[:, :, at:].abs().max()) > 1e-4


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(CAUSAL)))
def test_what_cannot_be_causal_says_so(name):
    q, k, v, x = inputs(8)
    with pytest.raises(EigenlensError, match=f"{name} .* cannot be causal"):
        made(name, 8)(q, k, v, causal=True, x=x)


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(BOTH_WAYS)))
def test_what_is_always_causal_says_so(name):
    q, k, v, x = inputs(8)
    with pytest.raises(EigenlensError, match=f"{name} .* cannot look both ways"):
        made(name, 8)(q, k, v, x=x)


@pytest.mark.parametrize("name", [name for name in CAUSAL if not mechanisms()[name].reads_stream])
@pytest.mark.parametrize("T", [1, 5])
def test_fewer_queries_than_keys_are_the_last_ones(name, T):
    """As in generation: the output of the last T tokens, whose keys and values are all that is left
    of the others.
    """
    mechanism = made(name, 13)
    q, k, v, _ = inputs(13)
    whole = mechanism(q, k, v, causal=True)[:, :, -T:]
    torch.testing.assert_close(
        mechanism(q[:, :, -T:], k, v, causal=True), whole, atol=1e-5, rtol=1e-5
    )
    assert_same(mechanism, q[:, :, -T:], k, v, None, causal=True)


@pytest.mark.parametrize("name", [name for name in BOTH_WAYS if cross(mechanisms()[name])])
@pytest.mark.parametrize(("T", "S"), [(5, 12), (12, 5)])
def test_queries_of_one_sequence_attend_to_another(name, T, S):
    assert_same(made(name, S), *inputs(T, S))


@pytest.mark.parametrize(("name", "causal"), DIRECTIONS)
def test_gradients_are_those_of_finite_differences(name, causal):
    mechanism = made(name, 5, torch.float64, heads=2)
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 5, D, dtype=torch.float64, requires_grad=True) for _ in range(3))
    x = torch.randn(1, 5, C, dtype=torch.float64, requires_grad=True)
    if mechanism.reads_stream:
        assert torch.autograd.gradcheck(
            lambda *t: mechanism(*t[:3], causal=causal, x=t[3]), (q, k, v, x)
        )
    else:
        assert torch.autograd.gradcheck(lambda *t: mechanism(*t, causal=causal), (q, k, v))


@pytest.mark.parametrize(("name", "causal"), DIRECTIONS)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_outputs_and_gradients_are_finite_at_logits_of_fifty(name, causal, sign):
    mechanism = made(name, 12)
    torch.manual_seed(1)
    direction = torch.randn(1, H, 1, D)
    direction /= direction.norm(dim=3, keepdim=True)
    strength = (50 * D**0.5) ** 0.5
    side = torch.randint(0, 2, (B, H, 12, 1)) * 2.0 - 1  # logits of +50 and −50 in one row
    q = (strength * direction.expand(B, H, 12, D)).clone().requires_grad_()
    k = (sign * strength * side * direction).requires_grad_()
    v, x = torch.randn(B, H, 12, D), torch.randn(B, 12, C)
    out = mechanism(q, k, v, causal=causal, x=x)
    out.square().sum().backward()
    assert (
        torch.isfinite(out).all()
        and torch.isfinite(mechanism.weights(q, k, causal=causal, x=x)).all()
    )
    assert all(
        t.grad is None or torch.isfinite(t.grad).all() for t in (q, k, *mechanism.parameters())
    )


@pytest.mark.slow
@pytest.mark.parametrize(("name", "causal"), DIRECTIONS)
def test_it_compiles_without_a_break(name, causal):
    mechanism = made(name, 21)
    q, k, v, x = inputs(21)
    torch._dynamo.reset()
    compiled = torch.compile(mechanism, backend="aot_eager", fullgraph=True)
    out = compiled(q, k, v, causal=causal, x=x)
    torch.testing.assert_close(out, mechanism(q, k, v, causal=causal, x=x), atol=1e-5, rtol=1e-5)
    out.sum().backward()
    assert q.grad is None or torch.isfinite(q.grad).all()


@pytest.mark.parametrize("name", NAMES)
def test_the_cost_grows_as_the_mechanism_says(name):
    mechanism = made(name, 8192)
    small, large = mechanism.cost(4096, 32), mechanism.cost(8192, 32)
    assert 0 < small < make("softmax").cost(4096, 32) * 2
    assert large <= 2.05 * small if mechanism.linear else large >= 3 * small


@pytest.mark.parametrize("name", NAMES)
def test_every_mechanism_says_its_formula_and_where_it_is_from(name):
    kind = mechanisms()[name]
    told = f"{kind.__doc__} {__import__(kind.__module__, fromlist=['x']).__doc__}"
    assert "`" in kind.__doc__ and "arXiv" in told
    assert dataclasses.is_dataclass(kind.Settings) and kind.Settings.__dataclass_params__.frozen


@pytest.mark.parametrize("name", FREE)
def test_without_weights_of_its_own_it_drops_into_models_of_transformers(name):
    """Padded inputs give what they give alone, in a decoder and in an encoder; or the model's kind
    is refused.
    """
    register(name, **SMALL.get(name, {}))
    for model, direction in ((small_llama(), "causal"), (small_bert(), "both ways")):
        model.set_attn_implementation(name)
        ids = torch.randint(1, 50, (2, 9))
        mask = torch.ones(2, 9, dtype=torch.long)
        mask[0, 6:] = 0
        if direction not in mechanisms()[name].directions:
            with pytest.raises(EigenlensError, match=name):
                model(ids)
            continue
        with torch.no_grad():
            both, short = model(ids, attention_mask=mask)[0], model(ids[:1, :6])[0]
        assert torch.isfinite(both).all()
        torch.testing.assert_close(both[:1, :6], short, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(FREE)))
def test_with_weights_of_its_own_it_is_refused_where_there_are_none(name):
    with pytest.raises(EigenlensError, match=f"{name} has weights of its own"):
        register(name)


def test_settings_and_names_that_do_not_exist_are_named():
    with pytest.raises(EigenlensError, match="no mechanism 'hardmax'; there are"):
        make("hardmax")
    with pytest.raises(EigenlensError, match="no setting 'temperature' of softmax; it has none"):
        make("softmax", temperature=2)
    assert attention.find("F") is attention.find("full") is mechanisms()["softmax"]


@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [("local", "window", "a"), ("local", "window", 1.5), ("fastmax", "p", True)],
)
def test_settings_of_another_type_are_refused(name, setting, value):
    with pytest.raises(
        EigenlensError, match=f"the setting {setting} of {name} is a whole number, not {value!r}"
    ):
        make(name, **{setting: value})


@pytest.mark.parametrize(("name", "causal"), DIRECTIONS)
@pytest.mark.parametrize(("batch", "T"), [(0, 5), (2, 0)])
def test_of_nothing_comes_nothing(name, causal, batch, T):
    q, k, v, x = (
        torch.zeros(batch, H, T, D),
        torch.zeros(batch, H, T, D),
        torch.zeros(batch, H, T, D + 1),
        torch.zeros(batch, T, C),
    )
    assert made(name)(q, k, v, causal=causal, x=x).shape == (batch, H, T, D + 1)


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        (
            {"keys": torch.ones(2, 7, dtype=torch.bool)},
            r"keys is true or false for each of \(2, 8\)",
        ),
        ({"keys": torch.ones(2, 8)}, "keys is true or false"),
        ({"pairs": torch.ones(8, 7, dtype=torch.bool)}, "is no mask or bias"),
        ({"pairs": torch.ones(1, 1, 8, 8, dtype=torch.long)}, "is no mask or bias"),
    ],
)
def test_masks_of_another_shape_or_kind_are_refused(terms, said):
    q, k, v, _ = inputs(8)
    with pytest.raises(EigenlensError, match=said):
        make("softmax")(q, k, v, **terms)


def test_tensors_that_do_not_fit_are_refused():
    q, k, v, x = inputs(8)
    with pytest.raises(EigenlensError, match="four axes"):
        make("softmax")(q[0], k[0], v[0])
    with pytest.raises(EigenlensError, match="made for 3 heads, and the queries have 4"):
        made("delta", heads=3)(q, k, v, causal=True, x=x)
    with pytest.raises(EigenlensError, match="made for a stream of width 10, not 9"):
        made("delta")(q, k, v, causal=True, x=x[..., :9])
    with pytest.raises(EigenlensError, match=r"of 2 × 8 tokens, not one of shape \(2, 7, 10\)"):
        made("delta")(q, k, v, causal=True, x=x[:, :7])
    triangle = torch.ones(8, 8, dtype=torch.bool).tril()
    torch.testing.assert_close(
        make("softmax")(q, k, v, pairs=triangle), make("softmax")(q, k, v, causal=True)
    )


@pytest.mark.parametrize("name", PAIRS)
def test_a_very_negative_bias_hides_a_pair_as_minus_infinity_does(name):
    """As masks of transformers are written, with positions' biases beside the least number there
    is.
    """
    mechanism = made(name, 8)
    q, k, v, x = inputs(8)
    hidden = torch.ones(8, 8, dtype=torch.bool).triu(1)
    bias = torch.randn(1, 1, 8, 8)
    outs = [
        mechanism(q, k, v, x=x, pairs=bias.masked_fill(hidden, never))
        for never in (torch.finfo(torch.float32).min, -1e4, -1e9, -torch.inf)
    ]
    for out in outs[:-1]:
        torch.testing.assert_close(out, outs[-1])

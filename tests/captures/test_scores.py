"""Scores: before and after the rotary embedding, caps, biases, sinks, and the form of the mask."""

import pytest
import torch

from captures.families import CAUSAL, ROTARY, build, inputs
from eigenlens import EigenlensError
from eigenlens.captures import AttentionCall, Site, capture


def calls_of(name, padding="none", **options):
    model, given = build(name), inputs(name, padding)
    with torch.no_grad(), capture(model, **options) as calls:
        model(**given)
    return model, calls


@pytest.mark.parametrize("name", sorted(ROTARY))
def test_before_rope_scores_at_equal_positions_are_unchanged(name):
    """A rotation of query i and key i by the same angle leaves their product.

    Other pairs do change.
    """
    torch.manual_seed(0)
    _, after = calls_of(name)
    torch.manual_seed(0)
    _, before = calls_of(name, before_rope=True)
    for a, b in zip(after, before):
        x, y = a.raw_scores(), b.raw_scores()
        torch.testing.assert_close(
            x.diagonal(dim1=2, dim2=3), y.diagonal(dim1=2, dim2=3), atol=1e-4, rtol=1e-4
        )
        assert (x - y).abs().max() > 1e-2


@torch.no_grad()
def test_before_rope_equals_the_projection_itself():
    model, given = build("llama"), inputs("llama")
    hidden = model(**given, output_hidden_states=True).hidden_states[0]
    layer = model.layers[0]
    q = layer.self_attn.q_proj(layer.input_layernorm(hidden)).view(3, 13, 4, 8).transpose(1, 2)
    with capture(model, before_rope=True) as calls:
        model(**given)
    torch.testing.assert_close(calls[0].q, q, atol=1e-5, rtol=1e-4)


def test_before_rope_of_a_model_without_rope_is_an_error():
    with pytest.raises(EigenlensError, match="no rotary embedding"):
        calls_of("bert", before_rope=True)


@torch.no_grad()
def test_t5_scores_hold_the_position_bias():
    model, calls = calls_of("t5")
    first = calls[0]
    bias = model.encoder.block[0].layer[0].SelfAttention.compute_bias(13, 13)
    torch.testing.assert_close(
        first.scores(), first.q @ first.k.transpose(2, 3) * first.scale + bias
    )


def test_gemma2_scores_are_capped_and_gpt_oss_rows_leave_room_for_the_sink():
    _, calls = calls_of("gemma2")
    assert all(call.raw_scores().abs().max() <= 2.0 for call in calls)
    _, calls = calls_of("gpt_oss")
    for call in calls:
        logits = torch.cat([call.scores(), call.sinks.reshape(1, -1, 1, 1).expand(3, 4, 13, 1)], -1)
        torch.testing.assert_close(call.pattern(), logits.softmax(-1)[..., :-1])
        assert (call.pattern().sum(-1) < 1).all()


@pytest.mark.parametrize(
    ("name", "padding", "forms"),
    [
        ("bert", "none", {"full"}),
        ("bert", "right", {"rectangle"}),
        ("llama", "none", {"causal"}),
        ("llama", "left", {"varied"}),
        ("mistral", "none", {"fixed"}),
        ("gemma2", "none", {"fixed", "causal"}),
        ("vit", "none", {"full"}),
    ],
)
def test_form_of_the_mask(name, padding, forms):
    _, calls = calls_of(name, padding)
    assert {call.mask_shape.form for call in calls} == forms


@pytest.mark.parametrize("name", sorted(CAUSAL - {"mistral", "gemma2", "gpt_oss"}))
def test_causal_scores_mark_the_future(name):
    _, calls = calls_of(name)
    for call in calls:
        future = torch.ones(13, 13).triu(1).bool()
        assert (call.scores()[..., future] == -torch.inf).all()
        assert call.scores()[..., ~future].isfinite().all()


def test_a_row_without_keys_has_a_zero_pattern():
    q = torch.randn(1, 1, 2, 4)
    mask = torch.tensor([[True, False], [False, False]])[None, None]
    call = AttentionCall(Site("self", 0), "self", "", q, q, q, 0.5, mask=mask)
    assert torch.equal(call.pattern()[0, 0], torch.tensor([[1.0, 0.0], [0.0, 0.0]]))

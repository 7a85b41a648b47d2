"""The captured pattern is the model's own: every family against its eager attention."""

import pytest
import torch

from captures.families import CAUSAL, FAMILIES, build, inputs
from eigenlens.captures import capture


def own_patterns(model, given):
    """The patterns that the model itself returns, in the order in which its layers attend."""
    out = model(**given, output_attentions=True)
    if hasattr(out, "text_model_output"):
        return [*out.vision_model_output.attentions, *out.text_model_output.attentions]
    if getattr(out, "attentions", None) is not None:
        return list(out.attentions)
    pairs = zip(out.decoder_attentions, out.cross_attentions)
    return [*out.encoder_attentions, *(pattern for pair in pairs for pattern in pair)]


CASES = [
    (name, padding)
    for name in FAMILIES
    for padding in ("none", "right", "left")
    if padding == "none" or ("input_ids" in inputs(name) and (padding == "right" or name in CAUSAL))
]


@torch.no_grad()
@pytest.mark.parametrize(("name", "padding"), CASES, ids=lambda x: x)
def test_pattern_equals_eager_attention(name, padding):
    model, given = build(name), inputs(name, padding)
    theirs = own_patterns(model, given)
    plain = model(**given)[0]
    with capture(model) as calls:
        out = model(**given)[0]
    assert len(calls) == len(theirs)
    assert len({call.site for call in calls}) == len(calls)
    for call, pattern in zip(calls, theirs):
        ours = call.pattern()
        # rows of padding have no pattern of their own
        valid = call.valid().any(-1).expand(ours.shape[:3])
        assert valid.any()
        torch.testing.assert_close(ours[valid], pattern[valid], atol=1e-5, rtol=0)
        assert not ours[~valid].any()
    if padding == "none":
        torch.testing.assert_close(out, plain, atol=1e-4, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("name", ["bert", "llama", "t5"])
def test_padded_queries_are_never_counted(name):
    model, given = build(name), inputs(name, "right")
    with capture(model) as calls:
        model(**given)
    for call in calls:
        side = "decoder_attention_mask" if "decoder" in call.site.stack else "attention_mask"
        real = given[side].bool()
        assert torch.equal(call.valid().any(-1)[:, 0].expand(real.shape), real)


@torch.no_grad()
def test_the_model_is_left_as_it_was():
    model, given = build("llama"), inputs("llama")
    before = model(**given)[0]
    with capture(model):
        model(**given)
    assert model.config._attn_implementation == "eager"
    assert torch.equal(model(**given)[0], before)


@torch.no_grad()
def test_another_model_of_the_same_config_is_not_captured():
    cls, config = FAMILIES["bert"]
    one, other = cls(config).eval(), cls(config).eval()
    given = inputs("bert", "right")
    alone = other(**given)[0]
    with capture(one) as calls:
        shared = other(**given)[0]
        one(**given)
    assert len(calls) == config.num_hidden_layers
    real = given["attention_mask"].bool()
    torch.testing.assert_close(shared[real], alone[real], atol=1e-5, rtol=1e-5)

"""Another attention in the place of the model's own, through both backends."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import eigenlens as el
from captures.families import build, inputs
from eigenlens.captures.transformers_backend import attention_function


class Plain(nn.Module):
    """A module of its own kind, that attends through torch."""

    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(50, 16), nn.Linear(16, 16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, ids):
        x = self.embed(ids)
        q = x.view(*x.shape[:2], 2, 8).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, q, q, is_causal=True).transpose(1, 2).flatten(2)
        return self.out(y) + self.attention(x, x, x)[0]


def exact(call):
    return call.pattern() @ call.values


@pytest.mark.parametrize("backend", ["transformers", "torch"])
def test_the_true_pattern_gives_the_model_back(backend):
    model = el.load("minilm").module if backend == "transformers" else Plain().eval()
    ids = torch.arange(3, 40)[None]
    with torch.no_grad():
        before = model(ids)
        with el.replace_attention(model, exact):
            during = model(ids)
    before, during = (
        x if isinstance(x, torch.Tensor) else x.last_hidden_state for x in (before, during)
    )
    torch.testing.assert_close(during, before, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("backend", ["transformers", "torch"])
def test_what_attend_returns_is_what_the_model_uses(backend):
    model = el.load("minilm").module if backend == "transformers" else Plain().eval()
    ids = torch.arange(3, 40)[None]
    shapes = []

    def nothing(call):
        shapes.append(call.q.shape)
        return torch.zeros_like(call.q)

    with torch.no_grad():
        before = model(ids)
        with el.replace_attention(model, nothing):
            during = model(ids)
        after = model(ids)
    before, during, after = (
        x if isinstance(x, torch.Tensor) else x.last_hidden_state for x in (before, during, after)
    )
    assert shapes and not torch.allclose(before, during, atol=1e-2)
    assert torch.equal(before, after)


def test_none_leaves_the_attention_as_it_is():
    model = el.load("minilm").module
    ids = torch.arange(3, 40)[None]
    with torch.no_grad():
        before = model(ids).last_hidden_state
        with el.replace_attention(model, lambda call: None):
            assert torch.equal(model(ids).last_hidden_state, before)


def test_a_capture_inside_sees_the_calls_of_the_changed_model():
    model = el.load("minilm").module
    ids = torch.arange(3, 40)[None]
    with (
        torch.no_grad(),
        el.replace_attention(model, lambda call: torch.zeros_like(call.q)),
        el.capture(model) as calls,
    ):
        model(ids)
    assert len(calls) == 6


def test_a_registered_mechanism_stays_with_the_model():
    model = el.load("minilm").module
    ids = torch.arange(3, 40)[None]
    seen = []

    def attend(call):
        seen.append(str(call.site))
        return exact(call)

    with torch.no_grad():
        before = model(ids).last_hidden_state
        el.attention.register("eigenlens-test", attention_function(model, attend))
        own = model.config._attn_implementation
        model.set_attn_implementation("eigenlens-test")
        for _ in range(2):
            torch.testing.assert_close(model(ids).last_hidden_state, before, atol=2e-5, rtol=1e-4)
        model.set_attn_implementation(own)
    assert seen == [f"encoder/{i}" for i in range(6)] * 2


def test_a_model_that_no_door_reaches_is_an_error():
    model = nn.Linear(2, 2)
    with pytest.raises(el.AttentionNotSeen), el.replace_attention(model, exact):
        model(torch.zeros(1, 2))


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss", "t5", "vit"])
def test_other_families_come_back_too(name):
    model, given = build(name), inputs(name)
    with torch.no_grad():
        before = model(**given)[0]
        with el.replace_attention(model, exact):
            torch.testing.assert_close(model(**given)[0], before, atol=2e-5, rtol=1e-4)

"""Mechanisms by name in transformers models."""

import pytest
import torch

from eigenlens.attention import register, registered
from eigenlens.errors import EigenlensError
from tiny import small_llama


@pytest.fixture
def model():
    return small_llama()


def test_a_registered_mechanism_gets_the_masks_of_sdpa(model):
    """Padding and causality reach it: the model's output does not change when it attends as sdpa does."""
    seen = []

    def mechanism(module, q, k, v, mask, scaling=None, dropout=0.0, **kw):
        seen.append(mask)
        out = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, mask, is_causal=mask is None, scale=scaling, enable_gqa=True
        )
        return out.transpose(1, 2), None

    register("test-mechanism", mechanism)
    assert registered()["test-mechanism"] is mechanism
    ids = torch.randint(0, 50, (2, 9))
    padding = torch.ones(2, 9, dtype=torch.long)
    padding[0, :4] = 0
    model.set_attn_implementation("sdpa")
    expected = model(ids, attention_mask=padding).logits, model(ids).logits
    model.set_attn_implementation("test-mechanism")
    with torch.no_grad():
        assert torch.allclose(model(ids, attention_mask=padding).logits[1], expected[0][1], atol=1e-5)
        assert torch.allclose(model(ids, attention_mask=padding).logits[0, 4:], expected[0][0, 4:], atol=1e-5)
        assert torch.allclose(model(ids).logits, expected[1], atol=1e-5)
    assert seen[0] is not None and seen[-1] is None


@pytest.mark.parametrize("name", ["sdpa", "eager", "flash_attention_2"])
def test_names_of_transformers_are_refused(name):
    with pytest.raises(EigenlensError, match=name):
        register(name, lambda *a, **k: (a[1], None))
    assert name not in registered()


def test_what_cannot_be_called_is_refused():
    with pytest.raises(EigenlensError, match="not callable"):
        register("nothing", None)

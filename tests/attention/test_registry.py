"""Mechanisms by name in transformers models."""

import pytest
import torch

from eigenlens.attention import (
    HeadMix,
    Mechanism,
    interface,
    make,
    mechanism,
    mechanisms,
    register,
    registered,
)
from eigenlens.errors import EigenlensError
from tiny import small_llama


@pytest.fixture
def model():
    return small_llama()


def test_a_registered_mechanism_gets_the_masks_of_sdpa(model):
    """Padding and causality reach it.

    The model's output does not change when it attends as sdpa does.
    """
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
        assert torch.allclose(
            model(ids, attention_mask=padding).logits[1], expected[0][1], atol=1e-5
        )
        assert torch.allclose(
            model(ids, attention_mask=padding).logits[0, 4:], expected[0][0, 4:], atol=1e-5
        )
        assert torch.allclose(model(ids).logits, expected[1], atol=1e-5)
    assert seen[0] is not None and seen[-1] is None


@pytest.mark.parametrize("name", ["sdpa", "eager", "flash_attention_2"])
def test_names_of_transformers_are_refused(name):
    with pytest.raises(EigenlensError, match=name):
        register(name, lambda *a, **k: (a[1], None))
    assert name not in registered()


def test_what_cannot_be_called_is_refused():
    with pytest.raises(EigenlensError, match="'nothing' is not callable: 3"):
        register("nothing", 3)
    with pytest.raises(EigenlensError, match=r"no mechanism 'nothing'; there are .*softmax"):
        register("nothing")
    with pytest.raises(
        EigenlensError, match="settings landmarks can only be given for a mechanism that is named"
    ):
        register("nothing", lambda *a, **k: (a[1], None), landmarks=3)


def test_a_name_or_letter_that_is_taken_is_refused():
    for name, letter in (("full", None), ("F", None), ("another", "F")):
        with pytest.raises(EigenlensError, match="there is already a mechanism called"):
            mechanism(name, letter=letter)(type("Other", (Mechanism,), {}))
    assert "another" not in mechanisms()
    with pytest.raises(EigenlensError, match=r"no mechanism .another."):
        make("another")


def test_a_known_mechanism_attends_in_a_model_with_its_settings(model):
    """One evenly spaced key of nine is the fifth.

    Every token gets its value, whatever the queries are.
    """
    with pytest.raises(EigenlensError, match=r"uniform-keys .* cannot be causal"):
        register("uniform-keys", keys=1)
        model.set_attn_implementation("uniform-keys")
        model(torch.randint(0, 50, (2, 9)))
    attend = interface(make("uniform-keys", keys=1))
    q, k, v = (torch.randn(2, 4, 9, 6) for _ in range(3))
    out, weights = attend(torch.nn.Module(), q, k, v, None, is_causal=False)
    torch.testing.assert_close(out, v[:, :, 4:5].expand_as(v).transpose(1, 2))
    assert weights is None
    with pytest.raises(
        EigenlensError, match="asks for softcap, which uniform-keys does not support"
    ):
        attend(torch.nn.Module(), q, k, v, None, softcap=3.0)


@pytest.mark.parametrize("name", ["softmax", "local", "linear", "spectral-gap-removal"])
@pytest.mark.parametrize("left", [False, True])
def test_generation_with_a_cache_is_that_without_one(model, name, left):
    """Token by token, the one query is the last token, whether or not the batch is padded."""
    register(name, **({"window": 3} if name == "local" else {}))
    model.set_attn_implementation(name)
    ids, mask = torch.randint(1, 50, (2, 9)), torch.ones(2, 9, dtype=torch.long)
    if left:
        mask[0, :3] = 0
    with torch.no_grad():
        whole = model(ids, attention_mask=mask).logits
        cache = model(ids[:, :6], attention_mask=mask[:, :6], use_cache=True).past_key_values
        for at in range(6, 9):
            step = model(
                ids[:, at : at + 1],
                attention_mask=mask[:, : at + 1],
                past_key_values=cache,
                use_cache=True,
            )
            torch.testing.assert_close(step.logits[:, 0], whole[:, at], atol=1e-5, rtol=1e-4)


def test_one_mechanism_under_several_names_with_several_settings(model):
    register("narrow", "local", window=1)
    register("mixed", HeadMix([(make("softmax"), 2), (make("local", window=1), 2)]))
    ids, found = torch.randint(1, 50, (1, 9)), {}
    for name in ("narrow", "mixed"):
        model.set_attn_implementation(name)
        found[name] = model(ids).logits
    assert not torch.allclose(found["narrow"], found["mixed"])
    with pytest.raises(EigenlensError, match="delta has weights of its own"):
        register("mine", "delta")

"""Every catalogue model, with its real weights: captured patterns are its own."""

import numpy as np
import pytest
import torch

from captures.test_patterns_of_families import own_patterns
from eigenlens import capture
from eigenlens.models.catalogue import MODELS
from tiny import of_catalogue

EXPECTED = {  # stacks, layers in each, heads
    "minilm": ({"encoder"}, 6, 12),
    "smollm2": ({"self"}, 30, 9),
    "stories15m": ({"self"}, 6, 6),
    "dinov2-small": ({"encoder"}, 12, 6),
    "flan-t5-small": ({"encoder", "decoder", "decoder.cross"}, 8, 6),
    "whisper-tiny-en": ({"encoder", "decoder", "decoder.cross"}, 4, 6),
    "distilbert-gec": ({"transformer"}, 6, 12),
}


def given(model):
    rng = np.random.default_rng(0)
    if model.kind == "vision":
        return {"pixel_values": torch.from_numpy(rng.normal(size=(1, 3, 112, 112))).float()}
    if model.kind == "audio":
        sound = np.sin(np.linspace(0, 9000, 16000 * 30)).astype(np.float32)
        features = model.processor(sound, sampling_rate=16000, return_tensors="pt")[
            "input_features"
        ]
        return {
            "input_features": features,
            "decoder_input_ids": torch.tensor([[50257, 50362, 314, 716, 257]]),
        }
    ids = torch.tensor(
        [
            model.tokenizer("The cat that I saw yesterday sat on the mat, and it was black.")[
                "input_ids"
            ]
        ]
    )
    return (
        {"input_ids": ids, "decoder_input_ids": ids[:, :9]}
        if model.kind == "encoder-decoder"
        else {"input_ids": ids}
    )


@torch.no_grad()
@pytest.mark.parametrize("name", MODELS)
def test_pattern_equals_the_models_own(name):
    model = of_catalogue(name)
    model.module.double()  # rounding of float32, through 30 layers, is not what is tested here
    inputs = {name: x.double() if x.is_floating_point() else x for name, x in given(model).items()}
    with capture(model.backbone) as calls:
        model.backbone(**inputs)
    model.backbone.set_attn_implementation("eager")
    theirs = own_patterns(model.backbone, inputs)
    stacks, layers, heads = EXPECTED[name]
    assert {call.site.stack for call in calls} == stacks
    assert all(
        {c.site.layer for c in calls if c.site.stack == stack} == set(range(layers))
        for stack in stacks
    )
    assert len(calls) == len(theirs)
    for call, pattern in zip(calls, theirs):
        assert call.heads == heads
        torch.testing.assert_close(call.pattern(), pattern, atol=1e-6, rtol=0)

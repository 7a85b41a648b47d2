"""Every method of explanation on every model of the catalogue, and on one token."""

import wave

import numpy as np
import pytest
import torch
from torch import nn

from eigenlens import load
from eigenlens.data.encode import encode
from eigenlens.explanations import METHODS, attribute, target_of
from eigenlens.explanations.propagation import (
    relevance_by_stream,
)
from explanations.loaded import catalogue
from tiny import small_bert


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Two pictures and a sound, made up."""
    from PIL import Image

    folder = tmp_path_factory.mktemp("files")
    rng = np.random.default_rng(0)
    for name in ("one", "two"):
        Image.fromarray(rng.integers(0, 255, (60, 80, 3), dtype=np.uint8)).save(
            folder / f"{name}.png"
        )
    with wave.open(str(folder / "tone.wav"), "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(16000)
        sound.writeframes((8000 * np.sin(np.arange(16000) * 0.17)).astype("<i2").tobytes())
    return folder


CASES = {
    "minilm": ("The cat sat on the mat.", {"against": "A kitten rests on a rug."}),
    "smollm2": ("The capital of France is", {"target": " Paris"}),
    "stories15m": ("Once upon a time", {}),
    "dinov2-small": ("one.png", {"against": "two.png"}),
    "flan-t5-small": ("translate English to German: The house is wonderful.", {}),
    "distilbert-gec": ("Their is a car.", {}),
    "whisper-tiny-en": ("tone.wav", {}),
}

FEWER = {  # 257 and 1,500 tokens take a while by the others
    "dinov2-small": ["relevance", "attention", "rollout", "TensorLens toward the target"],
    "whisper-tiny-en": ["relevance", "gradient × input"],
}


@pytest.mark.parametrize("name", CASES)
def test_every_model_of_the_catalogue(name, files):
    model = catalogue(name)
    given, settings = CASES[name]
    in_folder = lambda text: str(files / text) if (files / text).is_file() else text  # noqa: E731
    batch = encode(model, in_folder(given))
    target = target_of(model, batch, **{key: in_folder(value) for key, value in settings.items()})
    methods = FEWER.get(name, list(METHODS))
    found = attribute(model, batch, target, methods)
    assert not found.notes and list(found) == methods
    tokens = {"dinov2-small": 257, "whisper-tiny-en": 1500}.get(name) or batch["input_ids"].shape[1]
    assert all(
        scores.shape == (1, tokens) and bool(torch.isfinite(scores).all())
        for scores in found.values()
    )
    assert bool((found["relevance"] >= 0).all()) and float(found["relevance"].sum()) > 0
    own = relevance_by_stream(found.observed)
    assert len(own) == (2 if name in {"flan-t5-small", "whisper-tiny-en"} else 1)


@pytest.mark.parametrize("kind", ["encoder", "module"])
def test_one_token(kind):
    if kind == "encoder":
        model, batch = load(small_bert()), {"input_ids": torch.tensor([[7]])}
    else:
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        model = load(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval())
        batch = {"x": torch.randn(1, 1, 8)}
    found = attribute(model, batch, target_of(model, batch, target="output"))
    assert all(
        scores.shape == (1, 1) and bool(torch.isfinite(scores).all()) for scores in found.values()
    )
    assert len(found) == (10 if kind == "encoder" else 7) and len(found.notes) == (kind == "module")

"""Every diagnostic on every model of the catalogue."""

import math

import numpy as np
import pytest

from eigenlens import study
from studies.diagnostic_runner.small import finite
from tiny import of_catalogue


@pytest.mark.parametrize(
    "name",
    [
        "minilm",
        "smollm2",
        "stories15m",
        "dinov2-small",
        "flan-t5-small",
        "whisper-tiny-en",
        "distilbert-gec",
    ],
)
def test_every_model_of_the_catalogue(name, tmp_path):
    model = of_catalogue(name)
    given = {"max_length": 32}
    sound = None
    if name == "whisper-tiny-en":
        sound = _sound(tmp_path / "a.wav")
    made = study(
        model,
        sound,
        max_inputs=3,
        depth_every=3,
        diagnostics_every=3,
        only=["diagnostics", "depth"],
        **({} if name == "dinov2-small" else given),
    )
    record = finite(made.record())
    reads_tokens, gated = (
        model.kind not in {"vision", "audio"},
        name in {"smollm2", "stories15m", "flan-t5-small"},
    )
    for finding in made.diagnostics.values():
        expected = {"induction": reads_tokens, "amplifier": gated}.get(finding.name, True)
        assert finding.applies == expected, (finding.name, finding.note)
        assert bool(finding.note) != expected
        assert all(math.isfinite(number.mean) for number in finding.numbers)
    assert len(record["heads"]) == sum(site.heads for site in made.sites.values())


def _sound(path):
    import wave

    rate = 16_000
    t = np.arange(91 * rate) / rate
    tone = 0.3 * np.sin(2 * np.pi * (200 + 50 * np.sin(2 * np.pi * 0.5 * t)) * t)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((tone * 32767).astype(np.int16).tobytes())
    return path

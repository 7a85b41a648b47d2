"""Recordings become inputs: clips with transcripts."""

import wave

import numpy as np
import pytest

from data.prepared import everything, make
from eigenlens.data.split import FIT
from eigenlens.errors import EigenlensError
from eigenlens.models.load import load


@pytest.fixture(scope="module")
def whisper():
    return load("whisper-tiny-en")


def record(path, samples, rate=16_000, channels=1):
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((np.repeat(samples, channels) * 32767).astype("<i2").tobytes())


def test_recordings_become_clips_with_transcripts(whisper, tmp_path):
    """Tones of known pitch, at two rates, in mono and stereo: the clip holds the pitch, and the
    decoder gets tokens.
    """
    folder = tmp_path / "sounds"
    folder.mkdir()
    pitches = [300, 600, 900, 1200]
    for i, pitch in enumerate(pitches):
        rate = [16_000, 22_050][i % 2]
        record(
            folder / f"{i}.wav",
            0.5 * np.sin(2 * np.pi * pitch * np.arange(rate) / rate),
            rate,
            1 + i // 2,
        )
    inputs = make(whisper, folder, tmp_path / "w", max_length=6, max_inputs=4)
    batch = everything(inputs)
    assert batch["input_features"].shape == (4, whisper.module.config.num_mel_bins, 3000)
    assert batch["decoder_input_ids"].shape == (4, 6)
    assert (batch["decoder_input_ids"][:, 0] == whisper.module.config.decoder_start_token_id).all()
    assert (batch["decoder_attention_mask"].sum(1) >= 2).all()
    assert set(inputs.buckets.tolist()) == {FIT, 0}
    # half a second in: the mel band of the tone
    loudest = batch["input_features"][:, :, 50].argmax(1)
    assert (loudest.diff() > 0).all()


def test_no_more_recordings_are_read_than_wanted(whisper, tmp_path):
    """The fifth file is no recording; with four inputs it is not needed."""
    for i in range(4):
        record(tmp_path / f"{i}.wav", np.zeros(1600))
    (tmp_path / "5.wav").write_text("not a recording")
    inputs = make(whisper, tmp_path, tmp_path / "w", max_length=4, max_inputs=4)
    assert len(inputs.buckets) == 4


def test_what_is_no_recording_is_refused(whisper, tmp_path):
    (tmp_path / "a.wav").write_text("not a recording")
    with pytest.raises(EigenlensError, match=r"a\.wav cannot be read as a \.wav file"):
        make(whisper, tmp_path / "a.wav", tmp_path / "w", max_length=8, max_inputs=4)
    record(tmp_path / "b.wav", np.zeros(1600), channels=2)
    (tmp_path / "b.wav").write_bytes((tmp_path / "b.wav").read_bytes()[:-3])
    with pytest.raises(EigenlensError, match=r"s are too few|cannot be read as a \.wav file"):
        make(whisper, tmp_path / "b.wav", tmp_path / "w", max_length=8, max_inputs=4)
    with pytest.raises(EigenlensError, match="no such data"):
        make(whisper, tmp_path / "nowhere.wav", tmp_path / "w", max_length=8, max_inputs=4)

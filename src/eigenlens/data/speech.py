"""Recordings as inputs of speech models."""

from __future__ import annotations

import hashlib
import wave
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import EigenlensError
from ..models.load import Model
from .split import Split

RATE = 16_000
SECONDS = 30


@dataclass
class Clips:
    """Clips of 30 seconds, and the model's own transcripts, which its decoder then reads."""

    model: Model
    sounds: np.ndarray  # (N, RATE · SECONDS) float32
    ids: np.ndarray  # (N, length) decoder tokens
    lengths: np.ndarray
    buckets: np.ndarray
    documents: np.ndarray

    def fingerprint(self) -> str:
        """Return a digest that tells other sounds or transcripts apart."""
        parts = (self.sounds, self.ids, self.lengths, self.buckets, self.documents)
        return hashlib.sha256(
            b"".join(np.ascontiguousarray(part).tobytes() for part in parts)
        ).hexdigest()[:16]

    def batch(self, rows: np.ndarray) -> dict[str, Tensor]:
        device = self.model.device
        ids = torch.from_numpy(self.ids[rows]).to(device)
        mask = (
            torch.arange(ids.shape[1], device=device)[None]
            < torch.from_numpy(self.lengths[rows]).to(device)[:, None]
        )
        features = _features(self.model, self.sounds[rows])
        return {
            "input_features": features,
            "decoder_input_ids": ids,
            "decoder_attention_mask": mask.long(),
        }


def _features(model: Model, sounds: np.ndarray) -> Tensor:
    made = model.processor(list(sounds), sampling_rate=RATE, return_tensors="pt")
    return made["input_features"].to(model.device)


def clips(
    model: Model, data: Sequence[str], length: int, split: Split, folder: Path, resume: bool
) -> Clips:
    """Cut recordings into clips.

    A document is a recording, or a clip if there are fewer than ten recordings.
    """
    files = _files(data)
    sounds: list[np.ndarray] = []
    documents: list[int] = []
    for number, clip in islice(
        ((n, clip) for n, file in enumerate(files) for clip in _clips_of(file)), split.inputs
    ):
        documents.append(number if len(files) >= 10 else len(documents))
        sounds.append(clip)
    buckets, kept = [], []
    for index, document in enumerate(documents):
        bucket = split.bucket(document)
        if bucket is not None:
            buckets.append(bucket)
            kept.append(index)
            split.made[bucket] += 1
    if not kept or (any(split.least) and (len(kept) < 3 or len(set(buckets)) < 2)):
        raise EigenlensError(
            f"{len(documents)} clip(s) of {SECONDS} s are too few: a study needs at least 3"
        )
    chosen = np.stack([sounds[i] for i in kept])
    spool = folder / "transcripts.npy"
    if resume and spool.is_file():
        stored = np.load(spool, allow_pickle=False)
    else:
        stored = _transcribe(model, chosen, length)
        np.save(spool, stored)
    return Clips(
        model, chosen, stored[:, 1:], stored[:, 0], np.array(buckets), np.array(documents)[kept]
    )


def first_clips(model: Model, files: Sequence[str]) -> Tensor:
    """Return the features of the first 30 seconds of every recording, (B, mel bins, frames)."""
    sounds = [sound for file in _files(files) for sound in islice(_clips_of(file), 1)]
    if len(sounds) < len(files):
        raise EigenlensError(f"{', '.join(files)}: a recording contains no sound")
    return _features(model, np.stack(sounds))


@torch.no_grad()
def _transcribe(model: Model, sounds: np.ndarray, length: int) -> np.ndarray:
    """Return greedy transcripts, (N, 1 + length): how many tokens, then the tokens, padded."""
    rows = []
    pad = model.config.pad_token_id or 0
    for sound in sounds:
        generate: Any = model.module.generate
        ids = generate(_features(model, sound[None]), max_new_tokens=length - 2, do_sample=False)
        tokens = [model.config.decoder_start_token_id, *ids[0].tolist()]
        tokens = tokens[1:] if len(tokens) > 1 and tokens[0] == tokens[1] else tokens
        tokens = tokens[:length]
        rows.append([len(tokens), *tokens, *[pad] * (length - len(tokens))])
    return np.array(rows, dtype=np.int64)


def _files(data: Sequence[str]) -> list[Path]:
    files: list[Path] = []
    for item in map(Path, data):
        found = sorted(item.rglob("*.wav")) if item.is_dir() else [item]
        if not found or not found[0].is_file():
            raise EigenlensError(
                f"no such data: {item} is not a .wav file and not a folder of them"
            )
        files += found
    return files


def _clips_of(file: Path) -> Iterator[np.ndarray]:
    from scipy.signal import resample_poly

    try:
        with wave.open(str(file)) as sound:
            width, channels, rate = sound.getsampwidth(), sound.getnchannels(), sound.getframerate()
            if width != 2:
                raise EigenlensError(f"{file} has {8 * width} bits per sample; 16 are needed")
            while len(frames := sound.readframes(rate * SECONDS)) >= 2 * channels:
                # a file cut short ends inside a sample
                frames = frames[: len(frames) // (2 * channels) * 2 * channels]
                samples = (
                    np.frombuffer(frames, "<i2").reshape(-1, channels).mean(1).astype(np.float32)
                    / 32768
                )
                samples = resample_poly(samples, RATE, rate)[: RATE * SECONDS].astype(np.float32)
                yield np.pad(samples, (0, RATE * SECONDS - len(samples)))
    except (wave.Error, EOFError, OSError) as error:
        raise EigenlensError(f"{file} cannot be read as a .wav file: {error}") from error

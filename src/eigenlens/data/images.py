"""Pictures as inputs of vision models."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..errors import EigenlensError
from ..extras import needs
from ..models.load import Model
from ..names import did_you_mean
from . import datasets
from .split import FIT, Split

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif"}
NAMED = [name for name, data in datasets.DATASETS.items() if data.kind == "images"]
DEFAULT_SIZE = 224


@dataclass
class Crops:
    """Square crops of pictures, resized and normalised for a model when a batch needs them."""

    model: Model
    pictures: list[np.ndarray]  # uint8, (h, w) or (h, w, 3)
    chosen: list[tuple[int, tuple[int, int, int]]]  # per input: picture, (left, top, side)
    buckets: np.ndarray
    documents: np.ndarray
    size: int
    tokens: int

    def fingerprint(self) -> str:
        """Return a digest that tells other pictures, or other parts of them, apart."""
        digest = hashlib.sha256(
            repr((self.chosen, self.size, self.buckets.tolist(), self.documents.tolist())).encode()
        )
        for picture in self.pictures:
            digest.update(repr(picture.shape).encode() + np.ascontiguousarray(picture).tobytes())
        return digest.hexdigest()[:16]

    def batch(self, rows: np.ndarray) -> dict[str, Tensor]:
        needs("PIL", what="reading pictures")
        from PIL import Image

        processor = self.model.processor
        mean = torch.tensor(getattr(processor, "image_mean", None) or [0.5] * 3)[:, None, None]
        spread = torch.tensor(getattr(processor, "image_std", None) or [0.5] * 3)[:, None, None]
        made = []
        for row in rows:
            picture, (left, top, side) = self.chosen[row]
            image = (
                Image.fromarray(self.pictures[picture])
                .convert("RGB")
                .crop((left, top, left + side, top + side))
            )
            pixels = (
                np.asarray(
                    image.resize((self.size, self.size), Image.Resampling.BICUBIC), np.float32
                )
                / 255
            )
            made.append((torch.from_numpy(pixels).permute(2, 0, 1) - mean) / spread)
        batch = {"pixel_values": torch.stack(made).to(self.model.device)}  # (B, 3, size, size)
        native = getattr(self.model.config, "image_size", self.size)
        if self.size != native and getattr(self.model.config, "model_type", "") in {"vit", "deit"}:
            batch["interpolate_pos_encoding"] = True  # type: ignore[assignment]
        return batch


def crops(
    model: Model, data: Sequence[str], length: int | None, split: Split, rng: random.Random
) -> Crops:
    """Choose `split.inputs` crops.

    A document is a picture; if there are fewer pictures than inputs, each gives several crops.

    `length` counts tokens and so sets the size of the crops: patches plus the tokens before them.
    """
    size, tokens = _geometry(model, length)
    pictures = list(islice(_pictures(data), split.inputs))
    if not pictures or (any(split.least) and len(pictures) < 2):
        raise EigenlensError(
            f"{', '.join(data)} holds {len(pictures)} picture(s); a study needs at least 2, one of"
            " them to hold out"
        )
    rng.shuffle(pictures)
    held = (
        min(max(round(len(pictures) * split.held_out), 1), len(pictures) - 1)
        if split.held_out
        else 0
    )
    split = replace(split, groups=min(split.groups, held), held_out=split.held_out if held else 0.0)
    groups = len(split.quota) - 1
    chosen, buckets, documents = [], [], []
    for bucket, quota in split.quota.items():
        members = range(held, len(pictures)) if bucket == FIT else range(bucket, held, groups)
        for turn in range(quota):
            document = members[turn % len(members)]
            chosen.append((document, _square(pictures[document], quota > len(members), rng)))
            buckets.append(bucket)
            documents.append(document)
    return Crops(model, pictures, chosen, np.array(buckets), np.array(documents), size, tokens)


def load_batch(model: Model, files: Sequence[str]) -> dict[str, Tensor]:
    """Return the middle square of every picture as a batch, at the size that a study uses."""
    pictures = list(_pictures(files))
    size, tokens = _geometry(model, None)
    chosen = [(i, _square(picture, False, random.Random(0))) for i, picture in enumerate(pictures)]
    rows = np.arange(len(pictures))
    return Crops(model, pictures, chosen, np.full(len(rows), FIT), rows, size, tokens).batch(rows)


def _square(picture: np.ndarray, several: bool, rng: random.Random) -> tuple[int, int, int]:
    """Return (left, top, side) of a square of a picture.

    The middle of a picture that is used once, else a random square of at least a quarter of its
    area.
    """
    height, width = picture.shape[:2]
    short = min(height, width)
    if not several:
        return (width - short) // 2, (height - short) // 2, short
    side = rng.randint(max(short // 2, 1), short)
    return rng.randint(0, width - side), rng.randint(0, height - side), side


def _geometry(model: Model, length: int | None) -> tuple[int, int]:
    config = model.config
    patch, front = int(getattr(config, "patch_size", 16)), tokens_before_patches(model)
    native = int(config.image_size)
    size = min(native, DEFAULT_SIZE)
    if length is not None:
        side = math.isqrt(max(length - front, 0))
        size = side * patch
        if side < 1 or side * side + front != length:
            near = [n * n + front for n in (max(side, 1), side + 1)]
            raise EigenlensError(
                f"{length} tokens do not form a square of patches of {patch} pixels for"
                f" {model.name}; the nearest numbers that do are {near[0]} and {near[1]}"
            )
        if size > native and not _interpolates(model):
            raise EigenlensError(
                f"a length of {length} tokens is over the maximum of {model.name},"
                f" {(native // patch) ** 2 + front} tokens"
            )
    return size, (size // patch) ** 2 + front


def tokens_before_patches(model: Model) -> int:
    """How many tokens of a vision model stand before those of the picture."""
    config = model.config
    registers = int(getattr(config, "num_register_tokens", 0) or 0)
    return 1 + registers + (getattr(config, "model_type", "") == "deit")


def _interpolates(model: Model) -> bool:
    """Whether a model stretches its position embeddings to pictures larger than its own size."""
    return any(hasattr(module, "interpolate_pos_encoding") for module in model.module.modules())


def _pictures(data: Sequence[str]) -> Iterator[np.ndarray]:
    needs("PIL", what="reading pictures")
    from PIL import Image, UnidentifiedImageError

    for item in map(str, data):
        path = Path(item)
        if item in NAMED:
            yield from (picture for picture, _ in datasets.images(item))
            continue
        if path.is_dir():
            files = [p for p in sorted(path.rglob("*")) if p.suffix.lower() in SUFFIXES]
        elif path.is_file():
            files = [path]
        else:
            raise EigenlensError(
                f"no such data: {item!r}{did_you_mean(item, NAMED)} is not a picture, a folder or a"
                f" named set ({', '.join(NAMED)})"
            )
        for file in files:
            try:
                with Image.open(file) as picture:
                    yield np.asarray(picture.convert("RGB"))
            except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as error:
                raise EigenlensError(f"{file} cannot be read as a picture: {error}") from error

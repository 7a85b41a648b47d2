"""Labelled inputs for a classifier.

They are reviews that people found good or bad, and pictures of ten kinds of clothing.

Both come in two parts, one to learn from and one to ask about. Snippets of one film or product
stand together in the data, so whole runs of them go to one part or the other: no film is learned
from and asked about, but for those at the ends of runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...data.datasets import Review, images, reviews
from ...errors import EigenlensError
from ...extras import needs
from ...models.load import Model

CLEAR = 1.0
"""Reviews with a mean rating nearer to 0 than this are left out.

Ratings go from −4 to 4; such reviews are neither for nor against.
"""
RUN = 50
SENTIMENT = ("negative", "positive")


@dataclass(frozen=True, eq=False)
class Labelled:
    """Inputs as a model takes them, labels (N,), and the tokens (N, T) never removed.

    Inputs are tensors with N inputs in front.
    """

    batch: dict[str, Tensor]
    labels: Tensor
    keep: Tensor
    texts: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)

    def parts(self, size: int) -> Iterator[Labelled]:
        """Batches of `size` inputs; texts without the columns that hold only padding."""
        for rows in torch.arange(len(self)).split(size):
            part = {name: x[rows] for name, x in self.batch.items()}
            keep = self.keep[rows]
            if "attention_mask" in part:
                width = int(part["attention_mask"].sum(1).max())
                part, keep = {name: x[:, :width] for name, x in part.items()}, keep[:, :width]
            yield Labelled(
                part,
                self.labels[rows],
                keep,
                tuple(self.texts[int(row)] for row in rows) if self.texts else (),
            )


def labelled_reviews(
    model: Model, learned: int, asked: int, *, length: int = 64, least: int = 12, seed: int = 0
) -> tuple[Labelled, Labelled]:
    """Movie and product reviews with label 1 for a positive mean rating, 0 for a negative one.

    The neutral middle is dropped.

    There are as many of the one as of the other. Those asked about have `least` … `length` tokens,
    special ones included; those learned from are cut at `length`.
    """
    found = [review for review in reviews() if review.kind in ("movie", "product")]
    sides = _sides(len(found), seed)
    order = np.random.default_rng(seed).permutation(len(found))
    clear = [(found[i], sides[i]) for i in order if abs(found[i].score) >= CLEAR]
    learn = _balanced((review for review, side in clear if side == 0), learned)
    fits = (
        review for review, side in clear if side == 1 and least <= _tokens(model, review) <= length
    )
    ask = _balanced(fits, asked)
    if len(learn) < learned or len(ask) < asked:
        raise EigenlensError(
            f"there are {len(learn)} reviews of these lengths to learn from and {len(ask)} to ask"
            f" about, not {learned} and {asked}"
        )
    return _reviews(model, learn, length), _reviews(model, ask, length)


def _balanced(found: Iterator[Review], number: int) -> list[Review]:
    """The first `number` of them, as many for as against, in their order."""
    room, chosen = [number // 2, number - number // 2], []
    for review in found:
        if room[review.score > 0]:
            room[review.score > 0] -= 1
            chosen.append(review)
        if not any(room):
            break
    return chosen


def _sides(number: int, seed: int) -> np.ndarray:
    """0 to learn from, 1 to ask about, for every snippet.

    A third of the runs of `RUN` is asked about.
    """
    runs = np.random.default_rng(seed + 1).permutation(-(-number // RUN)) % 3 == 0
    return runs.repeat(RUN)[:number].astype(int)


def _tokens(model: Model, review: Review) -> int:
    return len(model.tokenizer(review.text)["input_ids"])


def _reviews(model: Model, chosen: Sequence[Review], length: int) -> Labelled:
    labels = torch.tensor([int(review.score > 0) for review in chosen])
    texts = [review.text for review in chosen]
    return Labelled(*_encoded(model, texts, length, labels), tuple(texts))


def _encoded(
    model: Model, texts: Sequence[str], length: int, labels: Tensor
) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    given = model.tokenizer(
        list(texts), return_tensors="pt", truncation=True, max_length=length, padding=True
    )
    batch = {name: given[name].to(model.device) for name in ("input_ids", "attention_mask")}
    special = torch.tensor(model.tokenizer.all_special_ids, device=model.device)
    return batch, labels.to(model.device), torch.isin(batch["input_ids"], special)


def labelled_pictures(
    model: Model,
    learned: int,
    asked: int,
    *,
    patches: int = 7,
    name: str = "fashion-mnist",
    seed: int = 0,
) -> tuple[Labelled, Labelled]:
    """Pictures of `patches` × `patches` patches.

    The first part of the data is learned from, its last part is asked about.

    Token 0 is the class token, which stays: `keep` (N, 1 + patches²).
    """
    found: Any = list(images(name))
    # as the sets are cut
    ends = (60_000, len(found)) if name == "fashion-mnist" else (2 * len(found) // 3, len(found))
    rng = np.random.default_rng(seed)
    chosen = (
        rng.permutation(ends[0])[:learned],
        ends[0] + rng.permutation(ends[1] - ends[0])[:asked],
    )
    if len(chosen[0]) < learned or len(chosen[1]) < asked:
        raise EigenlensError(
            f"{name} has {ends[0]} pictures to learn from and {ends[1] - ends[0]} to ask about,"
            f" not {learned} and {asked}"
        )
    learn, ask = (_pictures(model, [found[i] for i in rows], patches) for rows in chosen)
    return learn, ask


def _pictures(model: Model, chosen: Sequence[tuple[np.ndarray, Any]], patches: int) -> Labelled:
    needs("PIL", what="reading pictures")
    from PIL import Image

    size = patches * int(model.config.patch_size)
    mean, spread = (
        torch.tensor(getattr(model.processor, key))[:, None, None]
        for key in ("image_mean", "image_std")
    )
    made = []
    for picture, _ in chosen:
        large = (
            Image.fromarray(picture).convert("RGB").resize((size, size), Image.Resampling.BICUBIC)
        )
        pixels = torch.from_numpy(np.asarray(large, np.float32) / 255).permute(2, 0, 1)
        made.append((pixels - mean) / spread)
    keep = torch.zeros(len(made), 1 + patches**2, dtype=torch.bool, device=model.device)
    keep[:, 0] = True
    labels = torch.tensor([int(label) for _, label in chosen], device=model.device)
    return Labelled({"pixel_values": torch.stack(made).to(model.device)}, labels, keep)

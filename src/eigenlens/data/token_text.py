"""Names of the tokens of an input: text, the place of a patch, the number of a frame."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..models.load import Model
from .inputs import Batch

BROKEN = "\ufffd"
"""What a tokenizer writes for a token that is only a part of a character."""


def token_texts(model: Model, batch: Batch, stack: str, length: int) -> list[list[str]]:
    """Name the `length` tokens that a stack attends over, for every input of a batch `(B, …)`.

    Returns B lists of raw texts, never escaped.

    A decoder's tokens are those it reads. Without a tokenizer a token is called by its id; a patch
    of a picture is `row,column`, with `cls` and `register 0`, … before the patches; a frame of
    sound is `frame 0`, …. If a model pools its tokens, they have no text of their own and are
    `position 0`, ….
    """
    ids = batch.get("input_ids")
    if "decoder" in stack:
        ids = batch.get("decoder_input_ids", ids)
    if ids is not None and ids.shape[1:] == (length,):
        return id_texts(model.tokenizer, ids)
    if "pixel_values" in batch:
        labels = _patches(model.config, batch["pixel_values"], length)
    else:
        what = "frame" if "input_features" in batch else "position"
        labels = [f"{what} {i}" for i in range(length)]
    return [labels] * len(next(iter(batch.values())))


def id_texts(tokenizer: Any, ids: Tensor) -> list[list[str]]:
    """Return the text of token ids `(B, T)`."""
    known = {i: _text(tokenizer, i) for i in ids.unique().tolist()}
    return [[known[i] for i in row] for row in ids.tolist()]


def _text(tokenizer: Any, token: int) -> str:
    if tokenizer is None:
        return str(token)
    text = tokenizer.decode([token])
    if text and BROKEN not in text:
        return text
    name = tokenizer.convert_ids_to_tokens([token])[0]
    # a vocabulary may be padded with ids that are no tokens
    return str(token) if name is None else str(name)


def _patches(config: Any, pixels: Tensor, length: int) -> list[str]:
    """Name `cls`, the other tokens before the patches, then the patches; pixels `(B, 3, h, w)`."""
    patch = getattr(config, "patch_size", 16)
    height, width = (patch, patch) if isinstance(patch, int) else patch
    rows, columns = pixels.shape[2] // height, pixels.shape[3] // width
    front = length - rows * columns
    if front < 0:  # patches were merged
        return [f"position {i}" for i in range(length)]
    first = ["cls", "distillation"] if getattr(config, "model_type", "") == "deit" else ["cls"]
    before = [*first, *(f"register {i}" for i in range(max(0, front - len(first))))][:front]
    return [*before, *(f"{row},{column}" for row in range(rows) for column in range(columns))]

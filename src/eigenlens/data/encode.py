"""Encode one or several texts, pictures or recordings as a batch for a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from ..errors import EigenlensError
from ..models.load import Model
from . import images, speech
from .inputs import Batch

CLASSIFIERS = ("ForSequenceClassification", "ForTokenClassification", "ForAudioClassification")


def encode(
    model: Model, text: str | Sequence[str], *, decoder: str | Sequence[int] | None = None
) -> Batch:
    """Return the batch that a model reads for one text or several.

    `input_ids` and `attention_mask` (B, T), padded on the right.

    For a vision model each is the path of a picture: `pixel_values` (B, 3, h, w) of its middle
    square. For a speech model each is the path of a .wav file, of which the first 30 seconds are
    read: `input_features`. An encoder-decoder also gets `decoder_input_ids` (B, D): its start
    token, followed by `decoder`, a text or token ids that it has already produced.

    >>> encode(model, ["A short text.", "Another one, which is longer."])["input_ids"].shape
    torch.Size([2, 9])
    """
    texts = [text] if isinstance(text, str) else list(text)
    for item in texts:
        check_text(item)
    if not texts or any(not item.strip() for item in texts):
        raise EigenlensError("the text is empty; there are no tokens to explain")
    if model.kind == "module":
        raise EigenlensError(
            f"{model.name} is a plain module whose inputs eigenlens does not know; give a batch of"
            " tensors"
        )
    if model.kind == "vision":
        _check_files(model, texts, "picture", images.SUFFIXES)
        return images.load_batch(model, texts)
    if model.kind == "audio":
        _check_files(model, texts, "recording", {".wav"})
        batch = {"input_features": speech.first_clips(model, texts)}
    else:
        batch = _padded(model, [_ids(model, item) for item in texts])
    if model.kind in {"encoder-decoder", "audio"} and not _classifies(model):
        spoken = torch.tensor([*_start(model), *_decoder_ids(model, decoder)], device=model.device)
        batch["decoder_input_ids"] = spoken.expand(len(texts), -1).contiguous()
    elif decoder is not None:
        raise EigenlensError(
            f"{model.name} is not an encoder-decoder, so it cannot be given a text for its decoder"
        )
    return batch


def check_text(text: str, what: str = "the text") -> None:
    """Refuse a text that is not valid Unicode, such as one made from broken bytes."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise EigenlensError(
            f"{what} is not valid UTF-8: character {error.start} is {text[error.start]!a}; give it"
            " in UTF-8"
        ) from error


def one_at_a_time(model: Model) -> bool:
    """Whether a model takes one input at a time.

    A decoder that classifies finds the last token of each input by its padding token; if it has
    none, it cannot read a batch.
    """
    return (
        model.kind == "decoder"
        and _classifies(model)
        and getattr(model.config, "pad_token_id", None) is None
    )


def _classifies(model: Model) -> bool:
    """Whether a model classifies whole inputs or tokens; it then feeds its own decoder, if any."""
    return type(model.module).__name__.endswith(CLASSIFIERS)


def _ids(model: Model, text: str) -> list[int]:
    if model.tokenizer is None:
        raise EigenlensError(f"{model.no_tokenizer}; give one, or a batch of token ids")
    ids: list[int] = model.tokenizer(text, verbose=False)["input_ids"]
    if not ids:
        raise EigenlensError(f"the text {text[:40]!r} has no tokens for {model.name}")
    if model.max_length is not None and len(ids) > model.max_length:
        raise EigenlensError(
            f"the text has {len(ids):,} tokens, but {model.name} takes at most"
            f" {model.max_length:,}; give a shorter one"
        )
    return ids


def _padded(model: Model, rows: Sequence[Sequence[int]]) -> Batch:
    """Return token ids on the model's device, padded on the right, with their mask."""
    longest = max(map(len, rows))
    pad = next(
        (
            int(i)
            for name in ("pad_token_id", "eos_token_id")
            if (i := getattr(model.tokenizer, name, None)) is not None
        ),
        0,
    )
    ids = torch.tensor([[*row, *[pad] * (longest - len(row))] for row in rows], device=model.device)
    lengths = torch.tensor([len(row) for row in rows], device=model.device)
    mask: Tensor = torch.arange(longest, device=model.device)[None] < lengths[:, None]
    return {"input_ids": ids, "attention_mask": mask.long()}


def _start(model: Model) -> list[int]:
    """Return the decoder's first tokens; Whisper also gets the one for no time stamps."""
    start = getattr(model.config, "decoder_start_token_id", None)
    silent = getattr(
        getattr(model.module, "generation_config", None), "no_timestamps_token_id", None
    )
    return [int(start or 0), *([] if silent is None or model.kind != "audio" else [int(silent)])]


def _decoder_ids(model: Model, decoder: str | Sequence[int] | None) -> list[int]:
    if decoder is None:
        return []
    if not isinstance(decoder, str):
        return [int(i) for i in decoder]
    if model.tokenizer is None:
        raise EigenlensError(f"{model.no_tokenizer}; give the text of its decoder as token ids")
    ids: list[int] = model.tokenizer(decoder, add_special_tokens=False, verbose=False)["input_ids"]
    return ids


def _check_files(model: Model, names: Sequence[str], what: str, suffixes: set[str]) -> None:
    for name in names:
        if not Path(name).is_file():
            raise EigenlensError(
                f"{model.name} takes the path of a {what} ({', '.join(sorted(suffixes))}), but"
                f" {name[:60]!r} is not such a file"
            )

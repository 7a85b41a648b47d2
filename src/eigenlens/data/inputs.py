"""Model inputs, ready to run: batches by bucket, the same every time."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..display import numbered
from ..errors import EigenlensError
from ..models.load import Model
from ..shell import STORED_AS
from . import images, speech
from .arrays import array_tokens, is_array, width_of
from .facts import DataFacts
from .split import FIT, Split
from .text import pieces, whole_documents
from .windows import Windows, pack_windows, special_tokens, tokenised

Batch = dict[str, Tensor]
DEFAULT_LENGTH = 128
"""Tokens per input where no length is named and the model takes as many."""
SPLIT_FROM = 4
"""From this many inputs on, inputs on which nothing is fitted are dealt to groups.

This keeps one long document from filling all groups.
"""


@dataclass
class Inputs:
    """All inputs of a study, and which of them are fit or held out.

    `make(indices)` gives a batch; `buckets[i]` says whether input i is fit or held out.
    """

    buckets: np.ndarray  # (N,) FIT or the held-out group
    documents: np.ndarray  # (N,)
    length: int
    make: Callable[[np.ndarray], Batch]
    facts: DataFacts
    # documents by number, where they have names
    named: dict[int, str] = field(default_factory=dict)

    def document_names(self, chosen: np.ndarray) -> tuple[str, ...]:
        """The documents of some inputs, in words."""
        numbers = dict.fromkeys(self.documents[chosen].tolist())
        return tuple(self.named.get(number, str(number)) for number in numbers)

    @property
    def groups(self) -> list[int]:
        """FIT, then the held-out groups that have inputs."""
        return [FIT, *sorted(set(self.buckets[self.buckets != FIT].tolist()))]

    def number(self, bucket: int) -> int:
        return int((self.buckets == bucket).sum())

    def batches(
        self, bucket: int, size: int, start: int = 0, stop: int | None = None
    ) -> Iterator[tuple[int, Batch]]:
        """Batches of one bucket from `start` up to `stop`, as (number of inputs, tensors)."""
        indices = np.flatnonzero(self.buckets == bucket)[:stop]
        for first in range(start, len(indices), size):
            chosen = indices[first : first + size]
            yield len(chosen), self.make(chosen)


@dataclass(frozen=True)
class Request:
    """The inputs that a study asks for."""

    data: tuple[str, ...]
    max_length: int | None = None
    max_inputs: int = 1000
    held_out: float = 0.2
    seed: int = 0
    padding: bool = False
    joined: bool = True
    """Text: documents follow each other and are cut. Otherwise one input per long document."""

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Request:
        """Read the request from the JSON of a result."""
        stored = {name: STORED_AS.get(name, name) for name in cls.__dataclass_fields__}
        named = {name: record[key] for name, key in stored.items() if key in record}
        return cls(**{**named, "data": tuple(record["data"])})

    def record(self) -> dict[str, Any]:
        """The request as the JSON of a result stores it."""
        named = {STORED_AS.get(name, name): value for name, value in vars(self).items()}
        if self.joined:
            del named["joined"]  # as results of earlier versions have it
        return {**named, "data": list(self.data)}


def prepare(
    model: Model, request: Request, folder: Path, resume: bool = False, fitted: bool = True
) -> Inputs:
    """Turn data into inputs for `model`.

    Tokens are written to `folder`, from where a resumed study reads them again.

    If nothing is `fitted` on them, nothing has to be held out: one input is enough, and a study
    uses as many as there are.
    """
    if fitted and request.max_inputs < 3:
        raise EigenlensError(
            f"{request.max_inputs} inputs are too few: a study needs at least 3 (2 to fit, 1 to"
            " hold out)"
        )
    if not 0 < request.held_out < 1:
        raise EigenlensError(f"the held-out share must be between 0 and 1, not {request.held_out}")
    split = Split(request.max_inputs, request.held_out, request.seed)
    if not fitted:
        held_out = request.held_out if request.max_inputs >= SPLIT_FROM else 0.0
        split = replace(split, held_out=held_out, least=(0, 0))
    if model.kind == "vision":
        return _image_inputs(model, request, split)
    arrays = [name for name in request.data if is_array(name)]
    if arrays and len(arrays) < len(request.data):
        raise EigenlensError("token ids (.npy) and text cannot be mixed in one study")
    if arrays and request.max_length is None:
        length = _array_length(
            model, arrays, Windows.open(folder).ids.shape[1] if resume else width_of(arrays)
        )
    else:
        length = _length(model, request)
    if model.kind == "audio":
        if model.processor is None:
            raise EigenlensError(
                f"{model.name} has no feature extractor for sound (its folder has no"
                " preprocessor_config.json)"
            )
        return _speech_inputs(model, request, split, length, folder, resume)
    if not arrays and model.tokenizer is None:
        raise EigenlensError(
            f"{model.no_tokenizer}; give token ids (an array, or a .npy file), or a tokenizer"
        )
    two_sided = model.kind == "encoder-decoder"
    around = (
        special_tokens(model.tokenizer) if model.tokenizer is not None and not arrays else ([], [])
    )
    # the encoder's text with its special tokens, then what the decoder is fed behind its start
    # token
    if two_sided:
        width = 2 * length - 1 - len(around[0]) - len(around[1])
        inner: tuple[list[int], list[int]] = ([], [])
    else:
        width, inner = length, around
    if resume:
        windows = Windows.open(folder)
    elif arrays:
        vocabulary = getattr(model.config, "vocab_size", None)
        windows = pack_windows(
            array_tokens(arrays, width, vocabulary), folder, width, split, what=", ".join(arrays)
        )
    else:
        windows = _text_windows(model, request, folder, width, split, inner)
    if not resume:
        windows.save(folder)
    return _inputs(
        windows,
        length,
        lambda rows: _token_batch(model, windows, rows, length, request, around),
        request,
        tokens=int(windows.lengths.sum()),
    )


def _inputs(
    windows: Any,
    length: int,
    make: Callable[[np.ndarray], Batch],
    request: Request,
    *,
    tokens: int | None = None,
    image_size: int | None = None,
    sampling_rate: int | None = None,
) -> Inputs:
    documents, buckets = windows.documents, windows.buckets
    facts = DataFacts(
        ", ".join(Path(name).name if "/" in name else name for name in request.data),
        documents=len(np.unique(documents)),
        documents_held_out=len(np.unique(documents[buckets != FIT])),
        inputs_fit=int((buckets == FIT).sum()),
        inputs_held_out=int((buckets != FIT).sum()),
        padded=request.padding,
        tokens=tokens,
        image_size=image_size,
        sampling_rate=sampling_rate,
        fingerprint=windows.fingerprint(),
    )
    return Inputs(buckets, documents, length, make, facts, getattr(windows, "named", {}))


def _array_length(model: Model, names: list[str], width: int | None) -> int:
    """Return the length of an input from that of a row.

    An encoder-decoder reads the second half of a row in its decoder, after its start token.
    """
    if width is None:
        return _length(model, Request((), None))
    two_sided = model.kind == "encoder-decoder"
    rows = f"the rows of {', '.join(names)} have {numbered(width, 'token')}"
    if two_sided and width % 2 == 0:
        raise EigenlensError(
            f"{rows}; {model.name} reads inputs of n tokens from rows of 2n − 1, an odd number"
        )
    length = (width + 1) // 2 if two_sided else width
    if length < 2:
        raise EigenlensError(f"{rows}, which is too short: attention needs at least 2")
    if model.max_length is not None and length > model.max_length:
        raise EigenlensError(
            f"{rows}, more than the {model.max_length} that {model.name} can read; cut them"
        )
    return length


def _length(model: Model, request: Request) -> int:
    length = request.max_length
    if length is None:
        length = min(DEFAULT_LENGTH, model.max_length or DEFAULT_LENGTH)
    if length < 2:
        raise EigenlensError(
            f"a length of {length} is too short: attention needs at least 2 tokens"
        )
    if model.max_length is not None and length > model.max_length:
        raise EigenlensError(
            f"a length of {length} tokens is over the maximum of {model.name}, {model.max_length}"
            " tokens"
        )
    return length


def _text_windows(
    model: Model,
    request: Request,
    folder: Path,
    width: int,
    split: Split,
    around: tuple[list[int], list[int]],
) -> Windows:
    tokenizer = model.tokenizer
    texts = pieces(request.data, section=32 * width, seed=request.seed)
    if not request.joined:
        texts = whole_documents(texts, width)
    stream = tokenised(texts, tokenizer)
    end = tokenizer.eos_token_id if model.kind == "decoder" else None
    pad = None
    if request.padding:
        pad = (
            tokenizer.pad_token_id
            if tokenizer.pad_token_id is not None
            else (tokenizer.eos_token_id or 0)
        )
    return pack_windows(
        stream,
        folder,
        width,
        split,
        around=around,
        between=None if end is None else [end],
        pad=pad,
        joined=request.joined,
    )


def _token_batch(
    model: Model,
    windows: Windows,
    rows: np.ndarray,
    length: int,
    request: Request,
    around: tuple[list[int], list[int]],
) -> Batch:
    ids = torch.from_numpy(np.asarray(windows.ids[rows], dtype=np.int64))  # (B, width)
    lengths = torch.from_numpy(windows.lengths[rows])
    mask = (torch.arange(ids.shape[1])[None] < lengths[:, None]).long() if request.padding else None
    batch: Batch
    if model.kind == "encoder-decoder":
        start = getattr(model.config, "decoder_start_token_id", 0) or 0
        before, after = (
            torch.tensor(part, dtype=torch.long).expand(len(ids), -1) for part in around
        )
        cut = length - before.shape[1] - after.shape[1]
        begin = torch.full((len(ids), 1), start)
        batch = {
            "input_ids": torch.cat([before, ids[:, :cut], after], 1),  # (B, length)
            "decoder_input_ids": torch.cat([begin, ids[:, cut:]], 1),  # (B, length)
        }
        if mask is not None:
            sides = torch.ones_like(before), torch.ones_like(after)
            batch["attention_mask"] = torch.cat([sides[0], mask[:, :cut], sides[1]], 1)
            batch["decoder_attention_mask"] = torch.cat([torch.ones_like(begin), mask[:, cut:]], 1)
    else:
        if mask is not None and getattr(model.tokenizer, "padding_side", "right") == "left":
            order = (torch.arange(length)[None] + lengths[:, None]) % length  # padding to the front
            ids, mask = ids.gather(1, order), mask.gather(1, order)
        batch = {"input_ids": ids}
        if mask is not None:
            batch["attention_mask"] = mask
    return {name: x.to(model.device) for name, x in batch.items()}


def _image_inputs(model: Model, request: Request, split: Split) -> Inputs:
    order = random.Random(request.seed)
    crops = images.crops(model, request.data, request.max_length, split, order)
    return _inputs(crops, crops.tokens, crops.batch, request, image_size=crops.size)


def _speech_inputs(
    model: Model, request: Request, split: Split, length: int, folder: Path, resume: bool
) -> Inputs:
    clips = speech.clips(model, request.data, length, split, folder, resume)
    return _inputs(clips, length, clips.batch, request, sampling_rate=speech.RATE)

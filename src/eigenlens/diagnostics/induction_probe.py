"""Inputs that show induction: a block of random tokens that is repeated.

And the scores of uniform attention on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..data.windows import special_tokens
from ..models.load import Model

TEXT = ("encoder", "decoder", "encoder-decoder")
"""The kinds of models that read tokens."""
LEAST = 8
"""The length of the shortest block, in tokens.

On a shorter block uniform attention scores so high that thresholds mean nothing.
"""


@dataclass(frozen=True)
class Layout:
    """A block of `block` tokens, repeated `repeats` times, between special tokens.

    The special tokens are `before` and `after`.
    """

    block: int
    repeats: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    start: int | None  # what a decoder behind an encoder starts with
    special: frozenset[int]  # ids that stand around texts, never inside a block
    ordinary: Tensor  # (V',) ids to draw from


def layout_of(model: Model, block: int, repeats: int) -> Layout | str:
    """Fit the probe to a model.

    The block shrinks to what the model can read, and to the number of different tokens.

    Returns a string that says why, if the model cannot be probed.
    """
    if model.kind not in TEXT:
        return f"a model of the kind {model.kind} does not read tokens that could be repeated"
    vocabulary = getattr(model.config, "vocab_size", None)
    if vocabulary is None:
        return "the config of the model does not say how many token ids it knows"
    special = {i for i in _config_ids(model.config) if i is not None}
    before, after = special_tokens(model.tokenizer) if model.tokenizer is not None else ([], [])
    special |= {*before, *after}
    unused: set[int] = set()
    if model.tokenizer is not None:
        vocabulary = min(vocabulary, len(model.tokenizer))
        special |= set(model.tokenizer.all_special_ids)
        # roles, masks, sentinels
        unused |= set(getattr(model.tokenizer, "added_tokens_decoder", {}))
        # rows that nobody trained
        unused |= {
            i
            for text, i in model.tokenizer.get_vocab().items()
            if text.startswith(("[unused", "<unused"))
        }
    start = (
        getattr(model.config, "decoder_start_token_id", 0) or 0
        if model.kind == "encoder-decoder"
        else None
    )
    if start is not None:
        special.add(start)
    around = max(len(before) + len(after), 1 if start is not None else 0)
    room = block if model.max_length is None else min(block, (model.max_length - around) // repeats)
    if room < LEAST:
        return (
            f"the model reads {model.max_length} tokens: too few for {LEAST} tokens {repeats} times"
        )
    ordinary = torch.tensor(
        [i for i in range(vocabulary) if i not in special and i not in unused], dtype=torch.long
    )
    if len(ordinary) < LEAST:
        return (
            f"the model has {len(ordinary)} ordinary tokens among its {vocabulary} token ids: too"
            f" few for a block of {LEAST} different tokens"
        )
    return Layout(
        min(room, len(ordinary)),
        repeats,
        tuple(before),
        tuple(after),
        start,
        frozenset(special),
        ordinary,
    )


def _config_ids(config: Any) -> list[int | None]:
    found: list[int | None] = []
    for name in ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"):
        value = getattr(config, name, None)
        found += list(value) if isinstance(value, list | tuple) else [value]
    return found


def probe_batch(layout: Layout, inputs: int, seed: int, repeated: bool = True) -> dict[str, Tensor]:
    """Return the inputs: ids (inputs, before + repeats · block + after).

    An encoder-decoder reads the same ids after its start token in the decoder.

    The tokens of a block all differ if there are enough ids. Without `repeated`, as many tokens
    come only once.
    """
    draw = torch.Generator().manual_seed(seed)
    n = layout.block if repeated else layout.block * layout.repeats
    V = len(layout.ordinary)
    if n <= V:
        chosen = torch.stack([torch.randperm(V, generator=draw)[:n] for _ in range(inputs)])
    else:
        chosen = torch.randint(V, (inputs, n), generator=draw)
    # (inputs, repeats · block)
    body = layout.ordinary[chosen].repeat(1, layout.repeats if repeated else 1)

    def around(before: Sequence[int], after: Sequence[int]) -> Tensor:
        ends = (torch.tensor(ids, dtype=torch.long).expand(inputs, -1) for ids in (before, after))
        first, last = ends
        return torch.cat([first, body, last], 1)

    batch = {"input_ids": around(layout.before, layout.after)}
    if layout.start is not None:
        batch["decoder_input_ids"] = around((layout.start,), ())
    return batch


def uniform_scores(block: int, repeats: int, before: int = 0) -> dict[str, float]:
    """Return the scores of a head that attends equally to all tokens up to its own: exact.

    The place t of the tokens (from 0) sees `before + t + 1` keys. For a block of 50, twice: stripe
    `Σ_{t=49}^{99} 1/(t+1) / 51 = 0.01388`, prefix and duplicate `Σ_{t=50}^{99} 1/(t+1) / 50 =
    0.01376`, previous `Σ_{t=1}^{99} 1/(t+1) / 99 = 0.04230`.
    """
    along, later = range(block - 1, repeats * block), range(block, repeats * block)
    sees = {t: before + t + 1 for t in range(repeats * block)}
    stripe = sum(1 / sees[t] for t in along) / len(along)
    earlier = sum((t // block) / sees[t] for t in later) / len(later)
    previous = sum(1 / sees[t] for t in range(1, repeats * block)) / (repeats * block - 1)
    return {"stripe": stripe, "prefix": earlier, "duplicate": earlier, "previous": previous}

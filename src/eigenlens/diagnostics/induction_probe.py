"""Inputs that show induction: a block of random tokens that comes again.

And what uniform attention would score on it.
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
"""Kinds of models that read tokens."""
LEAST = 8
"""Tokens of the shortest block.

On a shorter one uniform attention scores so much that thresholds say nothing.
"""


@dataclass(frozen=True)
class Layout:
    """A block of `block` tokens, `repeats` times, between special tokens `before`, `after`."""

    block: int
    repeats: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    start: int | None  # what a decoder behind an encoder starts with
    special: frozenset[int]  # ids that stand around texts, never inside a block
    ordinary: Tensor  # (V',) ids to draw from


def layout_of(model: Model, block: int, repeats: int) -> Layout | str:
    """How the probe fits a model.

    The block shrinks to what the model can read, and to tokens that differ.

    A string says why there is none.
    """
    if model.kind not in TEXT:
        return f"a model of the kind {model.kind} reads no tokens that could be repeated"
    vocabulary = getattr(model.config, "vocab_size", None)
    if vocabulary is None:
        return "how many token ids the model knows is not in its config"
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
            f"the model reads {model.max_length} tokens: no room for {LEAST} tokens {repeats} times"
        )
    ordinary = torch.tensor(
        [i for i in range(vocabulary) if i not in special and i not in unused], dtype=torch.long
    )
    if len(ordinary) < LEAST:
        return (
            f"of the {vocabulary} token ids {len(ordinary)} are ordinary ones, too few for a block"
            f" of {LEAST} that differ"
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
    """The inputs: ids (inputs, before + repeats · block + after).

    Of an encoder-decoder the same behind the start token too.

    The tokens of a block differ from each other where there are enough ids. Not `repeated`, as many
    tokens come only once.
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
    """What a head scores that attends alike to all tokens up to its own: exact, by place.

    The place t of the tokens (from 0) sees `before + t + 1` keys. Of block 50 twice: stripe
    `Σ_{t=49}^{99} 1/(t+1) / 51 = 0.01388`, prefix and duplicate `Σ_{t=50}^{99} 1/(t+1) / 50 =
    0.01376`, previous `Σ_{t=1}^{99} 1/(t+1) / 99 = 0.04230`.
    """
    along, later = range(block - 1, repeats * block), range(block, repeats * block)
    sees = {t: before + t + 1 for t in range(repeats * block)}
    stripe = sum(1 / sees[t] for t in along) / len(along)
    earlier = sum((t // block) / sees[t] for t in later) / len(later)
    previous = sum(1 / sees[t] for t in range(1, repeats * block)) / (repeats * block - 1)
    return {"stripe": stripe, "prefix": earlier, "duplicate": earlier, "previous": previous}

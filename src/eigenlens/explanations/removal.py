"""Inputs without some of their tokens, and the target's score on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..captures import AttentionCall, attention_names, block_paths, capture
from ..data.encode import one_at_a_time
from ..display import numbered
from ..errors import EigenlensError
from ..models.forward import forward_of
from ..models.load import Model
from .target import Target

Kept = tuple[int, tuple[int, ...]]
"""An input, by its row in the batch, and the positions of the tokens that are left, rising."""
SOURCE = ("input_ids", "token_type_ids")
"""Parts of a batch with one entry per source token of a text."""
NUMBERED = ("attention_mask", "position_ids")
"""Parts of a batch that are made anew for a shortened text.

A shortened text has no padding, and its tokens are counted from the first.
"""
FAILS = (
    RuntimeError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    AssertionError,
    StopIteration,
)
"""Errors that a model may raise if it cannot run on fewer tokens."""


@dataclass(frozen=True, eq=False)
class Removal:
    """A batch whose tokens can be taken away.

    `always` and `free` are the positions that stay and those that may go.
    """

    model: Model
    batch: Mapping[str, Any]
    target: Target
    always: list[list[int]]
    free: list[list[int]]
    # the first one, in front of which tokens are taken away where the input has none
    block: nn.Module | None

    @property
    def inputs(self) -> int:
        return len(self.always)

    @classmethod
    def of(
        cls,
        model: Model,
        batch: Mapping[str, Any],
        target: Target,
        tokens: int,
        keep: Tensor | None,
    ) -> Removal:
        """Prepare the batch; `tokens` is T, the number of scores per input.

        `keep` (B, T) are tokens that always stay; None for the default.
        """
        first = next(iter(batch.values()))
        direct = "input_ids" in batch or (
            model.kind == "module" and first.ndim >= 2 and first.shape[1] == tokens
        )
        B = len(first)
        valid = torch.ones(B, tokens, dtype=torch.bool)
        if "input_ids" in batch and (mask := batch.get("attention_mask")) is not None:
            valid = mask.bool().cpu()
        if valid.shape != (B, tokens) or (keep is not None and keep.shape != (B, tokens)):
            given = tuple(valid.shape) if valid.shape != (B, tokens) else tuple(keep.shape)  # type: ignore[union-attr]
            raise EigenlensError(
                f"there are {tokens} scores per input, but the tokens have the shape {given}; give"
                " one score per token"
            )
        stays = special_positions(model, batch, tokens) if keep is None else keep.bool().cpu()
        read = _read_at(model, target, valid)
        always, free = [], []
        for row in range(B):
            here = valid[row].nonzero()[:, 0].tolist()
            kept = {i for i in here if stays[row, i]} | ({read[row]} if read is not None else set())
            kept = kept or {here[0]}  # an input without any token is none
            always.append(sorted(kept))
            free.append([i for i in here if i not in kept])
        return cls(
            model,
            batch,
            target,
            always,
            free,
            None if direct else _first_block(model, batch, tokens),
        )

    def scores(
        self, wanted: Sequence[Kept], batch_size: int
    ) -> Iterator[tuple[list[Kept], Tensor]]:
        """Yield the target's scores on shortened inputs, some at a time.

        Each time the indices of the inputs, and their scores (n,).
        """
        batch_size = 1 if one_at_a_time(self.model) else batch_size
        by_length: dict[int, list[Kept]] = {}
        for kept in wanted:
            by_length.setdefault(len(kept[1]), []).append(kept)
        for same in by_length.values():
            for start in range(0, len(same), batch_size):
                chosen = same[start : start + batch_size]
                found = self._score(chosen)
                if not bool(torch.isfinite(found).all()):
                    raise EigenlensError(
                        f"{self.model.name} gives no number for an input with"
                        f" {numbered(len(chosen[0][1]), 'token')} left"
                    )
                yield chosen, found

    def least(self) -> int:
        """How many free tokens have to stay.

        It is 1 if a head averages patches, which is not defined without any, and 0 otherwise.
        """
        if self.block is None or not self.free[0]:
            return 0
        return int(not bool(torch.isfinite(self._score([(0, tuple(self.always[0]))])).all()))

    def _score(self, chosen: Sequence[Kept]) -> Tensor:
        """The scores (n,) of inputs with equally many tokens left."""
        try:
            return self._run(chosen)
        except EigenlensError:
            raise
        except FAILS as error:
            positions = (
                ", as a model does that has positions inside its blocks"
                if self.block is not None
                else ""
            )
            message = next(iter(str(error).splitlines()), "") or type(error).__name__
            left = numbered(len(chosen[0][1]), "token")
            raise EigenlensError(
                f"{self.model.name} cannot run on an input with {left} left{positions} ({message})"
            ) from error

    def _run(self, chosen: Sequence[Kept]) -> Tensor:
        device = self.model.device
        rows = torch.tensor([row for row, _ in chosen], device=device)
        left = torch.tensor([places for _, places in chosen], device=device)  # (n, K)
        target = self.target.of(rows, self._moved(chosen))
        forward = forward_of(self.model, with_head=True)
        if self.block is None:
            batch = self._shorter(rows, left)
            return target.score(forward(batch), batch)
        batch = {name: x[rows] if isinstance(x, Tensor) else x for name, x in self.batch.items()}

        def drop(_block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            whole = next(
                x
                for x in (kwargs.get("hidden_states"), *args)
                if isinstance(x, Tensor) and x.ndim == 3
            )
            fewer = whole.gather(1, left[..., None].expand(-1, -1, whole.shape[2]))
            args = tuple(fewer if x is whole else x for x in args)
            return args, {name: fewer if x is whole else x for name, x in kwargs.items()}

        hook = self.block.register_forward_pre_hook(drop, with_kwargs=True)
        try:
            return target.score(forward(batch), batch)
        finally:
            hook.remove()

    def _shorter(self, rows: Tensor, left: Tensor) -> dict[str, Any]:
        """The batch of these inputs with the tokens that are left, without padding."""
        batch: dict[str, Any] = {}
        for place, (name, x) in enumerate(self.batch.items()):
            if name in NUMBERED:
                continue
            mine = x[rows] if isinstance(x, Tensor) else x
            if name in SOURCE or (self.model.kind == "module" and place == 0):
                index = left.view(*left.shape, *[1] * (mine.ndim - 2)).expand(
                    -1, -1, *mine.shape[2:]
                )
                mine = mine.gather(1, index)
            batch[name] = mine
        return batch

    def _moved(self, chosen: Sequence[Kept]) -> Tensor | None:
        """The new position of the token at which the target is read, (n,)."""
        if self.target.position is None:
            return None
        at = self.target.position.tolist()
        places = [kept.index(at[row]) for row, kept in chosen]
        return torch.tensor(places, device=self.target.position.device)


def special_positions(model: Model, batch: Mapping[str, Any], tokens: int) -> Tensor:
    """Which tokens belong to the model's frame, (B, T) bool.

    These are special tokens of a text, and tokens before the patches of a picture.
    """
    first = next(iter(batch.values()))
    found = torch.zeros(len(first), tokens, dtype=torch.bool)
    if "input_ids" in batch and model.tokenizer is not None:
        # a word that is not known is a word
        unknown = getattr(model.tokenizer, "unk_token_id", None)
        ids = [i for i in model.tokenizer.all_special_ids if i != unknown]
        found = torch.isin(batch["input_ids"].cpu(), torch.tensor(ids, dtype=torch.long))
    elif model.kind == "vision" and "pixel_values" in batch:
        patch = getattr(model.config, "patch_size", 16)
        sides = patch if isinstance(patch, tuple | list) else (patch, patch)
        h, w = (size // side for size, side in zip(batch["pixel_values"].shape[-2:], sides))
        found[:, : max(tokens - h * w, 0)] = True
    return found


def _read_at(model: Model, target: Target, valid: Tensor) -> list[int] | None:
    """The source token at which the target is read, which must stay.

    That is the token whose label is explained, or the last token of a decoder.
    """
    if target.position is not None:
        return target.position.tolist()
    if target.kind == "token" and model.kind == "decoder":
        return (torch.arange(valid.shape[1]) * valid).argmax(1).tolist()
    return None


def _first_block(model: Model, batch: Mapping[str, Any], tokens: int) -> nn.Module:
    """The block that the source tokens enter first."""
    calls: list[AttentionCall] = []
    with capture(model.module, calls.append):
        forward_of(model, with_head=True)(batch)
    paths = block_paths(attention_names(calls))
    call = next((call for call in calls if call.kind == "self" and call.q.shape[2] == tokens), None)
    if call is None or call.name not in paths:
        raise EigenlensError(
            f"no block of {model.name} takes {tokens} tokens, so none can be taken away in front"
            " of it"
        )
    return model.module.get_submodule(paths[call.name])

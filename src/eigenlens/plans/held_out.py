"""The inputs that plans are measured on, from documents that no statistic has seen."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ..captures import AttentionCall, capture
from ..data.arrays import ArrayName, in_memory
from ..data.inputs import Batch, Inputs, Request, prepare
from ..data.split import FIT
from ..errors import EigenlensError
from ..models.forward import forward_of
from ..models.load import Model
from ..passes.data_names import data_names
from ..passes.shards import make_shards
from ..passes.use_model import UsedModel, use_model
from ..run.progress import Progress, silent
from ..run.shards import Shard
from ..studies import Study

ENTRIES = 2_000_000
"""Scores of one call that are processed together, so that they fit into the caches."""
TOKENS = 4096
"""The most inputs per shard: full passes may hold logits over a vocabulary for each."""


@dataclass
class HeldOut:
    """A model with held-out inputs; `groups` are the groups of documents that are used."""

    model: Model
    inputs: Inputs
    groups: list[int]
    heads: int
    names: list[str]

    @staticmethod
    def size(batch: Batch) -> int:
        """Inputs in a batch."""
        return len(next(iter(batch.values())))

    def taken(self, number: int, fit: bool = False) -> list[np.ndarray]:
        """The indices of at most `number` inputs by group, taken from the groups in turn."""
        groups = [FIT] if fit else self.groups
        turns = sorted(
            (turn, group) for group in groups for turn in range(self.inputs.number(group))
        )[:number]
        numbers = [sum(other == group for _, other in turns) for group in groups]
        return [
            np.flatnonzero(self.inputs.buckets == group)[:stop]
            for group, stop in zip(groups, numbers)
        ]

    @property
    def together(self) -> int:
        """Inputs in a batch."""
        return max(1, ENTRIES // (self.heads * self.inputs.length**2))

    def batches(self, number: int, fit: bool = False) -> list[Batch]:
        """The chosen inputs, in small batches."""
        size, rows = self.together, self.taken(number, fit)
        return [
            self.inputs.make(group[i : i + size])
            for group in rows
            for i in range(0, len(group), size)
        ]

    def shards(self, number: int) -> list[Shard]:
        """The chosen inputs, in shards of one or two batches."""
        size = min(self.together, max(1, TOKENS // self.inputs.length))
        return make_shards(self.inputs, np.concatenate(self.taken(number)), size, size)

    def apart(self, number: int, most: int) -> Batch:
        """One batch with at most `most` of the first `number` inputs.

        They are from different documents if there are enough.
        """
        rows = np.concatenate(self.taken(number))
        return self.inputs.make(documents_first(self.inputs, rows)[:most])

    def run(
        self,
        sink: Callable[[AttentionCall], None],
        number: int,
        fit: bool = False,
        progress: Progress = silent,
        doing: str = "reading",
    ) -> int:
        """Show every attention call of the model on these inputs to `sink`.

        Returns the number of inputs. Progress says what is `doing`.
        """
        batches, done = self.batches(number, fit), 0
        total = sum(map(self.size, batches))
        stage = f"{doing} {self.inputs.facts.count(total)}"
        for batch in batches:
            self.run_batch(batch, sink)
            done += self.size(batch)
            progress(stage, done, total)
        return done

    def run_batch(self, batch: Batch, sink: Callable[[AttentionCall], None]) -> None:
        with torch.no_grad(), capture(self.model.backbone, sink):
            forward_of(self.model)(batch)


def documents_first(inputs: Inputs, rows: np.ndarray) -> np.ndarray:
    """Some inputs in another order: first one of every document, then the others."""
    first = np.unique(inputs.documents[rows], return_index=True)[1]
    return rows[[*sorted(first), *np.setdiff1d(np.arange(len(rows)), first)]]


def held_out_of(study: Study, loaded: Model, data: Any, scratch: Path) -> HeldOut:
    """The model of a study with the inputs it held out, or with other `data`.

    Only every second group of held-out documents is used; the others are left for an evaluation.
    """
    stored = study.request
    names = names_of(stored, data, loaded, scratch)
    request = replace(stored, data=names)
    if data is None or is_own_array(request, stored, study.facts.data.fingerprint, loaded, scratch):
        inputs = _again(study, loaded, request, scratch)
        groups = inputs.groups[1:]
        groups = groups[::2] if len(groups) > 1 else groups
    else:
        length = stored.max_length if loaded.kind == "vision" else study.length
        request = Request(names, length, 200, 0.5, stored.seed, stored.padding)
        inputs = prepare(loaded, request, _spool(scratch))
        groups = inputs.groups[1:]
    heads = max(site.heads for site in study.sites.values())
    return HeldOut(loaded, inputs, groups, heads, list(request.data))


def check_share(name: str, value: float) -> None:
    """Raise an error if a budget or an error is no share above 0 and at most 1."""
    if not 0 < value <= 1:
        raise EigenlensError(f"the {name} must be above 0 and at most 1, not {value}")


@contextlib.contextmanager
def use_studied_model(
    study: Study, model: str | Path | nn.Module | Model | None, data: Any, device: str | None
) -> Iterator[UsedModel]:
    """Use the model of a study, given or loaded again, as `use_model` does."""
    mine = study.facts.model
    if model is None and mine.source == "module":
        raise EigenlensError(
            f"the study is of a module in memory ({mine.name}); give this module again as the model"
        )
    given = mine.load_from if model is None else model
    with use_model(given, study.request.data if data is None else data, device=device) as used:
        found = used.model.facts
        if found.fingerprint != mine.fingerprint:
            raise EigenlensError(
                f"the study is of {mine.name} with weights {mine.fingerprint}, but {found.name}"
                f" has weights {found.fingerprint}; make a study of this model first"
            )
        yield used


def names_of(stored: Request, data: Any, model: Model, scratch: Path) -> tuple[str, ...]:
    """The names of the given data, or of the data of the study."""
    if data is not None:
        return data_names(data, model, scratch)
    if "-" in stored.data:
        raise EigenlensError(
            "the study was made from standard input, which is gone; give the data again"
        )
    if gone := next(filter(in_memory, stored.data), None):
        raise EigenlensError(
            f"the study was made from {gone} in memory, which it does not keep; give the array"
            " again as the data"
        )
    return stored.data


def is_own_array(
    request: Request,
    stored: Request,
    fingerprint: str | None,
    model: Model,
    scratch: Path,
) -> bool:
    """Whether the given array is the one that a study was made from.

    `fingerprint` is that of the study's data.
    """
    if not isinstance(request.data[0], ArrayName) or list(request.data) != list(stored.data):
        return False
    return prepare(model, request, _spool(scratch)).facts.fingerprint == fingerprint


def _again(study: Study, model: Model, request: Request, scratch: Path) -> Inputs:
    where = ", ".join(request.data)
    try:
        inputs = prepare(model, request, _spool(scratch))
    except EigenlensError as error:
        raise EigenlensError(
            f"the data of the study ({where}) cannot be read again: {error}; give the data"
        ) from error
    then, current = study.facts.data.fingerprint, inputs.facts.fingerprint
    if then != current:
        raise EigenlensError(
            f"the data of the study ({where}) has changed since the study was made;"
            " make the study anew, or give other data"
        )
    return inputs


def _spool(scratch: Path) -> Path:
    folder = scratch / "spool"
    folder.mkdir(exist_ok=True)
    return folder

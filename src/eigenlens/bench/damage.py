"""What mechanisms do to models that were trained without them, by the models' own measures."""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..anatomy.truncation import truncated
from ..attention import find
from ..data.inputs import Request, prepare
from ..display import numbered
from ..errors import EigenlensError
from ..models.forward import forward_of
from ..models.load import Model, load
from ..passes.data_names import data_names
from ..plans.drop_in import heads_of, use_attention
from ..plans.held_out import HeldOut
from ..plans.tasks import Task, task_of
from ..run.parts import Parts
from ..run.progress import Progress
from .entrants import FULL, MIDDLE, settings_for
from .result import Bench

Row = dict[str, Any]
KEPT = (
    "agreement of the likeliest next token",
    "overlap of the class probabilities",
    "cosine of the embeddings",
)
"""Measures that are 1 where nothing changed; a model has one of them."""
MAIN = ("perplexity", *KEPT[1:])
"""The measure that a model is judged by."""


@dataclass(frozen=True)
class DamageScale:
    """Models of the catalogue, how many inputs of which length, and ranks of query-key matrices.

    The inputs are the default text or pictures; models of `own` know no such text and read what
    they wrote themselves.
    """

    models: tuple[str, ...] = (
        "minilm",
        "distilbert-gec",
        "dinov2-small",
        "stories15m",
        "smollm2",
        "flan-t5-small",
    )
    inputs: int = 8
    length: int = 128
    ranks: tuple[int, ...] = (4, 8, 16, 32)
    own: tuple[str, ...] = ("stories15m",)


DAMAGE_QUICK = DamageScale(("minilm", "stories15m"), 4, 64, (8,))


def damage(
    scale: DamageScale, parts: Parts, names: Sequence[str], progress: Progress, device: str = "cpu"
) -> Bench:
    """Every mechanism in every model; what is refused is a row with the reason.

    One model is one part.
    """
    rows: list[Row] = []
    stage = f"putting other mechanisms into {numbered(len(scale.models), 'pretrained model')}"
    for done, name in enumerate(scale.models):
        progress(stage, done, len(scale.models))
        rows += parts.part(name, functools.partial(_model, name, scale, names, progress, device))
    progress(stage, len(scale.models), len(scale.models))
    refused = [row for row in rows if row["refused"]]
    reasons = dict.fromkeys(
        f"{row['model']}, {row['mechanism']}: {row['refused']}" for row in refused
    )
    kept = [row for row in rows if not row["refused"]]
    message = [
        f"{name} reads text that it wrote itself" for name in scale.models if name in scale.own
    ]
    return Bench(
        "damage",
        f"Put into trained models without training, {scale.inputs} inputs of {scale.length} tokens",
        sentence(kept),
        tables={"damage": kept, "refused": refused},
        notes=(*message, *reasons),
        shown=(("What is left of the models' answers (kept: 1 where nothing changed)", "damage"),),
    )


def _model(
    name: str, scale: DamageScale, names: Sequence[str], progress: Progress, device: str
) -> list[Row]:
    try:
        model = load(name, device=device)
    except EigenlensError as error:
        return [_row(name, "all", "", refused=f"the model cannot be loaded: {error}")]
    changes = changes_of(model, names, scale.ranks)
    with tempfile.TemporaryDirectory(prefix="eigenlens-data-") as scratch:
        length = None if model.kind == "vision" else scale.length  # pictures have their own size
        data = own_text(model, max(scale.inputs, 6), scale.length) if name in scale.own else None
        request = Request(
            data_names(data, model, Path(scratch)), length, max(scale.inputs, 6), 0.5, 0, False
        )
        inputs = prepare(model, request, Path(scratch))
        held = HeldOut(model, inputs, inputs.groups, heads_of(model), list(request.data))
        return measured(held, scale.inputs, changes, progress)


@torch.no_grad()
def own_text(model: Model, number: int, length: int) -> Tensor:
    """Token ids (number, length) that a decoder samples, beginning with its start token."""
    start = model.config.bos_token_id
    begin = torch.full((number, 1), 0 if start is None else start, device=model.device)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        generate: Any = model.module.generate
        drawn: Tensor = generate(
            begin,
            attention_mask=torch.ones_like(begin),
            do_sample=True,
            top_k=0,
            min_new_tokens=length - 1,
            max_new_tokens=length - 1,
            pad_token_id=0,
        )
    return drawn


Change = Callable[[], contextlib.AbstractContextManager[Any]]


def changes_of(
    model: Model, names: Sequence[str], ranks: Sequence[int]
) -> dict[tuple[str, str], Change]:
    """What can be done to a model, by mechanism and settings.

    These are mechanisms without weights of their own, and lower ranks of W_QK.
    """
    found: dict[tuple[str, str], Change] = {}
    for name in names:
        settings = settings_for(name, MIDDLE)
        if name != FULL and not find(name).own_weights:
            message = ", ".join(f"{key} {value}" for key, value in settings.items())
            found[name, message] = functools.partial(use_attention, model, name, **settings)
    for rank in ranks:
        found["query-key rank", f"rank {rank}"] = functools.partial(truncated, model.module, rank)
    return found


@torch.no_grad()
def measured(
    held: HeldOut, number: int, changes: dict[tuple[str, str], Change], progress: Progress
) -> list[Row]:
    """The rows of one model: the plain pass of a batch is made once for all changes."""
    model, forward = held.model, forward_of(held.model, with_head=True)
    tasks: dict[tuple[str, str], Task] = {}
    refused: dict[tuple[str, str], str] = {}
    batches = held.batches(number)
    stage = f"putting {numbered(len(changes), 'mechanism')} into {model.name}"
    for done, batch in enumerate(batches):
        progress(stage, done, len(batches))
        plain = forward(batch)
        for key, change in changes.items():
            if key in refused:
                continue
            try:
                with change():
                    other = forward(batch)
            except EigenlensError as error:
                refused[key] = str(error)
                continue
            task = tasks.setdefault(key, task_of(model, plain))
            task.add(task.observe(batch, plain), task.observe(batch, other))
    progress(stage, len(batches), len(batches))
    rows = []
    for mechanism, settings in changes:
        key = mechanism, settings
        if key in refused:
            rows.append(_row(model.name, mechanism, settings, refused=refused[key]))
            continue
        result = {row["measure"]: row for row in tasks[key].result()}
        main = next(result[name] for name in MAIN if name in result)
        kept = next(result[name]["planned"] for name in KEPT if name in result)
        rows.append(
            _row(
                model.name,
                mechanism,
                settings,
                main["measure"],
                main["plain"],
                main["planned"],
                kept,
            )
        )
    return rows


def _row(
    model: str,
    mechanism: str,
    settings: str,
    measure: str | None = None,
    plain: float | None = None,
    changed: float | None = None,
    kept: float | None = None,
    refused: str = "",
) -> Row:
    """One row; `kept` is 1 where nothing changed.

    Kept is the agreement of the likeliest token, the overlap of classes, or the cosine of the
    embeddings.
    """
    return {
        "model": model,
        "mechanism": mechanism,
        "settings": settings,
        "measure": measure,
        "plain": plain,
        "changed": changed,
        "kept": kept,
        "refused": refused,
    }


def sentence(rows: Sequence[Row]) -> str:
    """The mechanism that hurts each model least, in words; lower ranks are left out."""
    message = []
    for model in dict.fromkeys(row["model"] for row in rows):
        mine = [
            row for row in rows if row["model"] == model and row["mechanism"] != "query-key rank"
        ]
        if mine:
            best = max(mine, key=lambda row: row["kept"])
            message.append(
                f"{model} {best['mechanism']} ({best['measure']} {best['plain']:.4g} →"
                f" {best['changed']:.4g})"
            )
    return (
        f"Without training, each model is hurt least by: {'; '.join(message)}."
        if message
        else "No mechanism fits a model."
    )

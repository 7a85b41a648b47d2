"""Making an explanation: run every method on the tokens, then take tokens away."""

from __future__ import annotations

import base64
import io
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor, nn

from ..captures.borrowed import evaluation_mode
from ..data.encode import encode
from ..data.facts import DataFacts
from ..data.inputs import Batch
from ..data.needs import check_named
from ..data.token_text import token_texts
from ..display import numbered
from ..errors import EigenlensError
from ..extras import needs
from ..models.load import Model, load
from ..names import split_names, unknown_name
from ..passes.facts import Facts
from ..run.files import disk_errors
from ..run.progress import Progress, silent
from ..run.result_folder import check_output_dir
from .deletion import Deletion, deletion_curves
from .memory import check_memory, memory_of
from .methods import METHODS, attribute
from .removal import special_positions
from .result import Explanation
from .target import Target, target_of

TOGETHER = 16
"""Texts that go through the model in one batch."""
SIDE = 160
"""Pixels of the small picture that an explanation of a vision model keeps."""

Wanted = int | str | tuple[int, int | str] | None


@overload
def explain(
    model: str | Path | nn.Module | Model,
    text: str | Path,
    *,
    target: Wanted = ...,
    against: str | None = ...,
    methods: str | Sequence[str] | None = ...,
    deletion: bool = ...,
    output_dir: str | Path | None = ...,
    overwrite: bool = ...,
    max_memory: float = ...,
    tokenizer: Any = ...,
    device: str = ...,
    progress: Progress = ...,
) -> Explanation: ...
@overload
def explain(
    model: str | Path | nn.Module | Model,
    text: list[str] | tuple[str, ...],
    *,
    target: Wanted = ...,
    against: str | Sequence[str] | None = ...,
    methods: str | Sequence[str] | None = ...,
    deletion: bool = ...,
    output_dir: str | Path | None = ...,
    overwrite: bool = ...,
    max_memory: float = ...,
    tokenizer: Any = ...,
    device: str = ...,
    progress: Progress = ...,
) -> tuple[Explanation, ...]: ...
def explain(
    model: str | Path | nn.Module | Model,
    text: str | Path | list[str] | tuple[str, ...],
    *,
    target: Wanted = None,
    against: str | Sequence[str] | None = None,
    methods: str | Sequence[str] | None = None,
    deletion: bool = True,
    output_dir: str | Path | None = None,
    overwrite: bool = False,
    max_memory: float = 8.0,
    tokenizer: Any = None,
    device: str | None = "auto",
    progress: Progress = silent,
) -> Explanation | tuple[Explanation, ...]:
    """Explain which tokens of a text decide what a model makes of it.

    A language model is asked for its next token, a classifier for its class, an embedding model how
    alike two texts are. Where a model cannot run on fewer tokens, a note says so instead of
    deletion curves. A module in training mode is explained in evaluation mode, and is in training
    mode again afterwards.

    Parameters
    ----------
    model : str, Path, nn.Module or Model
        A name of the catalogue (`"minilm"`), a folder as `save_pretrained` writes it, a hub id
        (`"org/name"`), or a module in memory.
    text : str, Path, or list or tuple of str
        The text; for a vision model the path of a picture, for a speech model that of a `.wav`
        file. Several texts go through the model together.
    target : int, str or tuple, optional
        What is explained: a token as text or id, a class by number or name, `(position, class)`, or
        `"output"`. Default: what the model finds likeliest.
    against : str or sequence of str, optional
        For an embedding model: the other text, or one for each text. Default: none.
    methods : str or sequence of str, optional
        Methods by name, as a list or with commas. Default: all.
    deletion : bool, default True
        Measure the target again while tokens are taken away, most and least relevant first.
    output_dir : str or Path, optional
        The folder of the explanation; of several texts each has a folder in it. Default: none is
        written.
    overwrite : bool, default False
        Overwrite an existing result.
    max_memory : float, default 8.0
        Most gigabytes for attention patterns and their gradients, `2·L·H·T²` numbers; a text that
        takes more is refused.
    tokenizer : object, optional
        The tokenizer of a module in memory. Default: the one in the model's folder.
    device : str or None, default "auto"
        Where the model runs, such as `"cpu"` or `"cuda"`; `"auto"` is a GPU if there is one. `None`
        leaves the model where it is.
    progress : callable, optional
        Called with `(what, done, total)` during the work. Default: silent.

    Returns
    -------
    Explanation or tuple of Explanation
        T scores by each method and the deletion curves; a tuple for a list of texts.

    Raises
    ------
    EigenlensError
        If the model cannot be asked for the target, a method is unknown, the folder is taken, or a
        text takes too much memory.

    Examples
    --------
    >>> found = explain("smollm2", "The capital of France is")
    >>> found.scores["relevance"]                       # one number per token: T of them
    >>> explain("minilm", ["A cat sleeps.", "A dog barks."], against="An animal at rest.")
    """
    several = not isinstance(text, str | Path)
    texts = [str(text)] if isinstance(text, str | Path) else [str(item) for item in text]
    others = _others(against, len(texts))
    names = _known(methods)
    if not max_memory > 0:
        raise EigenlensError(f"the memory limit must be above 0 GB, not {max_memory}")
    folder = check_output_dir(output_dir, overwrite, "explanation")
    check_named([model])
    loaded = load(model, device=device, tokenizer=tokenizer)
    found: list[Explanation] = []
    stage = f"explaining {numbered(len(texts), 'input')}"
    with evaluation_mode(loaded.module, device):
        for begin in range(0, max(len(texts), 1), TOGETHER):
            progress(stage, begin, len(texts))
            some = slice(begin, begin + TOGETHER)
            found += _explained(
                loaded,
                texts[some],
                target,
                None if others is None else others[some],
                names,
                deletion,
                max_memory,
            )
    progress(stage, len(texts), len(texts))
    if folder is not None:
        _clear(folder)
        for number, one in enumerate(found, 1):
            one.save(folder / str(number) if several else folder)
    return tuple(found) if several else found[0]


def _others(against: str | Path | Sequence[str] | None, number: int) -> list[str] | None:
    """The text that each text is compared with, or None."""
    if against is None:
        return None
    given = [str(against)] if isinstance(against, str | Path) else [str(item) for item in against]
    if len(given) not in {1, number}:
        raise EigenlensError(
            f"there are {numbered(number, 'text')} and {len(given)} to compare with; give one for"
            " all, or one for each text"
        )
    return given * number if len(given) == 1 else given


def _clear(folder: Path) -> None:
    """Remove what an earlier explanation left, and nothing else.

    That is its file and page, here and in numbered folders.
    """
    if not folder.is_dir():
        return
    with disk_errors(folder):
        numbers = [
            place
            for place in folder.iterdir()
            if place.name.isdecimal() and (place / "explanation.json").is_file()
        ]
        for place in (folder, *numbers):
            for name in ("explanation.json", "explanation.html"):
                (place / name).unlink(missing_ok=True)
        for place in numbers:
            if not any(place.iterdir()):
                place.rmdir()


def _known(methods: str | Sequence[str] | None) -> list[str] | None:
    if methods is None:
        return None
    names = split_names(methods)
    if wrong := [name for name in names if name not in METHODS]:
        raise unknown_name("method", wrong[0], METHODS)
    if not names:
        raise EigenlensError(f"no method was named; there are {', '.join(METHODS)}")
    return names


def _explained(
    model: Model,
    texts: list[str],
    target: Wanted,
    against: list[str] | None,
    methods: list[str] | None,
    deletion: bool,
    gigabytes: float,
) -> list[Explanation]:
    """Explain one batch of texts, or its two halves if it would take too much memory."""
    start = time.perf_counter()
    batch = encode(model, texts)
    if len(texts) > 1 and memory_of(model, batch) > gigabytes * 1e9:
        half = len(texts) // 2
        return [
            one
            for some in (slice(half), slice(half, None))
            for one in _explained(
                model,
                texts[some],
                target,
                None if against is None else against[some],
                methods,
                deletion,
                gigabytes,
            )
        ]
    check_memory(model, batch, gigabytes)
    asked = target_of(model, batch, target=target, against=_one_for_all(against))
    scores = attribute(model, batch, asked, methods)  # method → (B, T)
    value = scores.observed.score  # (B,)
    _finite({"the target": value, **scores})
    length = next(iter(scores.values())).shape[1]
    words, grid = token_texts(model, batch, "encoder", length), _grid(model, batch, length)
    frame = special_positions(model, batch, length)  # (B, T)
    notes = list(scores.notes)
    curves: list[Deletion] = []
    try:
        curves = deletion_curves(model, batch, asked, scores, frame) if deletion else []
    except EigenlensError as error:  # what the methods found holds all the same
        notes.append(f"deletion curves were left out: {error}")
    seconds = (time.perf_counter() - start) / len(texts)
    found = []
    for i, text in enumerate(texts):
        real = _real(batch, i, length)
        facts = Facts.now(
            model.facts,
            DataFacts(text, is_input=True),
            length=int(real.sum()),
            inputs=1,
            notes=notes,
            seconds=round(seconds, 3),
        )
        stored = {
            **facts.record("model", "versions", "seconds", "created", "data"),
            "against": None if against is None else against[i],
            **facts.record("length", "inputs"),
            "target": {
                "kind": asked.kind,
                "label": _label(asked, i),
                "unit": asked.unit,
                "position": _read_at(model, asked, i, int(real.sum())),
            },
            "score": float(value[i]),
            "grid": None if grid is None else list(grid),
            "picture": _picture(model, batch, i),
            **facts.record("notes"),
        }
        found.append(
            Explanation(
                stored,
                [word for word, counts in zip(words[i], real.tolist()) if counts],
                frame[i][real].tolist(),
                {name: [float(x) for x in score[i][real]] for name, score in scores.items()},
                [
                    {
                        "method": curve.method,
                        "order": curve.order,
                        "fractions": [float(f) for f in curve.fractions],
                        "scores": [float(x) for x in curve.scores[i]],
                        "auc": float(curve.auc[i]),
                    }
                    for curve in curves
                ],
            )
        )
    # nothing was taken away: no curves
    return [one if one.free else replace(one, deletion=[]) for one in found]


def _one_for_all(against: list[str] | None) -> str | list[str] | None:
    """One text if all are compared with the same one, so that it is encoded once."""
    return against[0] if against and len(set(against)) == 1 else against


def _finite(numbers: dict[str, Tensor]) -> None:
    for name, x in numbers.items():
        if not bool(torch.isfinite(x).all()):
            raise EigenlensError(
                f"{name} has scores that are not finite: the model overflows on this input"
            )


def _label(target: Target, row: int) -> str:
    return target.labels[row] if target.labels else target.label


def _read_at(model: Model, target: Target, row: int, length: int) -> int | None:
    """The position at which the target is read, or None if it is none of the input."""
    if target.position is not None:
        return int(target.position[row])
    return length - 1 if target.kind == "token" and model.kind == "decoder" else None


def _real(batch: Batch, row: int, length: int) -> Tensor:
    """Which tokens are no padding, (T,)."""
    mask = batch.get("attention_mask")
    if mask is None or mask.shape[1:] != (length,):
        return torch.ones(length, dtype=torch.bool)
    return mask[row].bool().cpu()


def _grid(model: Model, batch: Batch, length: int) -> tuple[int, int] | None:
    """The rows and columns of the patches, or one row of frames.

    None for text, and if patches were merged.
    """
    if "input_features" in batch:
        return 1, length
    if "pixel_values" not in batch:
        return None
    patch = getattr(model.config, "patch_size", 16)
    down, across = (patch, patch) if isinstance(patch, int) else patch
    rows, columns = batch["pixel_values"].shape[2] // down, batch["pixel_values"].shape[3] // across
    return (rows, columns) if 0 < rows * columns <= length else None


def _picture(model: Model, batch: Batch, row: int) -> str | None:
    """A small picture of what a vision model saw, as a `data:` address."""
    if "pixel_values" not in batch:
        return None
    needs("PIL", what="showing pictures")
    from PIL import Image

    pixels = batch["pixel_values"][row].float().cpu()  # (3, h, w)
    mean, spread = (
        torch.tensor(getattr(model.processor, name, None) or [0.5] * 3)[:, None, None]
        for name in NORMALISED
    )
    bytes_ = ((pixels * spread + mean).clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy()
    file = io.BytesIO()
    Image.fromarray(bytes_).resize((SIDE, SIDE * bytes_.shape[0] // bytes_.shape[1])).save(
        file, "JPEG", quality=80
    )
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"


NORMALISED = ("image_mean", "image_std")

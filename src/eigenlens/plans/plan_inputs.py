"""The inputs of a plan: which are fitted on, which choose it, and which check it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from ..data.arrays import is_array
from ..data.inputs import Inputs, Request, prepare
from ..data.split import FIT
from ..display import numbered
from ..errors import EigenlensError
from ..models.load import Model
from ..shell import option
from .held_out import documents_first

DOCUMENTS = 8
"""Documents to choose on, and as many to check on."""
MOST_FITTED, MOST_TEXTS = 8, 4
"""Inputs that forms are tried on, at the most: of a language model fewer, every token counts."""
FIT_TOKENS = 8192
"""In a language model they have about so many tokens together."""


@dataclass
class PlanInputs:
    """The inputs of a plan, and which of them are for what."""

    request: Request
    inputs: Inputs
    rows: dict[str, np.ndarray]
    notes: list[str] = field(default_factory=list)


def check_number(number: int | None, checks: bool) -> None:
    """Refuse fewer inputs than a plan can be chosen on."""
    least = 2 if checks else 1
    if number is not None and number < least:
        what = "a plan within a loss" if checks else "a plan of blocks"
        raise EigenlensError(
            f"{what} needs at least {numbered(least, 'input')} to choose on, not {number}; raise"
            f" {option('max_inputs', None)}"
        )


def prepare_plan_inputs(
    model: Model,
    names: tuple[str, ...],
    length: int,
    number: int | None,
    seed: int,
    checks: bool,
    scratch: Path,
) -> PlanInputs:
    """One input per document if enough documents are long enough, else documents joined.

    A single long text is what a plan is for, and may lose more than short ones in a row. `number`
    is how many choose and how many check, if the plan `checks` a loss.
    """
    documents = number if number is not None else DOCUMENTS if checks else 1
    fitted = _fitted(length, documents, model.kind)
    request = _request(names, length, documents, fitted, seed, checks)

    def prepared(request: Request) -> PlanInputs:
        ready = prepare(model, request, scratch)
        return PlanInputs(request, ready, _rows(ready, documents, fitted, checks))

    needed = ("choose", "check") if checks else ("fit",)
    texts = model.kind not in {"vision", "audio"} and not any(map(is_array, request.data))
    if texts and "-" not in request.data:
        try:
            apart = prepared(replace(request, joined=False))
        except EigenlensError:  # there are too few, or something is wrong: what follows says it
            pass
        else:
            if all(len(apart.rows[name]) >= documents for name in needed):
                return apart
    found = prepared(request)
    if texts:
        found.notes.append(
            f"too few documents have {found.inputs.length} tokens: an input may join several, one"
            " after the other; a single long document may lose more"
        )
    if checks and any(len(found.rows[name]) < documents for name in needed):
        count = found.inputs.facts.count
        found.notes.append(
            f"the plan was chosen on {count(len(found.rows['choose']))} and checked on"
            f" {len(found.rows['check'])}, where {documents} each were asked for: there are no more"
        )
    return found


def _request(
    names: tuple[str, ...], length: int, documents: int, fitted: int, seed: int, checks: bool
) -> Request:
    if not checks:
        return Request(names, length, 2 * max(documents, 2), 0.5, seed, False)
    # of 8 groups of documents three choose, three check, and two are left for an evaluation
    # at least two to fit, as every study has; more where few are used, from different documents
    held = 4 * documents
    fit = max(2, fitted, held // 3 if fitted >= MOST_TEXTS else 0)
    return Request(names, length, max(fit + held, 3), held / (fit + held), seed, False)


def _fitted(length: int, documents: int, kind: str) -> int:
    """Inputs that forms are tried on.

    In a language model every token of an input tells something, in any other the input as a whole:
    those take as many of any length.
    """
    most = min(MOST_TEXTS, FIT_TOKENS // max(length, 1)) if kind == "decoder" else MOST_FITTED
    return max(1, min(most, documents))


def _rows(ready: Inputs, documents: int, fitted: int, checks: bool) -> dict[str, np.ndarray]:
    """Which inputs are fitted on, which choose a plan, and which check it."""
    fit = np.flatnonzero(ready.buckets == FIT)
    if not checks:
        return {"fit": fit[:documents]}
    groups = ready.groups[1:]
    parts = {
        "fit": documents_first(ready, fit)[:fitted],
        "choose": _of_groups(ready, groups[::3])[:documents],
        "check": _of_groups(ready, groups[1::3])[:documents],
    }
    if len(parts["check"]) < 2 or len(parts["choose"]) < 2 or not len(fit):
        raise EigenlensError(
            f"no held-out documents are left to choose and check a plan on: of {ready.length}"
            f" tokens each there are {len(fit)} inputs to fit, {len(parts['choose'])} to choose on"
            f" and {len(parts['check'])} to check on, and a plan needs 1, 2 and 2; give more data,"
            f" or a smaller {option('max_length', None)}"
        )
    return parts


def _of_groups(ready: Inputs, groups: list[int]) -> np.ndarray:
    """The inputs of some groups, first one of every document."""
    return documents_first(ready, np.flatnonzero(np.isin(ready.buckets, groups)))

"""Making a plan: every candidate on held-out inputs, then the choice."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from ..captures import Site
from ..captures.borrowed import borrowed
from ..errors import EigenlensError
from ..estimators.adaptive import Cascade
from ..estimators.candidates import chosen_names
from ..estimators.estimator import Estimator
from ..models.load import Model
from ..run.progress import Progress, silent
from ..run.result_folder import check_place
from ..run.run_all import lost
from ..studies import Study
from .choose import within_budget, within_error
from .examples import take
from .held_out import check_share, held_out_of, made_from
from .result import Choice, Plan, PlanPart
from .site_statistics import NEEDED, site_statistics
from .trials import Calibration, Measured, Trials

CALIBRATION_INPUTS = 2
SHAPE = ("keys", "head_dimension", "pairs")


def plan(
    study: Study | str | Path,
    *,
    budget: float | None = None,
    error: float | None = None,
    estimators: str | Sequence[str] | None = None,
    max_inputs: int = 16,
    model: str | Path | nn.Module | Model | None = None,
    data: Any = None,
    output_dir: str | Path | None = None,
    overwrite: bool = False,
    seed: int = 0,
    device: str | None = "auto",
    progress: Progress = silent,
) -> Plan:
    """Give every head of a studied model an estimator.

    With `budget` the mean work for scores (multiply-adds that grow with the pairs, as a share of
    the exact ones) stays within it, and is spent where it lowers the mean total variation of the
    patterns most. With `error` every head gets the cheapest estimator whose total variation is at
    most that. The candidates are fitted from the study alone and measured on `max_inputs` held-out
    inputs; by default the study's own model and data are loaded again.

    >>> plan("minilm-study", budget=0.25).total_variation
    """
    begin = time.perf_counter()
    _check_target(budget, error)
    opened = study if isinstance(study, Study) else Study.open(study)
    _check_study(opened)
    names = chosen_names(estimators)
    folder = check_place(output_dir, overwrite, "plan")
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="eigenlens-data-")))
        held = held_out_of(opened, model, data, scratch, device)
        stack.enter_context(borrowed(held.model.module, device))
        statistics = site_statistics(opened)
        bench = Trials(statistics, names, budget, seed)
        if Cascade.name in names:
            work = Calibration(bench)
            held.run(work.sink, CALIBRATION_INPUTS, fit=True, progress=progress, what="thresholds")
            bench.add_cascades(work)
        measured = Measured(bench)
        used = held.run(measured.sink, max_inputs, progress=progress, what="candidates")
        chosen = _choose(measured, budget, error)
        made = _made(bench, measured, chosen, error)
        examples = take(bench, measured, chosen, held, opened.sites, used, progress)
    facts = {
        **made_from(opened, held.model, begin),
        "length": opened.length,
        "study": {
            "name": opened.name,
            "request": opened.request.record(),
            "data": opened.stored["data"],
        },
        "notes": [lost("the study", opened.partial)] if opened.partial else [],
        "shapes": {
            site: {key: known[key] for key in SHAPE} for site, known in opened.sites.items()
        },
        "target": {"budget": budget} if budget is not None else {"error": error},
        "inputs": used,
        "groups": held.groups,
        "chosen_on": held.names,
        "curve": measured.curve(),
    }
    found = Plan(facts, *made, examples=examples)
    if folder is not None:
        found.save(folder)
    return found


def _check_target(budget: float | None, error: float | None) -> None:
    if (budget is None) == (error is None):
        raise EigenlensError(
            "a plan needs either a budget or an error, such as --budget 0.25 or --error 0.05"
        )
    for name, value in (("budget", budget), ("error", error)):
        if value is not None:
            check_share(name, value)


def _check_study(study: Study) -> None:
    if study.of != "scores" or study.before_rope:
        what = "patterns" if study.of != "scores" else "scores before the rotary embedding"
        raise EigenlensError(
            f"the study in {study.folder} is of {what}; a plan needs one of the scores themselves"
        )
    for name in NEEDED:
        if not study.has(name):
            raise EigenlensError(
                f"the study in {study.folder} was made without {name}; make it anew with --only"
                " rows,moments"
            )


def _choose(measured: Measured, budget: float | None, error: float | None) -> np.ndarray:
    """The candidate of every head, (N,)."""
    errors, work = _losses(measured), measured.table("work")
    if budget is not None and (least := work.min(0).mean()) > budget + 1e-9:
        raise EigenlensError(
            f"these estimators cannot stay within a budget of {budget:g}: the least they take is"
            f" {least:.3g}"
        )
    return (
        within_budget(errors, work, budget)
        if budget is not None
        else within_error(errors, work, error or 0.0)
    )


def _losses(measured: Measured) -> np.ndarray:
    """Total variation (C, N) without what is only rounding."""
    errors = measured.table("total_variation")
    return np.where(errors < 1e-6, 0.0, errors)


def _made(
    bench: Trials, measured: Measured, chosen: np.ndarray, error: float | None
) -> tuple[tuple[Choice, ...], dict[str, list[PlanPart]]]:
    tables = {
        what: measured.table(what) for what in ("total_variation", "work", "pairs", "score_error")
    }
    errors, work = _losses(measured), tables["work"]
    choices, parts, column = [], {}, 0
    for site, statistics in bench.statistics.items():
        place = Site.parse(site)
        grouped: dict[int, list[int]] = {}
        for head in range(statistics.heads):
            i = int(chosen[column])
            estimator = bench.fitted[site][i]
            assert estimator is not None
            grouped.setdefault(i, []).append(head)
            why = _why(bench.fitted[site], errors[:, column], work[:, column], i, error)
            numbers = {
                what: float(tables[what][i, column])
                for what in ("work", "pairs", "total_variation", "score_error")
            }
            choices.append(
                Choice(
                    place.stack,
                    place.layer,
                    head,
                    estimator.name,
                    estimator.settings,
                    why=why,
                    **numbers,
                )
            )
            column += 1
        parts[site] = [
            PlanPart(tuple(heads), _of(bench.fitted[site][i], heads))
            for i, heads in sorted(grouped.items())
        ]
    return tuple(choices), parts


def _of(estimator: Estimator | None, heads: list[int]) -> Estimator:
    assert estimator is not None
    return estimator.of_heads(heads)


def _why(
    fitted: list[Estimator | None],
    errors: np.ndarray,
    work: np.ndarray,
    chosen: int,
    error: float | None,
) -> str:
    """The reason in numbers: what the nearest alternatives would have cost or lost."""
    served = np.isfinite(errors)
    cheaper = served & (work < work[chosen] - 1e-12)
    if error is not None:
        if not cheaper.any():
            return f"the cheapest of {served.sum()} is within {error:g}"
        near = int(np.where(cheaper, errors, np.inf).argmin())
        return (
            f"cheapest within {error:g}; the best below its cost, {_label(fitted, near)}, loses"
            f" {errors[near]:.3f}"
        )
    better = served & (errors < errors[chosen] - 1e-12)
    if not better.any():
        return f"the best of {served.sum()}"
    more = np.maximum(work - work[chosen], 1e-9)
    near = int(
        np.divide(
            errors[chosen] - errors, more, out=np.full_like(errors, -np.inf), where=better
        ).argmax()
    )
    return (
        f"the next step, {_label(fitted, near)}, would lose {errors[chosen] - errors[near]:.3f}"
        f" less for {work[near] - work[chosen]:.2f} more work"
    )


def _label(fitted: list[Estimator | None], index: int) -> str:
    estimator = fitted[index]
    return "" if estimator is None else estimator.label

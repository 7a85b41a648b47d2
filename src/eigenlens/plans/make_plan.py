"""Making a plan: measure every candidate on held-out inputs, then choose."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from ..captures import Site
from ..errors import EigenlensError
from ..estimators.adaptive import Cascade
from ..estimators.candidates import chosen_names
from ..estimators.estimator import Estimator
from ..models.load import Model
from ..passes.facts import Facts
from ..run.progress import Progress, silent
from ..run.result_folder import check_output_dir
from ..run.run_all import describe_failures
from ..shell import option
from ..studies import Study
from .block_plans import make_block_plan
from .choose import within_budget, within_error
from .examples import take
from .held_out import check_share, held_out_of, use_studied_model
from .result import KEPT, KEPT_OF_MODEL, Choice, Plan, PlanPart
from .site_statistics import NEEDED, site_statistics
from .trials import Calibration, Measured, Trials

CALIBRATION_INPUTS = 2
SHAPE = ("keys", "head_dimension", "pairs")


def plan(
    study: Study | str | Path,
    *,
    budget: float | None = None,
    error: float | None = None,
    blocks: bool = False,
    estimators: str | Sequence[str] | None = None,
    max_length: int | None = None,
    max_inputs: int | None = None,
    model: str | Path | nn.Module | Model | None = None,
    data: Any = None,
    output_dir: str | Path | None = None,
    overwrite: bool = False,
    seed: int = 0,
    device: str | None = "auto",
    progress: Progress = silent,
) -> Plan:
    """Choose cheaper attention for every head of a studied model, within a budget or an error.

    Without `blocks` every head gets an estimator of its scores. The candidates are fitted from the
    study alone and measured on held-out inputs. With `blocks` every key-value head of a causal
    language model gets a threshold for block-adaptive attention on long inputs; that takes one
    forward and one backward pass, and one more forward pass per threshold that is tried.

    Parameters
    ----------
    study : Study, str or Path
        The study, or its folder. It needs the statistics `rows` and `moments` (with `blocks` none).
    budget : float, optional
        The mean work per head, above 0 and at most 1. Without `blocks` a share of the multiply-adds
        of exact scores that grow with the pairs; with `blocks` a share of the work of causal
        attention: scores, values and selection. The budget goes to the heads that need it most.
    error : float, optional
        Instead of a budget: every head gets the cheapest estimator whose total variation from the
        true patterns is at most this, above 0 and at most 1. Not with `blocks`.
    blocks : bool, default False
        Plan block-adaptive attention for long inputs. Needs a budget.
    estimators : str or sequence of str, optional
        Names of the estimators to choose from, as a list or with commas. Default: all. Not with
        `blocks`.
    max_length : int, optional
        Tokens per input of a plan of `blocks`. Default: 4096. Without `blocks` the length is that
        of the study, and this is refused.
    max_inputs : int, optional
        At most this many inputs to choose on. Default: 16, with `blocks` 1.
    model : str, Path, nn.Module or Model, optional
        The studied model, where it is no longer where the study found it. Default: loaded again.
    data : str, Path, array or sequence of them, optional
        Data to choose on, as for `study`. Default: what the study held out of its own data.
    output_dir : str or Path, optional
        The folder of the plan. Default: none is written.
    overwrite : bool, default False
        Overwrite an existing folder.
    seed : int, default 0
        Random choices of pairs and landmarks. Not with `blocks`, which draws nothing.
    device : str or None, default "auto"
        Where the model runs, such as `"cpu"` or `"cuda"`; `"auto"` is a GPU if there is one, `None`
        is where the model is.
    progress : callable, optional
        Called with `(what, done, total)` while the plan is made. Default: silent.

    Returns
    -------
    Plan
        The choice of every head, which can be applied to the model, saved and evaluated.

    Raises
    ------
    EigenlensError
        If neither or both of `budget` and `error` are given, if options exclude each other, if the
        study or its model or data cannot serve, or if no choice stays within the budget.

    Examples
    --------
    >>> plan("minilm-study", budget=0.25).total_variation
    >>> plan("smollm2-study", budget=0.3, blocks=True, max_length=4096).save("LONG")
    """
    if blocks:
        budget = _check_blocks(budget, error, estimators, seed)
        return make_block_plan(
            study,
            budget,
            4096 if max_length is None else max_length,
            1 if max_inputs is None else max_inputs,
            model,
            data,
            output_dir,
            overwrite,
            device,
            progress,
        )
    if max_length is not None:
        raise EigenlensError(
            f"a plan has the length of its study; max_length is only for {option('blocks')}"
        )
    _check_target(budget, error)
    max_inputs = 16 if max_inputs is None else max_inputs
    begin = time.perf_counter()
    opened = study if isinstance(study, Study) else Study.open(study)
    _check_study(opened)
    names = chosen_names(estimators)
    folder = check_output_dir(output_dir, overwrite, "plan")
    with use_studied_model(opened, model, data, device) as used:
        held = held_out_of(opened, used.model, data, used.scratch)
        statistics = site_statistics(opened)
        trials = Trials(statistics, names, budget, seed)
        if Cascade.name in names:
            work = Calibration(trials)
            held.run(
                work.sink,
                CALIBRATION_INPUTS,
                fit=True,
                progress=progress,
                doing="choosing thresholds on",
            )
            trials.add_cascades(work)
        measured = Measured(trials)
        number = held.run(
            measured.sink, max_inputs, progress=progress, doing="trying estimators on"
        )
        chosen = _choose(measured, budget, error)
        made = _made(trials, measured, chosen, error)
        examples = take(trials, measured, chosen, held, opened.sites, number, progress)
    facts = Facts.now(
        held.model.facts,
        opened.facts.data,
        length=opened.length,
        inputs=number,
        notes=[describe_failures("the study", opened.partial)] if opened.partial else [],
        seconds=round(time.perf_counter() - begin, 2),
    )
    stored = {
        **facts.record(*KEPT, model=KEPT_OF_MODEL),
        "study": {
            "name": opened.name,
            "request": opened.request.record(),
            "data": opened.stored["data"],
        },
        **facts.record("notes"),
        "shapes": {
            str(site): {key: getattr(known, key) for key in SHAPE}
            for site, known in opened.sites.items()
        },
        "target": {"budget": budget} if budget is not None else {"error": error},
        **facts.record("inputs"),
        "groups": held.groups,
        "chosen_on": held.names,
        "curve": measured.curve(),
    }
    found = Plan(stored, *made, examples=examples)
    if folder is not None:
        found.save(folder)
    return found


def _check_target(budget: float | None, error: float | None) -> None:
    if (budget is None) == (error is None):
        raise EigenlensError(
            "a plan needs either a budget or an error: give one of the two, such as"
            f" {option('budget', 0.25)} or {option('error', 0.05)}"
        )
    for name, value in (("budget", budget), ("error", error)):
        if value is not None:
            check_share(name, value)


def _check_blocks(
    budget: float | None,
    error: float | None,
    estimators: str | Sequence[str] | None,
    seed: int,
) -> float:
    """The budget of a plan of blocks; an error if it is missing or other options are given."""
    given = [
        name
        for name, value in (("error", error), ("estimators", estimators), ("seed", seed or None))
        if value is not None
    ]
    if given:
        raise EigenlensError(
            f"a plan of blocks takes only a budget, and no {' and no '.join(given)}"
        )
    if budget is None:
        raise EigenlensError(f"a plan of blocks needs a budget, such as {option('budget', 0.3)}")
    return budget


def _check_study(study: Study) -> None:
    if study.of != "scores" or study.before_rope:
        what = "patterns" if study.of != "scores" else "scores before the rotary embedding"
        raise EigenlensError(
            f"the study in {study.folder} is of {what}; a plan needs a study of the scores"
            " themselves"
        )
    for name in NEEDED:
        if not study.has(name):
            raise EigenlensError(
                f"the study in {study.folder} was made without {name}; make it anew with"
                f" {option('only', 'rows,moments')}"
            )


def _choose(measured: Measured, budget: float | None, error: float | None) -> np.ndarray:
    """Choose a candidate for every head, (N,)."""
    errors, work = _losses(measured), measured.table("work")
    if budget is not None and (least := work.min(0).mean()) > budget + 1e-9:
        raise EigenlensError(
            f"these estimators cannot stay within a budget of {budget:g}, they take at least"
            f" {least:.3g}; raise the budget"
        )
    return (
        within_budget(errors, work, budget)
        if budget is not None
        else within_error(errors, work, error or 0.0)
    )


def _losses(measured: Measured) -> np.ndarray:
    """Total variation (C, N), with rounding errors as 0."""
    errors = measured.table("total_variation")
    return np.where(errors < 1e-6, 0.0, errors)


def _made(
    trials: Trials, measured: Measured, chosen: np.ndarray, error: float | None
) -> tuple[tuple[Choice, ...], dict[Site, list[PlanPart]]]:
    tables = {
        what: measured.table(what) for what in ("total_variation", "work", "pairs", "score_error")
    }
    errors, work = _losses(measured), tables["work"]
    choices, parts, column = [], {}, 0
    for site, statistics in trials.statistics.items():
        grouped: dict[int, list[int]] = {}
        for head in range(statistics.heads):
            i = int(chosen[column])
            estimator = trials.fitted[site][i]
            assert estimator is not None
            grouped.setdefault(i, []).append(head)
            why = _why(trials.fitted[site], errors[:, column], work[:, column], i, error)
            numbers = {
                what: float(tables[what][i, column])
                for what in ("work", "pairs", "total_variation", "score_error")
            }
            choices.append(
                Choice(
                    site.stack,
                    site.layer,
                    head,
                    estimator.name,
                    estimator.settings,
                    why=why,
                    **numbers,
                )
            )
            column += 1
        parts[site] = [
            PlanPart(tuple(heads), _of(trials.fitted[site][i], heads))
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
    """Why a candidate was chosen: what the nearest alternative would cost or lose."""
    served = np.isfinite(errors)
    cheaper = served & (work < work[chosen] - 1e-12)
    if error is not None:
        if not cheaper.any():
            return f"the cheapest of {served.sum()} candidates is within {error:g}"
        near = int(np.where(cheaper, errors, np.inf).argmin())
        return (
            f"the cheapest within {error:g}; the best of the cheaper ones, {_label(fitted, near)},"
            f" loses {errors[near]:.3f}"
        )
    better = served & (errors < errors[chosen] - 1e-12)
    if not better.any():
        return f"the best of {served.sum()} candidates"
    more = np.maximum(work - work[chosen], 1e-9)
    near = int(
        np.divide(
            errors[chosen] - errors, more, out=np.full_like(errors, -np.inf), where=better
        ).argmax()
    )
    return (
        f"the next better one, {_label(fitted, near)}, would lose"
        f" {errors[chosen] - errors[near]:.3f} less for {work[near] - work[chosen]:.2f} more work"
    )


def _label(fitted: list[Estimator | None], index: int) -> str:
    estimator = fitted[index]
    return "" if estimator is None else estimator.label

"""Making a plan: measure every candidate on held-out inputs, then choose."""

from __future__ import annotations

import math
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
from ..estimators.exact import Exact
from ..estimators.fitted import FittedSubspace
from ..estimators.subspace import JointSubspace
from ..models.load import Model
from ..models.weights import sample_weights
from ..passes.facts import Facts
from ..run.progress import Progress, silent
from ..run.result_folder import check_output_dir
from ..run.run_all import describe_failures
from ..shell import option
from ..studies import Study
from .attended_pairs import with_attended_pairs
from .choose import within_budget, within_error
from .examples import take
from .held_out import check_share, held_out_of, use_studied_model
from .make_sparse_plan import make_sparse_plan
from .parts import PlanPart
from .result import KEPT, KEPT_OF_MODEL, Choice, Plan
from .site_statistics import NEEDED, site_statistics
from .trials import Calibration, Measured, Trials

CALIBRATION_INPUTS = 2
SHAPE = ("keys", "head_dimension", "pairs")


def plan(
    study: Study | str | Path,
    *,
    loss: float | str | None = None,
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
    """Choose cheaper attention for every head of a studied model: within a loss, or a budget.

    With `loss` the plan is the fastest one, in seconds on this machine, that keeps the model's own
    measure within the loss on documents that nothing was fitted on: the perplexity of a language
    model, `1 − cosine` of the embeddings of any other. Every head attends densely, to a window, or
    to the keys that a few rows choose. With `blocks` such forms are chosen within a budget of
    pairs, and the loss is not measured. Otherwise every head gets an estimator of its scores; such
    a plan is simulated: it computes densely and counts what a kernel would save.

    Parameters
    ----------
    study : Study, str or Path
        The study, or its folder. A plan of estimators needs its statistics `rows` and `moments`.
    loss : float or str, optional
        How much worse the model may get, as a share (`0.01`) or in percent (`"1%"`).
    budget : float, optional
        Instead of a loss: the mean work per head, above 0 and at most 1. With `blocks` a share of
        the pairs of full attention, selection included; otherwise a share of the multiply-adds of
        exact scores. The budget goes to the heads that need it most.
    error : float, optional
        Instead of either: every head gets the cheapest estimator whose total variation from the
        true patterns is at most this, above 0 and at most 1.
    blocks : bool, default False
        With a budget: leave keys out of long inputs instead of estimating scores.
    estimators : str or sequence of str, optional
        Names of the estimators to choose from, as a list or with commas. Default: all but
        `joint-fitted`, which reads more inputs. Only for a plan of estimators.
    max_length : int, optional
        Tokens per input. Default: as the study; with `blocks` 4096. A plan of estimators has the
        length of its study, and this is refused.
    max_inputs : int, optional
        At most this many inputs to choose on, and with `loss` as many to check the plan on.
        Default: 16, with `loss` 8, with `blocks` 1.
    model : str, Path, nn.Module or Model, optional
        The studied model, where it is no longer where the study found it. Default: loaded again.
    data : str, Path, array or sequence of them, optional
        Data to choose on, as for `study`. Default: what the study held out of its own data; for a
        plan that leaves keys out, the data of the study.
    output_dir : str or Path, optional
        The folder of the plan. Default: none is written.
    overwrite : bool, default False
        Overwrite an existing folder.
    seed : int, default 0
        Random choices of pairs and landmarks. Only for a plan of estimators.
    device : str or None, default "auto"
        Where the model runs, such as `"cpu"` or `"cuda"`; `"auto"` is a GPU if there is one, `None`
        is where the model is.
    progress : callable, optional
        Called with `(what, done, total)` while the plan is made. Default: silent.

    Returns
    -------
    Plan
        The choice of every head, which can be applied to the model, saved and evaluated. If no
        plan within the loss is faster, every head is dense, and the plan says so.

    Raises
    ------
    EigenlensError
        If not exactly one of `loss`, `budget` and `error` is given, if options exclude each other,
        if the study or its model or data cannot serve, if no choice stays within the budget, or if
        too few documents are left to choose and check on.

    Examples
    --------
    >>> plan("smollm2-study", loss="1%", max_length=4096).save("FAST")
    >>> plan("minilm-study", budget=0.25).total_variation
    """
    share = None if loss is None else loss_of(loss)
    if blocks or share is not None:
        _check_sparse(share, budget, error, blocks, estimators, seed)
        return make_sparse_plan(
            study,
            budget=budget,
            loss=share,
            max_length=4096 if max_length is None and share is None else max_length,
            max_inputs=max_inputs,
            model=model,
            data=data,
            output_dir=output_dir,
            overwrite=overwrite,
            device=device,
            progress=progress,
        )
    if max_length is not None:
        raise EigenlensError(
            "a plan of estimators has the length of its study; max_length is only for"
            f" {option('loss', None)} and {option('blocks')}"
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
        if FittedSubspace.name in names:
            masked = {site: known for site, known in statistics.items() if known.causal}
            if not masked and set(names) <= {FittedSubspace.name, Exact.name}:
                raise EigenlensError(
                    f"{FittedSubspace.name} is for causal attention, which {held.model.facts.name}"
                    f" does not have; take {JointSubspace.name}"
                )
            statistics |= with_attended_pairs(masked, held, progress) if masked else {}
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
        "weights": sample_weights(held.model.module),
    }
    found = Plan(stored, *made, examples=examples)
    if folder is not None:
        found.save(folder)
    return found


def _check_target(budget: float | None, error: float | None) -> None:
    if (budget is None) == (error is None):
        raise EigenlensError(
            "a plan needs a loss, a budget or an error: give one of them, such as"
            f" {option('loss', '1%')}, {option('budget', 0.25)} or {option('error', 0.05)}"
        )
    for name, value in (("budget", budget), ("error", error)):
        if value is not None:
            check_share(name, value)


def loss_of(given: float | str) -> float:
    """A loss as a share, from a share or from percent: `0.01` or `"1%"`.

    >>> loss_of("0.5%")
    0.005
    """
    text = str(given).strip()
    try:
        value = float(text.removesuffix("%").strip()) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = math.nan
    if not 0 < value < 1:
        raise EigenlensError(
            f"the loss must be a share between 0 and 1 such as 0.01, or percent such as 1%, not"
            f" {given!r}"
        )
    return value


def _check_sparse(
    loss: float | None,
    budget: float | None,
    error: float | None,
    blocks: bool,
    estimators: str | Sequence[str] | None,
    seed: int,
) -> None:
    """An error if a plan that leaves keys out lacks its target, or gets other options."""
    if loss is not None and blocks:
        raise EigenlensError(
            f"{option('loss', None)} finds the forms of heads by itself; leave out"
            f" {option('blocks')}"
        )
    others: dict[str, Any] = {"error": error, "estimators": estimators, "seed": seed or None}
    if loss is not None:
        others["budget"] = budget
    given = [name for name, value in others.items() if value is not None]
    what = "a plan within a loss" if loss is not None else "a plan of blocks"
    if given:
        own = "a loss" if loss is not None else "a budget"
        raise EigenlensError(f"{what} takes only {own}, and no {' and no '.join(given)}")
    if loss is None and budget is None:
        raise EigenlensError(f"a plan of blocks needs a budget, such as {option('budget', 0.3)}")


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

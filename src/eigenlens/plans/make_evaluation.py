"""Evaluating a plan, or another mechanism, in a model beside the unchanged model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from torch import nn

from ..attention import Mechanism
from ..errors import EigenlensError
from ..models.load import Model
from ..passes.use_model import UsedModel, use_model
from ..run.engine import Engine, choose_engine, use_engine
from ..run.progress import Progress, silent
from ..run.result_folder import check_output_dir
from .comparison import Change
from .drop_in import DropIn, dropped
from .evaluation import Evaluation
from .held_out import HeldOut
from .paired import PairedEvaluation
from .plan_change import PlanChange
from .result import Plan

__all__ = ["Evaluation", "evaluate"]


def evaluate(
    model: str | Path | nn.Module | Model,
    data: Any = None,
    *,
    plan: Plan | str | Path | None = None,
    attention: str | Mechanism | None = None,
    settings: Mapping[str, Any] | None = None,
    max_inputs: int = 48,
    max_length: int | None = None,
    padding: bool = False,
    output_dir: str | Path | None = None,
    overwrite: bool = False,
    device: str = "auto",
    tokenizer: Any = None,
    engine: Engine | None = None,
    progress: Progress = silent,
) -> Evaluation:
    """Measure a plan, or an attention mechanism, in a model beside the unchanged model.

    Patterns are compared call by call on the queries and keys of the unchanged model. The measure
    of the task and the seconds come from whole passes, in which every layer sees what the planned
    layers below it made. On the data of the study only documents are used that neither the study
    nor the choice of the plan has seen.

    Parameters
    ----------
    model : str, Path, nn.Module or Model
        A name of the catalogue (`"minilm"`), a folder as `save_pretrained` writes it, a hub id
        (`"org/name"`), or a module in memory.
    data : str, Path, array or sequence of them, optional
        Text files, folders, `FILE.jsonl` or `FILE.jsonl:FIELD`, a named set, token ids (a `.npy`
        file, or an array `(N, length)`), pictures for a vision model, `.wav` files for a speech
        model. Default: what the study of the plan held out; for a mechanism the text of the
        catalogue.
    plan : Plan, str or Path, optional
        The plan, or its folder. Give either a plan or `attention`.
    attention : str or Mechanism, optional
        A mechanism by name, or one that was made; cross-attention stays as it is.
    settings : mapping, optional
        Settings of the mechanism that `attention` names, such as `{"window": 64}`. Default: its
        own.
    max_inputs : int, default 48
        At most this many inputs.
    max_length : int, optional
        Tokens per input. Default: as the plan; for a mechanism 128.
    padding : bool, default False
        One input per document, padded, instead of packed text.
    output_dir : str or Path, optional
        The folder of the evaluation. Default: none is written.
    overwrite : bool, default False
        Overwrite an existing result.
    device : str, default "auto"
        Where the model runs, such as `"cpu"` or `"cuda"`; `"auto"` is a GPU if there is one. A
        module in memory stays where it is.
    tokenizer : object, optional
        The tokenizer of a module in memory. Default: the one in the model's folder.
    engine : Engine, optional
        Who computes: `Local()`, or `Dask(...)` for a cluster. Default: the engine of the
        surrounding `with` block, else this process. At equal threads nothing but the seconds
        depends on it: they are summed over all processes.
    progress : callable, optional
        Called with `(what, done, total)` during the work. Default: silent.

    Returns
    -------
    Evaluation
        Every measure of the plain and of the planned model, and the errors of every head.

    Raises
    ------
    EigenlensError
        If neither or both of `plan` and `attention` are given, if the plan is of another model, or
        if the mechanism cannot be dropped into this model.

    Examples
    --------
    >>> evaluate("minilm", "wikipedia", plan="PLAN").value("cosine of the embeddings")
    >>> evaluate("smollm2", attention="window", settings={"window": 64}).value("perplexity")
    """
    change = _change(plan, attention, settings)
    if max_inputs < 1:
        raise EigenlensError(f"an evaluation needs at least one input, not {max_inputs}")
    folder = check_output_dir(output_dir, overwrite, "evaluation")
    engine = choose_engine(engine)
    with use_model(model, data, device=device, tokenizer=tokenizer, engine=engine) as used:
        held, notes = change.inputs(used, max_inputs, max_length, padding)
        paired = PairedEvaluation(held, max_inputs, used.ref, change, engine, progress, notes)
        with use_engine(engine):
            found = change.evaluate(paired)
    if folder is not None:
        found.save(folder)
    return found


class EvaluatedChange(Change, Protocol):
    """A change that can be evaluated: a plan, or another mechanism."""

    def inputs(
        self, used: UsedModel, max_inputs: int, max_length: int | None, padding: bool
    ) -> tuple[HeldOut, list[str]]:
        """The inputs to measure on, and notes about them.

        An error if this model cannot be changed.
        """

    def evaluate(self, paired: PairedEvaluation) -> Evaluation:
        """Measure the change and return the evaluation."""


def _change(
    plan: Plan | str | Path | None,
    attention: str | Mechanism | None,
    settings: Mapping[str, Any] | None,
) -> EvaluatedChange:
    if plan is None and attention is not None:
        return DropIn(dropped(attention, settings))
    if plan is None or attention is not None:
        raise EigenlensError(
            "an evaluation needs either a plan or an attention mechanism: give one of the two"
        )
    if settings:
        raise EigenlensError(
            f"settings {', '.join(settings)} are only for an attention mechanism; leave them out,"
            " a plan has its own"
        )
    return PlanChange.of(plan if isinstance(plan, Plan) else Plan.open(plan))

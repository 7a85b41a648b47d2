"""A model with a plan, or with another mechanism, beside the model without."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ..attention import Mechanism
from ..captures import AttentionCall, Site
from ..captures.borrowed import borrowed
from ..data.arrays import ArrayName
from ..data.inputs import Inputs, Request, prepare
from ..data.needs import check_asked
from ..errors import EigenlensError
from ..estimators.measures import Errors, Truth
from ..models.load import Model, load
from ..passes.model_ref import ModelRef
from ..run.engine import Engine, choose, use_engine
from ..run.progress import Progress, silent
from ..run.result_folder import check_output_dir
from .block_plans import block_errors
from .drop_in import evaluate_mechanism
from .evaluation import BLOCK_MEASURES, MEASURES, Evaluation
from .held_out import HeldOut, is_own_array, names_of
from .paired import PairedEvaluation, means
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
    if (plan is None) == (attention is None):
        raise EigenlensError(
            "an evaluation is of a plan or of an attention mechanism: give one of the two"
        )
    check_asked(model, data)
    if attention is not None:
        return evaluate_mechanism(
            model,
            data,
            attention=attention,
            settings=settings,
            max_inputs=max_inputs,
            max_length=max_length,
            padding=padding,
            output_dir=output_dir,
            overwrite=overwrite,
            device=device,
            tokenizer=tokenizer,
            engine=engine,
            progress=progress,
        )
    if settings:
        raise EigenlensError(
            f"settings {', '.join(settings)} are for an attention mechanism, and a plan has its own"
        )
    assert plan is not None
    opened = plan if isinstance(plan, Plan) else Plan.open(plan)
    loaded = opened.check(load(model, device=device, tokenizer=tokenizer))
    if max_inputs < 1:
        raise EigenlensError(f"an evaluation needs at least one input, not {max_inputs}")
    folder = check_output_dir(output_dir, overwrite, "evaluation")
    bound = opened.blocks is None and loaded.kind not in {"vision", "audio"}
    if max_length is not None and bound and max_length > opened.length:
        raise EigenlensError(
            f"the plan is for inputs of up to {opened.length} tokens and {max_length} are asked"
            " for; make a plan of that length"
        )
    chosen = choose(engine)
    model_ref = ModelRef.of(loaded, device)
    if chosen.remote:
        model_ref.check_reachable()
    with (
        tempfile.TemporaryDirectory(prefix="eigenlens-data-") as scratch,
        borrowed(loaded.module, device),
    ):
        held, notes = _held(opened, loaded, data, max_length, padding, max_inputs, Path(scratch))
        with use_engine(chosen):
            paired = PairedEvaluation(
                held, max_inputs, model_ref, PlanChange.of(opened), chosen, progress, notes
            )
            if opened.blocks is None:
                sums, used = paired.calls("patterns")
                errors = {site: Errors(x) for site, x in sums.items()}
                heads = [row for site, x in errors.items() for row in _heads(site, x)]
                local = means(heads, MEASURES)
                if held.inputs.length == opened.length and not padding:
                    local += _multiply_adds(opened, errors)
            else:
                outputs, used = paired.calls("outputs")
                heads = _block_heads(opened, outputs)
                local = means(heads, BLOCK_MEASURES)
            of = {
                "target": opened.target,
                "model": opened.stored["model"],
                "study": opened.stored["study"]["name"],
                "work": opened.work,
            }
            found = paired.evaluation(local, heads, used, of)
    if folder is not None:
        found.save(folder)
    return found


@dataclass(frozen=True)
class PlanChange:
    """A plan as what is done to a model."""

    plan: Plan

    @classmethod
    def of(cls, plan: Plan) -> PlanChange:
        """Without the plan's examples, which only a report needs."""
        return cls(Plan(plan.stored, plan.choices, plan.parts, plan.blocks))

    def compare(self, call: AttentionCall) -> dict[str, Tensor]:
        if self.plan.blocks is not None:
            return block_errors(call, self.plan.blocks)
        errors = Errors()
        errors.add(Truth(call), self.plan.scores(call))
        return errors.sums

    def applied(self, model: Model) -> AbstractContextManager[None]:
        return self.plan.applied(model)


def _held(
    plan: Plan, model: Model, data: Any, length: int | None, pad: bool, number: int, scratch: Path
) -> tuple[HeldOut, list[str]]:
    """The inputs, and what has to be said of them."""
    stored = plan.request
    names = names_of(stored, data, model, scratch)
    heads = max(
        (sum(len(part.heads) for part in parts) for parts in plan.parts.values()), default=1
    )
    asked = stored.max_length if length is None else length
    chosen_elsewhere = plan.stored.get("chosen_on") not in (None, list(stored.data))
    request = replace(stored, data=names)
    own = list(names) == list(stored.data)
    if isinstance(names[0], ArrayName):  # of one shape, and so of one name, there are many
        own = is_own_array(request, stored, plan.facts.data.fingerprint, model, scratch)
    if own and asked == stored.max_length and pad == stored.padding:
        inputs = prepare(model, request, scratch)
        seen = [] if chosen_elsewhere else plan.stored["groups"]
        not_seen = [group for group in inputs.groups[1:] if group not in seen]
        notes = (
            []
            if not_seen
            else [
                "there is one group of held-out documents only: the plan was chosen on these inputs"
            ]
        )
        return HeldOut(model, inputs, not_seen or inputs.groups[1:], heads, list(names)), notes
    if asked is None and model.kind not in {"vision", "audio"}:
        asked = plan.length
    inputs = prepare(
        model, Request(names, asked, number, 0.5, stored.seed, pad), scratch, fitted=False
    )
    _check_other(plan, inputs)
    notes = []
    if own:
        notes.append(
            "the study was made from this text: at another length or padding its documents are"
            " among these inputs"
        )
    elif list(names) == plan.stored.get("chosen_on") and not isinstance(names[0], ArrayName):
        notes.append("the plan was chosen on this text: its inputs are among these")
    return HeldOut(model, inputs, inputs.groups, heads, list(names)), notes


def _check_other(plan: Plan, inputs: Inputs) -> None:
    mine = plan.facts.data.fingerprint
    if mine and inputs.facts.fingerprint == mine:
        raise EigenlensError("these are the inputs the study was made from; evaluate on other data")


def _heads(site: Site, errors: Errors) -> list[dict[str, Any]]:
    columns = {name: getattr(errors, name).tolist() for name in MEASURES}
    number = len(columns["work"])
    return [
        {
            "stack": site.stack,
            "layer": site.layer,
            "head": head,
            **{name: x[head] for name, x in columns.items()},
        }
        for head in range(number)
    ]


def _block_heads(plan: Plan, outputs: dict[Site, dict[str, Tensor]]) -> list[dict[str, Any]]:
    rows = []
    for choice in plan.choices:
        sums = outputs[choice.at.site]
        squared, squares, work, number = (
            float(sums[name][choice.head]) for name in ("squared", "squares", "work", "inputs")
        )
        rows.append(
            {
                "stack": choice.stack,
                "layer": choice.layer,
                "head": choice.head,
                "output_error": (squared / max(squares, 1e-30)) ** 0.5,
                "work": work / number,
                "work_planned": choice.work,
            }
        )
    return rows


def _multiply_adds(plan: Plan, errors: dict[Site, Errors]) -> list[dict[str, Any]]:
    """Millions for the scores of one input, all heads.

    Pairs alone, and with the projections of queries and keys.
    """
    exact = pairs = tokens = 0.0
    for site, parts in plan.parts.items():
        if site not in errors:
            continue
        shape = plan.stored["shapes"][str(site)]
        n, d = shape["keys"], shape["head_dimension"]
        whole = shape["pairs"] * d
        for part in parts:
            exact += whole * len(part.heads)
            pairs += whole * float(errors[site].work[list(part.heads)].sum())
            tokens += part.estimator.cost(n, d).per_token * len(part.heads)
    return [
        {
            "measure": "million multiply-adds for pairs",
            "plain": exact / 1e6,
            "planned": pairs / 1e6,
        },
        {
            "measure": "the same with projections",
            "plain": exact / 1e6,
            "planned": (pairs + tokens) / 1e6,
        },
    ]

"""A plan as a change of a model: its inputs, and its evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..attention.attend_by_forms import full_attention
from ..captures import AttentionCall, Site
from ..data.arrays import ArrayName
from ..data.inputs import Inputs, Request, prepare
from ..errors import EigenlensError
from ..estimators.measures import Errors, Truth
from ..models.load import Model
from ..passes.use_model import UsedModel
from ..run.clock import now
from .evaluation import ATTENTION, MEASURES, SPARSE_MEASURES, Evaluation
from .held_out import HeldOut, is_own_array, names_of
from .paired import PairedEvaluation, head_rows, means
from .result import Plan
from .sparse_plan import SparsePlan, Tally, plain_form


@dataclass(frozen=True)
class PlanChange:
    """A plan as a change of a model."""

    plan: Plan

    @classmethod
    def of(cls, plan: Plan) -> PlanChange:
        """The change by a plan, without the plan's examples, which only a report needs.

        It has a tally of its own: that of the plan counts what its user does.
        """
        sparse = None if plan.sparse is None else replace(plan.sparse, tally=Tally())
        return cls(Plan(plan.stored, plan.choices, plan.parts, sparse))

    def compare(self, call: AttentionCall) -> dict[str, Tensor] | None:
        if self.plan.sparse is not None:
            return sparse_errors(call, self.plan.sparse)
        errors = Errors()
        errors.add(Truth(call), self.plan.scores(call))
        return errors.sums

    def applied(self, model: Model) -> AbstractContextManager[None]:
        return self.plan.applied(model)

    def calls(self) -> Mapping[str, int]:
        return self.plan.tally.record()

    def inputs(
        self, used: UsedModel, max_inputs: int, max_length: int | None, padding: bool
    ) -> tuple[HeldOut, list[str]]:
        """The inputs that the study held out and the plan was not chosen on, or other data."""
        plan, stored = self.plan, self.plan.request
        model, scratch = plan.check(used.model), used.scratch
        of_tokens = model.kind not in {"vision", "audio"}
        if max_length is not None and of_tokens and max_length > plan.length:
            raise EigenlensError(
                f"the plan is for inputs of up to {plan.length} tokens, not {max_length}; give"
                " fewer tokens, or make a plan from a study of that length"
            )
        names = names_of(stored, used.data, model, scratch)
        heads = max(
            (sum(len(part.heads) for part in parts) for parts in plan.parts.values()), default=1
        )
        length = stored.max_length if max_length is None else max_length
        request = replace(stored, data=names)
        own = list(names) == list(stored.data)
        if isinstance(names[0], ArrayName):  # of one shape, and so of one name, there are many
            own = is_own_array(request, stored, plan.facts.data.fingerprint, model, scratch)
        if own and length == stored.max_length and padding == stored.padding:
            inputs = prepare(model, request, scratch)
            groups, notes = _not_seen(plan, inputs)
            if inputs.facts.fingerprint != plan.facts.data.fingerprint:
                notes.append(
                    "the data has changed since the plan was made, which may have seen some of"
                    " these inputs"
                )
            return HeldOut(model, inputs, groups, heads, list(names)), notes
        if length is None and of_tokens:
            length = plan.length
        other = Request(names, length, max_inputs, 0.5, stored.seed, padding)
        inputs = prepare(model, other, scratch, fitted=False)
        _check_other(plan, inputs)
        notes = []
        if own:
            notes.append(
                "the study was made from this text: at another length or with other padding, its"
                " documents are among these inputs"
            )
        elif list(names) == plan.stored.get("chosen_on") and not isinstance(names[0], ArrayName):
            notes.append("the plan was chosen on this text, so its inputs are among these")
        return HeldOut(model, inputs, inputs.groups, heads, list(names)), notes

    def evaluate(self, paired: PairedEvaluation) -> Evaluation:
        """Measure errors of scores and patterns; for a plan of blocks, errors of outputs."""
        plan = self.plan
        if plan.sparse is None:
            sums, used = paired.calls("patterns")
            errors = {site: Errors(x) for site, x in sums.items()}
            heads = [
                row
                for site, x in errors.items()
                for row in head_rows(site, {name: getattr(x, name) for name in MEASURES})
            ]
            local = means(heads, MEASURES)
            inputs = paired.held.inputs
            if inputs.length == plan.length and not inputs.facts.padded:
                local += _multiply_adds(plan, errors)
        else:
            outputs, used = paired.calls("outputs")
            heads = _sparse_heads(plan, outputs)
            local = [*means(heads, SPARSE_MEASURES), *attention_seconds(outputs, used)]
        change = {
            "target": plan.target,
            "model": plan.stored["model"],
            "study": plan.stored["study"]["name"],
            "work": plan.work,
        }
        return paired.evaluation(local, heads, used, change, simulated=plan.simulated)


def _not_seen(plan: Plan, inputs: Inputs) -> tuple[list[int], list[str]]:
    """The held-out groups that the plan was not chosen on; if none is left, all, with a note."""
    chosen_elsewhere = plan.stored.get("chosen_on") not in (None, list(plan.request.data))
    seen = [] if chosen_elsewhere else plan.stored["groups"]
    not_seen = [group for group in inputs.groups[1:] if group not in seen]
    if not_seen:
        return not_seen, []
    return inputs.groups[1:], [
        "no other held-out documents are left, so the plan was chosen on some of these inputs"
    ]


def _check_other(plan: Plan, inputs: Inputs) -> None:
    mine = plan.facts.data.fingerprint
    if mine and inputs.facts.fingerprint == mine:
        raise EigenlensError("the study was made from these inputs; evaluate on other data")


def _sparse_heads(plan: Plan, outputs: dict[Site, dict[str, Tensor]]) -> list[dict[str, Any]]:
    rows = []
    for choice in plan.choices:
        sums = outputs.get(choice.at.site)
        if sums is None:  # cross-attention, which no plan covers
            continue
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


def sparse_errors(call: AttentionCall, plan: SparsePlan) -> dict[str, Tensor] | None:
    """Sums per head `(H,)`: squared error of the planned output, squares of the true one, work.

    All are weighted by inputs; `seconds (2,)` are those of torch's attention and of the plan's,
    in turn. Where the model attends as before, the error is 0 and the work 1. None for attention
    that has no plain form to compare with.
    """
    plain = plain_form(call, call.site not in plan.layers or plan.layers[call.site].causal)
    if plain is None:
        return None
    causal, valid = plain
    begin = now(call.q.device)
    true = full_attention(call.q, call.k, call.v, causal, call.scale, valid)
    middle = now(call.q.device)
    output = plan.attend(call)
    end = now(call.q.device)
    real = 1.0 if valid is None else valid[:, None, :, None]
    squares = (true * real).double().square().sum((0, 2, 3)).cpu()
    squared = torch.zeros_like(squares)
    if output is not None:
        squared = ((output - true) * real).double().square().sum((0, 2, 3)).cpu()
    number = torch.full((call.heads,), float(len(call.q)), dtype=torch.float64)
    planned = middle - begin if output is None else end - middle
    return {
        "squared": squared,
        "squares": squares,
        "inputs": number,
        "work": plan.shares(call) * number,
        "seconds": torch.tensor([middle - begin, planned], dtype=torch.float64),
    }


def attention_seconds(outputs: dict[Site, dict[str, Tensor]], inputs: int) -> list[dict[str, Any]]:
    """Seconds of attention per input, by torch's own kernel and by the plan."""
    plain, planned = sum((sums["seconds"] for sums in outputs.values()), torch.zeros(2)).tolist()
    n = max(inputs, 1)
    return [{"measure": ATTENTION, "plain": plain / n, "planned": planned / n}]


def _multiply_adds(plan: Plan, errors: dict[Site, Errors]) -> list[dict[str, Any]]:
    """Millions of multiply-adds for the scores of one input, over all heads.

    For pairs alone, and with the projections of queries and keys.
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

"""Plans that leave keys out: within a loss that is measured, or within a budget of pairs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..attention.head_forms import LayerForms
from ..captures import AttentionCall, Site, SiteInfo, capture
from ..data.images import tokens_before_patches
from ..data.inputs import Batch, Inputs
from ..errors import EigenlensError
from ..kernels.build import kernel
from ..models.forward import forward_of
from ..models.load import Model
from ..models.weights import sample_weights
from ..passes.facts import Facts
from ..run.progress import Progress
from ..run.result_folder import check_output_dir
from ..studies import Study
from .allocation import NOTHING, Allocation, Candidate
from .calibration import Calibration, calibrate
from .gradients import task_gradients
from .held_out import check_share, names_of, use_studied_model
from .loss_search import PAYS, TimeOfPass, pays_from, search, single_document, time_of_pass
from .menu import Tried, try_options
from .plan_inputs import check_number, prepare_plan_inputs
from .result import KEPT, KEPT_OF_MODEL, Choice, Plan
from .sparse_plan import SHORTEST, SparsePlan


def make_sparse_plan(
    study: Study | str | Path,
    *,
    budget: float | None,
    loss: float | None,
    max_length: int | None,
    max_inputs: int | None,
    model: str | Path | nn.Module | Model | None,
    data: Any,
    output_dir: str | Path | None,
    overwrite: bool,
    device: str | None,
    progress: Progress,
) -> Plan:
    """Give every head its form, by trying all of them; `plan(…)` explains the options.

    The gradient of the task with respect to a head's output tells what an error of the head does to
    the task. This takes one pass forward and back per fitted input, and one more forward in which
    every form is tried.
    """
    begin = time.perf_counter()
    if budget is not None:
        check_share("budget", budget)
    check_number(max_inputs, loss is not None)
    opened = study if isinstance(study, Study) else Study.open(study)
    folder = check_output_dir(output_dir, overwrite, "plan")
    stored = opened.request
    with use_studied_model(opened, model, data, device) as used:
        loaded = used.model
        length = max_length if max_length is not None else stored.max_length
        prepared = prepare_plan_inputs(
            loaded,
            names_of(stored, data, loaded, used.scratch),
            opened.length if length is None else length,
            max_inputs,
            stored.seed,
            loss is not None,
            used.scratch,
        )
        request, ready, rows = prepared.request, prepared.inputs, prepared.rows
        batches = {
            name: [ready.make(some[i : i + 1]) for i in range(len(some))]
            for name, some in rows.items()
        }
        first = batches["fit"][0]
        took = time_of_pass(loaded, first, ready.length)
        if not took.served:
            raise EigenlensError(NOTHING)
        known = {
            d: calibrate(d, loaded.device, longest=ready.length, progress=progress)
            for d in _widths(opened)
        }
        made = _Making(loaded, opened, ready, took, known)
        made.notes += prepared.notes
        if ready.length > SHORTEST * LayerForms(()).block:
            made.allocation = Allocation(try_forms(loaded, batches["fit"], progress), known)
        if loss is None:
            made.within_budget(budget or 0.0)
        else:
            made.within_loss(loss, batches, progress)
    facts = Facts.now(
        loaded.facts,
        ready.facts,
        length=ready.length,
        inputs=len(rows["fit"]),
        notes=made.notes,
        seconds=round(time.perf_counter() - begin, 2),
    )
    record = {
        **facts.record(*KEPT, model=KEPT_OF_MODEL),
        "study": {"name": opened.name, "request": request.record(), **facts.record("data")},
        **facts.record("notes"),
        "target": {"loss": loss} if loss is not None else {"budget": budget},
        **facts.record("inputs"),
        "groups": made.groups,
        "shapes": {},
        "curve": [],
        "weights": sample_weights(loaded.module),
        "search": made.record,
    }
    found = Plan(record, made.choices, {}, made.plan)
    if folder is not None:
        found.save(folder)
    return found


def _widths(study: Study) -> list[int]:
    return sorted({known.head_dimension for known in study.sites.values()})


def try_forms(model: Model, batches: list[Batch], progress: Progress) -> dict[Site, Tried]:
    """Try every form at every head, on a few inputs."""
    found: dict[Site, Tried] = {}
    before_picture = tokens_before_patches(model) if model.kind == "vision" else None
    done = 0
    for batch in batches:
        gradients = task_gradients(model, batch)
        total = len(gradients.sets[0]) * len(batches)

        def sink(call: AttentionCall, gradients: Any = gradients, total: int = total) -> None:
            nonlocal done
            more = try_options(call, gradients, found.get(call.site), before_picture)
            if more is None:
                return
            if call.site in found:
                found[call.site].add(more)
            else:
                found[call.site] = more
            done += 1
            progress("trying every form at every head", done, total)

        with torch.no_grad(), capture(model.backbone, sink):
            forward_of(model)(batch)
    return found


class _Making:
    """A plan in the making, and what it says of itself."""

    def __init__(
        self,
        model: Model,
        study: Study,
        ready: Inputs,
        took: TimeOfPass,
        known: Mapping[int, Calibration],
    ) -> None:
        self.model, self.study, self.ready, self.took = model, study, ready, took
        self.known = known
        self.allocation: Allocation | None = None
        """None for inputs that are too short to save anything."""
        missing = kernel().missing
        self.notes: list[str] = []
        if missing is not None and str(model.device) == "cpu":
            self.notes.append(f"there is no native kernel, so torch computes: {missing}")
        self.groups: list[int] = []
        self.plan = SparsePlan({}, ready.length)
        self.choices = self._exact("dense: nothing else was tried")
        first = next(iter(known.values()))
        self.record: dict[str, Any] = {
            "machine": {
                name: getattr(first, name)
                for name in ("machine", "device", "threads", "torch", "kernel", "measured")
            },
            "pass": took.record(),
        }

    def within_budget(self, budget: float) -> None:
        if self.allocation is None:
            raise EigenlensError(
                f"leaving keys out saves nothing at {self.ready.length} tokens; give more than"
                f" {SHORTEST * LayerForms(()).block}"
            )
        self._take(self.allocation, self.allocation.within_share(budget))

    def _take(self, allocation: Allocation, candidate: Candidate) -> None:
        self.plan = allocation.plan(candidate, self.ready.length)
        self.choices = allocation.choices(candidate)

    def within_loss(self, loss: float, batches: dict[str, list[Batch]], progress: Progress) -> None:
        if self.allocation is not None:
            found = search(
                self.model,
                self.allocation,
                loss,
                self.ready.length,
                batches["choose"],
                batches["check"],
                len(batches["fit"]),
                self.ready.facts.count,
                progress,
            )
            self.record["tried"] = found.tried
            if found.candidate is not None:
                assert found.predicted is not None and found.checked is not None
                checked = found.checked.record()
                # the documents that chose the plan lose less than others do, so the others count
                single = single_document([*found.predicted.each, *found.checked.each])
                self.record |= {
                    "predicted": found.predicted.record(),
                    "checked": checked,
                    "single": single,
                }
                if checked["plain_seconds"] >= PAYS * checked["seconds"]:
                    groups = self.ready.groups[1:]
                    self.groups = sorted({*groups[::3], *groups[1::3]})
                    self._take(self.allocation, found.candidate)
                    self.record["pays"] = True
                    return
        rest = (self.took.seconds - self.took.attention) / self.took.tokens
        start = pays_from(rest, self._attention, self.model.max_length)
        self.record |= {"pays": False, "pays_from": start}
        why = (
            f"dense: no plan within {100 * loss:g} % is faster"
            if self.allocation is not None
            else f"dense: there is nothing to save at {self.ready.length} tokens"
        )
        self.choices = self._exact(why)

    def _exact(self, why: str) -> tuple[Choice, ...]:
        return tuple(
            Choice(site.stack, site.layer, head, "dense", {}, 1.0, 1.0, None, None, why)
            for site, known in self._served()
            for head in range(known.heads)
        )

    def _served(self) -> list[tuple[Site, SiteInfo]]:
        """The sites of the study whose attention a plan could serve."""
        return [
            (site, known) for site, known in self.study.sites.items() if site in self.took.served
        ]

    def _attention(self, length: int) -> tuple[float, float]:
        """Seconds of all layers at a length, by torch's kernel and by a usual plan."""
        plain = planned = 0.0
        for _, known in self._served():
            c = self.known[known.head_dimension]
            one = c.usual_head(known.mask == "causal", length)
            plain, planned = plain + known.heads * one[0], planned + known.heads * one[1]
        return plain, planned

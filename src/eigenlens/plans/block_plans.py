"""Plans for long inputs: block-adaptive attention with a threshold per key-value head."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..attention.block_selection import BlockSettings
from ..attention.blocks import dense_attention
from ..captures import AttentionCall, Site
from ..data.inputs import Request, prepare
from ..data.split import FIT
from ..errors import EigenlensError
from ..models.load import Model
from ..passes.facts import Facts
from ..run.progress import Progress
from ..run.result_folder import check_output_dir
from ..studies import Study
from .blocks import DENSE, LADDER, BlockPlan, Curves, allocate, loss_gradients, measure
from .held_out import HeldOut, check_share, names_of, use_studied_model
from .result import KEPT, KEPT_OF_MODEL, Choice, Plan


def make_block_plan(
    study: Study | str | Path,
    budget: float,
    max_length: int,
    max_inputs: int,
    model: str | Path | nn.Module | Model | None,
    data: Any,
    output_dir: str | Path | None,
    overwrite: bool,
    device: str | None,
    progress: Progress,
) -> Plan:
    """Give every key-value head of a language model its threshold for block-adaptive attention.

    This is for long inputs; `plan(…, blocks=True)` explains the options.

    `budget` is the mean share of the work of causal attention: scores, values and selection
    together. Every threshold is tried on `max_inputs` inputs of `max_length` tokens. The gradient
    of the loss with respect to a head's output tells what an error of the head does to the loss, so
    the budget goes to the heads that the model needs. This takes one forward and one backward pass,
    and one more forward pass per threshold that is tried.
    """
    begin = time.perf_counter()
    check_share("budget", budget)
    opened = study if isinstance(study, Study) else Study.open(study)
    folder = check_output_dir(output_dir, overwrite, "plan")
    base = BlockSettings(())
    stored = opened.request
    with use_studied_model(opened, model, data, device) as used:
        loaded = used.model
        if loaded.kind != "decoder" or not hasattr(loaded.module, "lm_head"):
            raise EigenlensError(
                "block-adaptive attention is only for causal language models,"
                f" and {loaded.name} is none"
            )
        if max_length <= 4 * base.query_block:
            raise EigenlensError(
                f"block-adaptive attention saves nothing at {max_length} tokens; give more than"
                f" {4 * base.query_block}"
            )
        names = names_of(stored, data, loaded, used.scratch)
        request = Request(names, max_length, 2 * max(max_inputs, 2), 0.5, stored.seed, False)
        ready = prepare(loaded, request, used.scratch)
        curves = _curves(HeldOut(loaded, ready, [FIT], 1, list(names)), max_inputs, base, progress)
    made = allocate(curves, budget)
    facts = Facts.now(
        loaded.facts,
        ready.facts,
        length=max_length,
        inputs=min(max_inputs, ready.number(FIT)),
        seconds=round(time.perf_counter() - begin, 2),
    )
    record = {
        **facts.record(*KEPT, model=KEPT_OF_MODEL),
        "study": {
            "name": opened.name,
            "request": request.record(),
            **facts.record("data"),
        },
        "target": {"budget": budget},
        **facts.record("inputs"),
        "groups": [],
        "shapes": {},
        "curve": [],
    }
    heads = {site: known.heads for site, known in opened.sites.items()}
    found = Plan(record, tuple(_choices(curves, made.sites, heads)), {}, made)
    if folder is not None:
        found.save(folder)
    return found


def _curves(
    held: HeldOut, inputs: int, base: BlockSettings, progress: Progress
) -> dict[Site, Curves]:
    found: dict[Site, Curves] = {}
    for batch in held.batches(inputs):
        gradients = loss_gradients(held.model.module, batch["input_ids"])

        def sink(call: AttentionCall, gradients: dict[Site, torch.Tensor] = gradients) -> None:
            site = call.site
            more = measure(call, base, LADDER, gradients[site])
            have = found.get(site)
            found[site] = (
                more
                if have is None
                else replace(
                    have,
                    error=have.error + more.error,
                    pairs=have.pairs + more.pairs,
                    causal=have.causal + more.causal,
                )
            )
            progress("choosing a threshold per head", len(found), len(gradients))

        held.run_batch(batch, sink)
    return found


def _choices(
    curves: dict[Site, Curves], sites: dict[Site, BlockSettings], heads: dict[Site, int]
) -> list[Choice]:
    """One choice per query head; the heads of a group share a threshold."""
    rows = []
    for site, found in curves.items():
        thresholds = sites[site].thresholds
        group = heads[site] // len(thresholds)
        for head in range(heads[site]):
            g, threshold = head // group, thresholds[head // group]
            tried = [*LADDER, DENSE]
            # the threshold went through float32
            at = min((abs(other - threshold), i) for i, other in enumerate(tried))[1]
            share = 1.0 if threshold == DENSE else float(found.pairs[at, g] / found.causal)
            risk = 0.0 if threshold == DENSE else float(found.error[at, g])
            why = (
                "dense: no threshold is worth its loss"
                if threshold == DENSE
                else f"expected effect on the loss {risk:.3g}"
            )
            name = "exact" if threshold == DENSE else "blocks"
            rows.append(
                Choice(
                    site.stack,
                    site.layer,
                    head,
                    name,
                    {"threshold": threshold},
                    min(share, 1.0),
                    min(share, 1.0),
                    None,
                    None,
                    why,
                )
            )
    return rows


def block_errors(call: AttentionCall, blocks: BlockPlan) -> dict[str, torch.Tensor]:
    """Sums per head `(H,)`: squared error of the planned output, squares of the true one, work.

    All are weighted by inputs. Where the model attends as before, the error is 0 and the work 1.
    """
    output = blocks.attend(call)
    true = dense_attention(call.q, call.k, call.v, call.scale)
    squares = true.double().square().sum((0, 2, 3))
    squared = (
        torch.zeros_like(squares)
        if output is None
        else (output - true).double().square().sum((0, 2, 3))
    )
    number = torch.full((call.heads,), float(len(call.q)), dtype=torch.float64)
    return {
        "squared": squared,
        "squares": squares,
        "inputs": number,
        "work": blocks.shares(call) * number,
    }

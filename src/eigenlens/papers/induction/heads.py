"""Induction heads of loaded models.

Measured are scores with and without repeats, and what becomes of them without previous-token heads.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import astuple
from typing import Any

import torch
from torch import Tensor

from ...captures import AttentionCall, Head, location_of, replace_attention
from ...diagnostics import CallView, Finding, StudiedModel
from ...diagnostics.induction import SCORES, Induction, scores
from ...diagnostics.induction_probe import uniform_scores
from ...errors import EigenlensError
from ...models.forward import forward_of
from ...models.load import Model, load


def handmade_scores(block: int = 50) -> list[dict[str, Any]]:
    """The scores of heads made by hand over a block twice, with nothing before it."""
    T, n = 2 * block, block
    ids, place = torch.arange(n).repeat(2)[None], torch.arange(T)
    keys = {
        "perfect induction": torch.where(place >= n - 1, place - n + 1, place),
        "duplicate token": torch.where(place >= n, place - n, place),
        "previous token": (place - 1).clamp_min(0),
    }
    heads = {name: torch.eye(T, dtype=torch.float64)[at] for name, at in keys.items()}
    heads["uniform, causal"] = torch.ones(T, T, dtype=torch.float64).tril() / (place + 1)[:, None]
    rows = [
        {"head": name, **dict(zip(SCORES, scores(A[None, None], ids, n)[0, :, 0].tolist()))}
        for name, A in heads.items()
    ]
    return [*rows, {"head": "uniform, causal, by formula", **uniform_scores(block, 2)}]


def probe_model(model: Model, diagnostic: Induction, without: Collection[Head] = ()) -> Finding:
    """What the diagnostic finds in a model.

    The outputs of the heads `without` are zero (their patterns are still seen).
    """
    if why := diagnostic.begin(StudiedModel(model, {})):
        raise EigenlensError(f"{model.name}: {why}")
    for batch in diagnostic.batches(model):

        def attend(call: AttentionCall, batch: Any = batch) -> Tensor | None:
            seen = CallView(call, _ids(batch, call))
            diagnostic.update(seen)
            gone = [at.head for at in without if at.site == call.site]
            if not gone:
                return None
            A = seen.pattern.clone()
            A[:, gone] = 0
            return A @ call.values

        with torch.no_grad(), replace_attention(model.backbone, attend):
            forward_of(model)(batch)
    return diagnostic.result()


def _ids(batch: dict[str, Tensor], call: AttentionCall) -> Tensor | None:
    """The ids of the tokens that a call of self-attention is about."""
    side = (
        "decoder_input_ids"
        if "decoder_input_ids" in batch and call.site.stack.startswith("decoder")
        else "input_ids"
    )
    return batch[side] if call.kind == "self" else None


def model_heads(name: str, inputs: int, draws: int, seed: int) -> dict[str, Any]:
    """Every head of a model: its scores, those of tokens that come once, and the ablation.

    The ablation is made where there is induction.
    """
    model = load(name)
    diagnostic, control = (
        Induction(inputs=inputs, seed=seed, repeated=repeated) for repeated in (True, False)
    )
    found, once = probe_model(model, diagnostic), probe_model(model, control)
    without = once.values("prefix")
    heads = [
        {"model": name, **row, "prefix, once": without[location_of(row)]} for row in found.rows()
    ]
    above = {score: diagnostic.above(found, score) for score in SCORES}
    return {
        "kind": model.kind,
        "heads": heads,
        "above": {score: [list(astuple(at)) for at in some] for score, some in above.items()},
        "sentence": found.sentence,
        "ablation": _ablation(model, diagnostic, found, inputs, draws, seed),
    }


def _ablation(
    model: Model, seen: Induction, found: Finding, inputs: int, draws: int, seed: int
) -> list[dict[str, Any]]:
    """The mean prefix score of the induction heads without some heads before them.

    Left out are previous-token heads, or as many others.

    Previous-token heads are those of the layers before the first induction head of their stack. The
    others, `draws` times, are as many heads of the same layers, drawn from those that reach no
    threshold.
    """
    induction = seen.above(found, "prefix")
    first = {
        stack: min(at.layer for at in induction if at.stack == stack)
        for stack in {at.stack for at in induction}
    }
    previous = [at for at in seen.above(found, "previous") if at.layer < first.get(at.stack, 0)]
    if not previous:
        return []
    named = {at for score in SCORES for at in seen.above(found, score)}
    rows = [_row(model.name, "all heads", found, induction, ())]

    def ablate(without: Sequence[Head]) -> Finding:
        return probe_model(model, Induction(inputs=inputs, seed=seed), without)

    rows.append(
        _row(model.name, "without previous-token heads", ablate(previous), induction, previous)
    )
    draw = torch.Generator().manual_seed(seed)
    for _ in range(draws):
        others: list[Head] = []
        for gone in previous:
            free = [
                at
                for at in found.of_heads("prefix")
                if at.site == gone.site and at not in named and at not in others
            ]
            if free:
                others.append(free[int(torch.randint(len(free), (), generator=draw))])
        rows.append(_row(model.name, "without as many others", ablate(others), induction, others))
    return rows


def _row(
    model: str, what: str, found: Finding, induction: Sequence[Head], gone: Sequence[Head]
) -> dict[str, Any]:
    prefix, labels = found.of_heads("prefix"), found.labels
    mean = sum(prefix[at] for at in induction) / len(induction)
    message = ", ".join(labels(at) for at in gone)
    return {
        "model": model,
        "heads": what,
        "prefix of induction heads": mean,
        "ablated": message,
        "number": len(gone),
    }

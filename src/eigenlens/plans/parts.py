"""Which heads of a plan share an estimator, and their scores by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..captures import AttentionCall, Labels, Site
from ..errors import EigenlensError
from ..estimators.candidates import ESTIMATORS
from ..estimators.estimator import Estimate, Estimator

NUMBERS = (torch.float64, torch.float32, torch.int64, torch.bool)
"""The types that tensors of estimators may have."""


@dataclass(frozen=True)
class PlanPart:
    """Heads of a site that share an estimator and its settings."""

    heads: tuple[int, ...]
    estimator: Estimator


def estimate_scores(planned: Mapping[Site, list[PlanPart]], call: AttentionCall) -> Estimate:
    """Estimate the scores of all heads of a call, `(B, H, T, S)`."""
    parts = planned.get(call.site)
    labels = Labels(site.stack for site in (*planned, call.site))
    if parts is None:
        raise EigenlensError(
            f"the plan has nothing for {labels(call.site)}; it was made for"
            f" {', '.join(map(labels, planned))}"
        )
    number = len({head for part in parts for head in part.heads if 0 <= head < call.heads})
    if number != call.heads or number != sum(len(part.heads) for part in parts):
        raise EigenlensError(
            f"the plan has {number} heads at {labels(call.site)} and the model has"
            f" {call.heads}: the plan is for another model"
        )
    if len(parts) == 1:
        return _estimate(parts[0], call)
    (B, H, T, _), S = call.q.shape, call.k.shape[2]
    scores = call.q.new_empty(B, H, T, S)
    pairs, work = torch.empty(H, device=call.q.device), torch.empty(H, device=call.q.device)
    for part in parts:
        index = torch.tensor(part.heads, device=call.q.device)
        found = _estimate(part, call.of_heads(index))
        scores[:, index], pairs[index], work[index] = (
            found.scores.to(scores.dtype),
            found.pairs,
            found.work,
        )
    return Estimate(scores, pairs, work)


def check_finite(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors; an error if one of them holds NaN or infinity."""
    for name, x in tensors.items():
        if x.dtype not in NUMBERS or not bool(x.isfinite().all()):
            raise EigenlensError(
                f"the plan is damaged: {name} is {x.dtype}, or holds NaN or infinity"
            )
    return tensors


def read_part(prefix: str, entry: dict[str, Any], tensors: dict[str, Tensor]) -> PlanPart:
    kind = ESTIMATORS.get(entry["estimator"])
    if kind is None:
        raise EigenlensError(
            f"the plan uses the estimator {entry['estimator']!r}, which this version of eigenlens"
            " does not have"
        )
    mine = {name.removeprefix(prefix): x for name, x in tensors.items() if name.startswith(prefix)}
    if (
        any(not x.ndim or len(x) != len(entry["heads"]) for x in mine.values())
        or not entry["heads"]
    ):
        raise EigenlensError(
            f"the plan is damaged: the tensors of {prefix.rstrip('|')} do not fit its heads"
        )
    check_finite({prefix + name: x for name, x in mine.items()})
    return PlanPart(tuple(entry["heads"]), kind(entry["settings"], mine))


def _estimate(part: PlanPart, call: AttentionCall) -> Estimate:
    """Estimate the scores of some heads.

    An error if tensors and settings do not fit each other, which may happen in a plan from a file.
    """
    try:
        return part.estimator.estimate(call)
    except torch.OutOfMemoryError:
        raise
    except (LookupError, TypeError, ValueError, ArithmeticError, RuntimeError) as error:
        message = " ".join(str(error).split())[:200]
        raise EigenlensError(
            f"the plan cannot estimate {call.site.full_label} by {part.estimator.name}:"
            f" {type(error).__name__} ({message}); its tensors do not fit this model or"
            " each other: make the plan anew"
        ) from error

"""Another attention mechanism in a trained model, without any training.

`use_attention` puts it there through capture, so that it works for every model that
can be studied, and neither the model nor its library is changed. Only self-attention is
replaced; cross-attention stays as it was.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..attention import Mechanism, find, make
from ..attention.masks import excluded, read_mask, with_bias
from ..attention.registry import without_weights
from ..attention.softmax import Softmax
from ..captures import AttentionCall, Site, replace_attention
from ..captures.session import capture_disabled
from ..data.inputs import Request, prepare
from ..errors import EigenlensError
from ..estimators.measures import Sums, Truth
from ..models.load import Model, load
from ..passes.use_model import UsedModel
from .evaluation import DROP_IN_MEASURES, Evaluation
from .held_out import HeldOut
from .paired import PairedEvaluation, head_rows, means


@contextlib.contextmanager
def use_attention(
    model: nn.Module | Model, attention: str | Mechanism, **settings: Any
) -> Iterator[Mechanism]:
    """Let a mechanism do the self-attention of a model while the block runs.

    Parameters
    ----------
    model : nn.Module or Model
        The model, which is exactly as it was when the block ends.
    attention : str or Mechanism
        A mechanism by name, or one that was made. Cross-attention stays as it is.
    **settings : object
        Settings of the mechanism that `attention` names.

    Yields
    ------
    Mechanism
        The mechanism that attends.

    Raises
    ------
    EigenlensError
        If the mechanism has weights of its own, or if it cannot honour a call: a bias of positions,
        a cap of the scores, logits of sinks, the wrong direction.

    Examples
    --------
    >>> with use_attention(model, "window", window=64):
    ...     model.module(**inputs)
    """
    mechanism = dropped(attention, settings)
    with replace_attention(load(model, device=None).backbone, lambda call: attend(mechanism, call)):
        yield mechanism


def dropped(attention: str | Mechanism, settings: Mapping[str, Any] | None = None) -> Mechanism:
    """The mechanism of this name, with settings; an error if it would need training."""
    if not isinstance(attention, str) and settings:
        raise EigenlensError(
            f"settings {', '.join(settings)} are only for a mechanism given by name; make this one"
            " with them instead"
        )
    without_weights(find(attention) if isinstance(attention, str) else attention)
    return make(attention, **(settings or {})) if isinstance(attention, str) else attention


def attend(mechanism: Mechanism, call: AttentionCall) -> Tensor | None:
    """The output (B, H, T, E) of a call by a mechanism.

    None for cross-attention, which stays the model's own.
    """
    if call.kind == "cross":
        return None
    k, v, terms = terms_of(mechanism, call)
    # a mechanism that calls torch's own attention is not to be asked for that call, too
    with capture_disabled():
        found: Tensor = mechanism(call.q, k, v, **terms)
    return found


def terms_of(mechanism: Mechanism, call: AttentionCall) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """The keys, values and terms of a call, as a mechanism takes them.

    Causality and padding are separate terms; any other mask is given pair by pair.
    """
    for what, given in (("a cap of the scores", call.softcap), ("logits of sinks", call.sinks)):
        if given is not None:
            raise EigenlensError(
                f"{mechanism.name} cannot handle {what}, which the attention of {call.name} has"
            )
    k, v, (T, S) = call.k, call.v, (call.q.shape[2], call.k.shape[2])
    causal, keys, pairs = call.causal, None, None
    if call.mask is not None:
        causal, keys, pairs = _read(call, T, S)
    elif causal and T < S:
        # the first query sees the first key: what follows the last query's is empty
        k, v = k[:, :, :T], v[:, :, :T]
    if T == 1 and "causal" in mechanism.directions:
        causal = True  # the last token, as in generation: there is nothing behind it
    pairs = with_bias(pairs, call.bias, T, k.shape[2])
    return (
        k,
        v,
        {
            "causal": causal,
            "keys": keys,
            "queries": call.query_valid,
            "pairs": pairs,
            "scale": call.scale,
        },
    )


def _read(call: AttentionCall, T: int, S: int) -> tuple[bool, Tensor | None, Tensor | None]:
    """The mask as separate terms.

    Queries that are padding do not matter, so they are left out of it.
    """
    mask = call.mask
    assert mask is not None
    while mask.ndim < 4:
        mask = mask[None]
    before = torch.ones(T, S, dtype=torch.bool, device=mask.device).tril(S - T)
    if call.causal and mask.dtype == torch.bool:
        mask = mask & torch.ones_like(before).tril()
    if mask.dtype != torch.bool and call.linear:
        mask = ~excluded(mask)  # it adds no numbers: padded queries can be filled in below
    rows = call.query_valid
    if mask.dtype == torch.bool and rows is not None:
        mask = mask.expand(len(call.q), -1, T, S)
        last = rows.shape[1] - 1 - rows.flip(1).int().argmax(1)  # (B,): the last query that stands
        keys = mask[torch.arange(len(rows), device=mask.device), 0, last]  # (B, S)
        for seen in (before, torch.ones_like(before)):
            found = read_mask(
                torch.where(rows[:, None, :, None], mask, (seen & keys[:, None])[:, None]), T, S
            )
            if found[2] is None:
                return found
    return read_mask(mask, T, S)


class Moved(Sums):
    """Sums per head (H,) of how far patterns and outputs are from the model's own."""

    def heads(self, site: Site) -> list[dict[str, Any]]:
        sums = self.sums
        number = sums["rows"].clamp_min(1)
        columns = {
            "total_variation": sums["variation"] / number,
            "top_1": sums["same"] / number,
            "output_error": (sums["squared"] / sums["squares"].clamp_min(1e-30)).sqrt(),
            "work": sums["work"] / number,
        }
        return head_rows(site, columns)


@dataclass(frozen=True, eq=False)
class DropIn:
    """A mechanism as a change of a model."""

    mechanism: Mechanism

    def compare(self, call: AttentionCall) -> dict[str, Tensor] | None:
        if call.kind != "self":
            return None
        mechanism, truth = self.mechanism, Truth(call)
        k, v, terms = terms_of(mechanism, call)
        with capture_disabled():
            pattern = mechanism.weights(call.q, k, **terms)  # (B, H, T, S)
            output = mechanism(call.q, k, v, **terms)  # (B, H, T, E)
        S, rows = pattern.shape[3], truth.rows.expand(len(call.q), call.heads, call.q.shape[2])
        counts = rows[..., None]
        n, d = k.shape[2], call.q.shape[3]
        work = mechanism.cost(n, d) / Softmax().cost(n, d)
        return {
            "rows": truth.number,
            "variation": (
                ((pattern - truth.pattern[..., :S]).abs() * counts).sum((0, 2, 3)).double() / 2
            ),
            "same": ((pattern.argmax(-1) == truth.pattern.argmax(-1)) & rows).sum((0, 2)).double(),
            "squared": ((output - truth.output) * counts).square().sum((0, 2, 3)).double(),
            "squares": (truth.output * counts).square().sum((0, 2, 3)).double(),
            "work": work * truth.number,
        }

    def applied(self, model: Model) -> contextlib.AbstractContextManager[Mechanism]:
        return use_attention(model, self.mechanism)

    def calls(self) -> Mapping[str, int]:
        return {}

    def inputs(
        self, used: UsedModel, max_inputs: int, max_length: int | None, padding: bool
    ) -> tuple[HeldOut, list[str]]:
        """The inputs to measure on: any data, as nothing was fitted."""
        model, request = used.model, Request(used.names, max_length, max_inputs, 0.5, 0, padding)
        inputs = prepare(model, request, used.scratch, fitted=False)
        held = HeldOut(model, inputs, inputs.groups, heads_of(model), list(used.names))
        stays = model.kind == "encoder-decoder"
        return held, ["cross-attention was left as it is"] if stays else []

    def evaluate(self, paired: PairedEvaluation) -> Evaluation:
        """The evaluation: how far patterns and outputs move."""
        moved, used = paired.calls("patterns")
        heads = [row for site, sums in moved.items() for row in Moved(sums).heads(site)]
        change = {
            "target": {"attention": self.mechanism.name, **asdict(self.mechanism.settings)},
            "model": paired.held.model.facts.record(("fingerprint", "architecture", "name")),
            "study": None,
            "work": sum(head["work"] for head in heads) / len(heads),
        }
        return paired.evaluation(means(heads, DROP_IN_MEASURES), heads, used, change)


def heads_of(model: Model) -> int:
    """The heads per layer by the config, or 12; they limit the memory of a batch."""
    return int(getattr(model.config, "num_attention_heads", 12))

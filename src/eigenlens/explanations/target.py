"""The target of an explanation: one number per input, such as a log-probability."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from ..data.encode import check_text, encode
from ..errors import EigenlensError
from ..models.load import Model
from ..shell import option
from .naming import class_index, class_text, labels, parse_integer, token_id, token_text
from .scores import (
    Score,
    class_score,
    class_token,
    head_logits,
    hidden_of,
    last_token,
    output_score,
    pool_tokens,
    run_model,
    similarity_score,
    token_score,
)

Kind = Literal["token", "class", "similarity", "output"]
DEFAULT_LABELS = ("O", "$KEEP")
"""Labels that mean "nothing special" for a token.

If a model has neither, its label 0 is taken for it.
"""


@dataclass(frozen=True, eq=False)
class Target:
    """A target: a score (B,) of a model's output for a batch.

    `labels` names the target of every input where they differ. `position` (B,) is the token at
    which a token's label is read. `of(rows)` is the target of a batch that is made of some of the
    inputs.
    """

    kind: Kind
    label: str
    score: Score
    unit: str = "score"
    labels: tuple[str, ...] = ()
    position: Tensor | None = None
    select: Callable[[Tensor, Tensor | None], Score] | None = None

    def of(self, rows: Tensor, position: Tensor | None = None) -> Target:
        """The target for a batch of the inputs `rows` (N,).

        The token it is read at is now at `position` (N,).
        """
        if self.select is None:
            return self
        if self.position is not None:
            position = self.position[rows] if position is None else position
        labels = tuple(self.labels[row] for row in rows.tolist()) if self.labels else ()
        return replace(self, score=self.select(rows, position), labels=labels, position=position)


@torch.inference_mode(False)  # what a target keeps takes part in a backward pass
@torch.no_grad()
def target_of(
    model: Model,
    batch: Mapping[str, Tensor],
    *,
    target: int | str | tuple[int, int | str | None] | None = None,
    against: str | Sequence[str] | None = None,
) -> Target:
    """The target of a model on a batch; None is what the model itself chooses. Runs the model once.

    - a language model: the next token, as an id (also "id:1234") or a text of one token; score: its
      log-probability at the
      last token;
    - a classifier: an index or a label; score: the log-odds `log p/(1 − p)`, which do not level off
      where p nears 1, and of a
      regression, which has one output, the output;
    - a classifier of tokens: `(position, class)`, also as text "3:LABEL", or `(position, None)` for
      the class chosen there;
      None is the surest label that is not the default one; of a masked language model the likeliest
      token at the mask;
    - a model without a head: `against`, another text (or picture, or one for every input), score:
      the cosine of the
      embeddings, or "output", score: the squared norm of the embedding. The embedding is the mean
      over tokens, for a vision
      model that has a class token that token.

    >>> target_of(model, encode(model, "The capital of France is"), target=" Paris").label
    "next token ' Paris'"
    """
    if isinstance(target, bool):
        raise EigenlensError(f"the target must be a token, a class or a label, not {target}")
    for part in target if isinstance(target, tuple) else (target,):
        if isinstance(part, str):
            check_text(part, "the target")
    output = run_model(model, batch)
    logits = head_logits(model, batch, output)
    first = logits is None and class_token(model, batch, hidden_of(output))
    if target == "output":
        if against is not None:
            raise EigenlensError(
                "the target is either the output or the similarity to another input, not both:"
                " leave out one of the two"
            )
        return Target("output", "squared norm of the output", output_score(first), "squared norm")
    if (
        logits is not None
        and logits.ndim == 3
        and model.kind == "module"
        and not isinstance(target, tuple)
    ):
        logits = None  # a plain module may give anything for its tokens
    if against is not None:
        if target is not None or logits is not None:
            if logits is not None:
                reason = (
                    f"{model.name} has a head, so it gives no embeddings; leave out the other"
                    f" input, {option('against', None)}"
                )
            else:
                reason = "a target was given too; leave out one of the two"
            raise EigenlensError(f"there is no similarity to another input to explain: {reason}")
        return _similarity(model, len(hidden_of(output)), against, first)
    if logits is None:
        what = "an image" if model.kind == "vision" else "a second text"
        given = "" if target is None else f", so it has no target {target!r}"
        raise EigenlensError(
            f"{model.name} has no head{given}: give {what} to compare with,"
            f' {option("against", None)}, or the target "output"'
        )
    if logits.ndim == 2:
        return _class(model, logits, target)
    labelled = type(model.module).__name__.endswith("ForTokenClassification")
    if model.kind in {"decoder", "encoder-decoder", "audio"} and not labelled:
        return _next_token(model, batch, logits, target)
    return _token_class(model, batch, logits, target)


def _next_token(model: Model, batch: Mapping[str, Tensor], logits: Tensor, target: Any) -> Target:
    B, _, V = logits.shape
    if target is None:
        # (B,)
        chosen = logits[torch.arange(B, device=logits.device), last_token(batch, logits)].argmax(-1)
    else:
        chosen = torch.full((B,), token_id(model, target, V), device=logits.device)
    names = [f"next token {token_text(model, i)}" for i in chosen.tolist()]

    def select(rows: Tensor, _position: Tensor | None) -> Score:
        return token_score(chosen[rows])

    return Target(
        "token", _joined(names), token_score(chosen), "log-probability", tuple(names), None, select
    )


def _class(model: Model, logits: Tensor, target: Any) -> Target:
    B, K = logits.shape
    chosen = (
        logits.argmax(-1)
        if target is None
        else torch.full((B,), class_index(model, target, K), device=logits.device)
    )
    names = [class_text(model, i) for i in chosen.tolist()]
    alone = (
        model.kind != "module"
        and getattr(model.config, "problem_type", None) == "multi_label_classification"
    )

    def select(rows: Tensor, _position: Tensor | None) -> Score:
        return class_score(chosen[rows], None, alone)

    unit = "output" if K == 1 and not alone else "log-odds"
    return Target(
        "class", _joined(names), class_score(chosen, None, alone), unit, tuple(names), None, select
    )


def _token_class(model: Model, batch: Mapping[str, Tensor], logits: Tensor, target: Any) -> Target:
    """The target of one token's label: `(position, class)`, "position:class", or the surest."""
    B, T, K = logits.shape
    ids = batch.get("input_ids")
    given = batch.get("attention_mask")
    alike = given is not None and given.shape == (B, T)
    mask = given.bool() if given is not None and alike else logits.new_ones(B, T, dtype=torch.bool)
    masked_lm = model.kind != "module" and getattr(model.config, "vocab_size", None) == K
    if isinstance(target, str) and ":" in target:
        place, _, name = target.partition(":")
        target = target if (number := parse_integer(place)) is None else (number, name)
    if isinstance(target, tuple) and len(target) == 2:
        at, shortest = target[0], int(mask.sum(1).min())
        if not isinstance(at, int) or isinstance(at, bool) or not -shortest <= at < shortest:
            raise EigenlensError(
                f"there is no token {at!r}; the shortest input has {shortest} tokens, counted"
                " from 0"
            )
        position = torch.stack([here.nonzero()[at, 0] for here in mask])  # padding does not count
        if target[1] is None:
            chosen = logits[torch.arange(B, device=logits.device), position].argmax(-1)
        else:
            wanted = (
                token_id(model, target[1], K) if masked_lm else class_index(model, target[1], K)
            )
            chosen = torch.full((B,), wanted, device=logits.device)
    elif masked_lm:
        position, chosen = _at_mask(
            model, None if ids is None else ids.masked_fill(~mask, -1), logits, target
        )
    elif target is None:
        position, chosen = _surest(model, logits.masked_fill(~mask[..., None], -torch.inf), ids)
    else:
        raise EigenlensError(
            f"{model.name} gives every token a label: the target is (position, class) or"
            f" 'position:class', not {target!r}"
        )
    names = []
    for row, (i, c) in enumerate(zip(position.tolist(), chosen.tolist())):
        name = token_text(model, c) if masked_lm else class_text(model, c)
        here = "" if ids is None else f" {token_text(model, int(ids[row, i]))}"
        names.append(f"{name} of token {int(mask[row, :i].sum())}{here}")

    def select(rows: Tensor, moved: Tensor | None) -> Score:
        return class_score(chosen[rows], position[rows] if moved is None else moved)

    unit = "output" if K == 1 else "log-odds"
    return Target(
        "class", _joined(names), class_score(chosen, position), unit, tuple(names), position, select
    )


def _at_mask(
    model: Model, ids: Tensor | None, logits: Tensor, target: Any
) -> tuple[Tensor, Tensor]:
    """Position and token of a masked language model's [MASK], (B,) each."""
    mark = getattr(model.tokenizer, "mask_token_id", None)
    here = ids == mark if ids is not None and mark is not None else None
    if here is None or not bool(here.any(1).all()):
        name = getattr(model.tokenizer, "mask_token", None) or "mask"
        raise EigenlensError(
            f"{model.name} fills in masked tokens: put a {name} into the text, or give (position,"
            " token)"
        )
    position = here.int().argmax(1)
    rows = torch.arange(len(logits), device=logits.device)
    chosen = logits[rows, position].argmax(-1)
    return position, (
        chosen
        if target is None
        else torch.full_like(chosen, token_id(model, target, logits.shape[-1]))
    )


def _surest(model: Model, logits: Tensor, ids: Tensor | None) -> tuple[Tensor, Tensor]:
    """Position and class (B,) of the likeliest label of any token.

    The default label and special tokens are left out.
    """
    known = labels(model)
    default = next((i for i, name in known.items() if name in DEFAULT_LABELS), 0)
    p = torch.nan_to_num(logits.softmax(-1))  # (B, T, K); padding rows have none
    if p.shape[-1] > 1:
        p[..., default] = -1
    special = getattr(model.tokenizer, "all_special_ids", None)
    if ids is not None and special:
        frame = torch.isin(ids, torch.tensor(special, device=ids.device))
        p = torch.where((frame & ~frame.all(1, keepdim=True))[..., None], p.new_tensor(-2.0), p)
    best = p.flatten(1).argmax(1)
    return best // p.shape[-1], best % p.shape[-1]


def _similarity(model: Model, inputs: int, against: str | Sequence[str], first: bool) -> Target:
    others = [against] if isinstance(against, str) else list(against)
    if len(others) not in {1, inputs}:
        raise EigenlensError(
            f"{len(others)} inputs to compare with were given for {inputs} inputs; give one, or one"
            " for each"
        )
    for text in others:
        check_text(text, "the text to compare with")
    batch = encode(model, others)
    other = pool_tokens(run_model(model, batch), batch, first).expand(inputs, -1)  # (B, E)
    names = [
        f"similarity to {text[:40] + '…' * (len(text) > 40)!r}"
        for text in (others if len(others) > 1 else others * inputs)
    ]

    def select(rows: Tensor, _position: Tensor | None) -> Score:
        return similarity_score(other[rows], first)

    return Target(
        "similarity",
        _joined(names),
        similarity_score(other, first),
        "cosine",
        tuple(names),
        None,
        select,
    )


def _joined(names: Sequence[str], most: int = 3) -> str:
    """One name for the targets of all inputs: at most three that differ."""
    different = list(dict.fromkeys(names))
    return "; ".join(different[:most]) + (
        f"; … ({len(different)})" if len(different) > most else ""
    )

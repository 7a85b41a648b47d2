"""Induction heads: heads that look at what followed the current token earlier in the text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from ..captures import Head, Labels, location_of
from ..display import numbered
from ..errors import EigenlensError
from .diagnostic import CallView, Diagnostic
from .finding import Finding
from .induction_probe import LEAST, Layout, layout_of, probe_batch
from .studied_model import StudiedModel

if TYPE_CHECKING:
    from ..models.load import Model

SCORES = ("stripe", "prefix", "duplicate", "previous")


@dataclass(frozen=True)
class InductionSettings:
    """The probe, and the score from which a head is named, per kind of score.

    The defaults are ten times what uniform causal attention scores on the default probe (0.0139,
    0.0138, 0.0138 and 0.0423, `uniform_scores(50, 2)`): far above chance, and far below a head that
    does nothing else. A model that reads fewer tokens gets a shorter block, on which chance is
    higher (`uniform_scores(8, 2)`: 0.088, 0.083 and 0.159): raise the thresholds there. With
    `repeated=False` every token comes only once. This is a control: the same places are measured,
    and there is nothing to find.
    """

    block: int = 50
    repeats: int = 2
    inputs: int = 8
    seed: int = 0
    repeated: bool = True
    stripe: float = 0.14
    prefix: float = 0.14
    duplicate: float = 0.14
    previous: float = 0.42

    def __post_init__(self) -> None:
        if self.block < LEAST:
            raise EigenlensError(
                f"a block of {self.block} tokens is too short; give at least {LEAST} tokens"
            )
        if not 0 <= self.seed < 2**63:
            raise EigenlensError(f"seed must be a whole number from 0 to 2⁶³ − 1, not {self.seed}")
        if self.repeats < 2 or self.inputs < 1:
            raise EigenlensError(
                f"the probe needs at least 1 input and 2 repeats, not {self.inputs} and"
                f" {self.repeats}"
            )
        for name in SCORES:
            if not 0 < getattr(self, name) <= 1:
                raise EigenlensError(
                    f"the threshold {name} is a share of attention: it must be above 0 and at most"
                    f" 1, not {getattr(self, name)}"
                )


class Induction(Diagnostic):
    """What heads look at in a block of random tokens x₀ … x_{n−1} that is repeated.

    With A the pattern over these tokens, i the places of the repeats (all but the first block), and
    j the places before i:

        stripe     mean A[i, i−n+1] over i = n−1 … : the whole diagonal n − 1 places back
        prefix     mean Σ A[i, j+1] over x_j = x_i: the token after an earlier occurrence
        duplicate  mean Σ A[i, j] over x_j = x_i: earlier occurrences themselves
        previous   mean A[i, i−1], over all places but the first

    The stripe is what TransformerLens averages, `A.diagonal(offset=1 − n)`. Its first entry, A[n−1,
    0], belongs to the last token of the first block, which never came before: it shows how far back
    a head looks, not what it looks for. With two blocks whose tokens all differ, (n + 1) stripe = n
    prefix + A[n−1, 0]; heads are named by the prefix. A head that always looks n − 1 places back
    has stripe and prefix 1. Any captured model will do; in a model without a causal mask, too, only
    earlier places count.
    """

    name = "induction"
    title = "Induction heads"
    sees = "probe"
    level = "head"
    numbers: ClassVar[Mapping[str, str]] = {
        "stripe": (
            "attention to the place n − 1 back in blocks of n tokens (the diagonal that"
            " TransformerLens averages)"
        ),
        "prefix": "attention to what followed earlier occurrences of the token",
        "duplicate": "attention to earlier occurrences of the token",
        "previous": "attention to the previous token",
    }
    Settings = InductionSettings

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.layout: Layout | None = None

    def _layout(self, model: Model) -> Layout | str:
        return layout_of(model, self.settings.block, self.settings.repeats)

    def begin(self, studied: StudiedModel) -> str:
        found = self._layout(studied.model)
        if isinstance(found, str):
            return found
        self.layout = found
        self.peak("probe/block", torch.tensor(found.block))
        return ""

    def batches(self, model: Model) -> Sequence[Mapping[str, Tensor]]:
        """Return one batch of all inputs; nothing for a model that does not read tokens."""
        layout = self._layout(model)
        if isinstance(layout, str):
            return ()
        batch = probe_batch(
            layout, self.settings.inputs, self.settings.seed, self.settings.repeated
        )
        return ({name: ids.to(model.device) for name, ids in batch.items()},)

    def measure(self, seen: CallView) -> Tensor | None:
        """Return the four scores (B, 4, H) of self-attention over the probe's tokens."""
        if self.layout is None:
            raise EigenlensError(
                "the diagnostic induction needs a model: call `begin` before `update`"
            )
        T = seen.call.q.shape[2]
        if seen.call.kind != "self" or seen.ids is None or seen.call.k.shape[2] != T:
            return None
        n, tokens = self.layout.block, self.layout.block * self.layout.repeats
        special = torch.tensor(sorted(self.layout.special), device=seen.ids.device)
        # the special tokens that come before
        first = int(torch.isin(seen.ids[0], special).long().cumprod(0).sum())
        if first + tokens > T:
            return None
        body = slice(first, first + tokens)
        return scores(
            seen.pattern[:, :, body, body], seen.ids[:, body] if self.settings.repeated else None, n
        )

    def sentence(self, finding: Finding) -> str:
        prefix, previous = finding.of_heads("prefix"), finding.of_heads("previous")
        found, others = self.above(finding, "prefix"), self.above(finding, "previous")
        best = max(prefix, key=lambda at: prefix[at])
        heads, labels = numbered(len(prefix), "head"), finding.labels
        if found:
            message = f"{len(found)} of {heads} {'does' if len(found) == 1 else 'do'} induction, "
            message += (
                "looking at what followed the current token earlier"
                f" ({_listed(found, prefix, labels)})"
            )
        else:
            message = f"None of {heads} does induction: what followed a token earlier gets at most "
            message += (
                f"{prefix[best]:.3f} of the attention ({labels(best)}; an induction head has at"
                f" least {self.settings.prefix:g})"
            )
        if not self.settings.repeated:
            message = f"Control, every token comes only once: {message[0].lower()}{message[1:]}"
        if not others:
            return f"{message}; no head looks mostly at the previous token."
        look = "looks" if len(others) == 1 else "look"
        listed = _listed(others, previous, labels)
        return (
            f"{message}; {numbered(len(others), 'head')} {look} at the previous token ({listed})."
        )

    def above(self, finding: Finding, name: str) -> list[Head]:
        """Return the heads that reach the threshold of a score, the largest score first."""
        values, least = finding.of_heads(name), getattr(self.settings, name)
        return sorted((at for at in values if values[at] >= least), key=lambda at: -values[at])

    def tables(
        self, finding: Finding, tokens: Mapping[int, str]
    ) -> dict[str, list[dict[str, Any]]]:
        """Return the heads that reach a threshold, with the names of these scores."""
        kinds = {name: set(self.above(finding, name)) for name in SCORES}
        named = [
            at for at in finding.values("stripe") if any(at in found for found in kinds.values())
        ]
        rows = {location_of(row): row for row in finding.rows()}
        above = {at: ", ".join(name for name in SCORES if at in kinds[name]) for at in named}
        columns = ("stack", "layer", "head", *finding.words)
        return {
            "Heads above a threshold": [
                {**{key: rows[at][key] for key in columns}, "above": above[at]} for at in named
            ]
        }

    @classmethod
    def chart(cls, finding: Finding) -> Any:
        """Draw two maps: induction, and attention to the previous token, which induction needs."""
        import altair as alt

        from .pictures import head_map

        maps = [head_map(finding, name) for name in ("stripe", "previous")]
        maps = [
            made.properties(title=name)
            for made, name in zip(maps, ("stripe (induction)", "previous token"))
        ]
        return alt.hconcat(*maps, title=finding.title)


def scores(A: Tensor, ids: Tensor | None, n: int) -> Tensor:
    """Return stripe, prefix, duplicate and previous of patterns (B, H, T, T): (B, 4, H).

    The tokens are blocks of n with `ids` (B, T).

    Without ids, the same place in an earlier block stands for an earlier occurrence.
    """
    T = A.shape[2]
    if ids is None:
        ids = (torch.arange(T, device=A.device) % n)[None]
    # (B or 1, T, T): the token at j came again at i
    same = (ids[:, :, None] == ids[:, None, :]).tril(-1)
    behind = torch.zeros_like(same)
    behind[:, :, 1:] = same[:, :, :-1]  # j + 1 ≤ i: never a later token
    # the stripe begins at i = n − 1
    stripe, previous = A.diagonal(1 - n, 2, 3), A.diagonal(-1, 2, 3)
    masses = [
        torch.einsum("bhts,bts->bht", A[:, :, n:], mask[:, n:].expand(len(A), -1, -1).to(A.dtype))
        for mask in (behind, same)
    ]
    return torch.stack([x.mean(-1, dtype=torch.float64) for x in (stripe, *masses, previous)], 1)


def _listed(
    heads: Sequence[Head], values: Mapping[Head, float], labels: Labels, most: int = 3
) -> str:
    message = ", ".join(f"{labels(at)} {values[at]:.2f}" for at in heads[:most])
    return message + (f" and {len(heads) - most} more" if len(heads) > most else "")

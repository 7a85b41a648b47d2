"""The score of a target while tokens are taken away, most or least relevant first.

A text loses token ids and closes up, so that positions shift. A picture loses patches after the
embedding, and those that are left keep their positions. If a method finds the tokens that decide,
the score falls soon when the most relevant go first (positive, small area) and late when the least
relevant go first (negative, large area).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from ..display import html_view, numbered
from ..errors import EigenlensError
from ..models.load import Model
from .removal import Kept, Removal
from .target import Target

FRACTIONS = (0, 0.25, 0.5, 0.75, 0.8, 0.85, 0.9, 0.95, 1)
Order = Literal["positive", "negative"]
ORDERS: tuple[Order, ...] = ("positive", "negative")


@dataclass(frozen=True, eq=False)
class Deletion:
    """The scores (N, F) of the target for N inputs, with F fractions of their tokens taken away.

    Tokens go in the order of one method.
    """

    method: str
    order: Order
    fractions: tuple[float, ...]
    scores: Tensor

    @property
    def auc(self) -> Tensor:
        """The area under the curve of every input, (N,), by the trapezoidal rule."""
        return torch.trapezoid(self.scores, self.scores.new_tensor(self.fractions), dim=1)

    def rows(self) -> list[dict[str, Any]]:
        """One row per input and fraction: method, order, input, fraction, score."""
        return [
            {
                "method": self.method,
                "order": self.order,
                "input": i,
                "fraction": fraction,
                "score": score,
            }
            for i, curve in enumerate(self.scores.tolist())
            for fraction, score in zip(self.fractions, curve)
        ]

    @property
    def sentence(self) -> str:
        """The mean area under the curve, in words."""
        first = "most" if self.order == "positive" else "least"
        area = (
            f"mean area under the curve {float(self.auc.mean()):.3g} over"
            f" {numbered(len(self.scores), 'input')}"
        )
        return f"{self.method}, {first} relevant tokens first: {area}"

    def plot(self) -> Any:
        """Draw the mean score over inputs against the share taken away (an altair chart)."""
        import altair as alt

        points = [
            {"fraction": f, "score": s}
            for f, s in zip(self.fractions, self.scores.mean(0).tolist())
        ]
        return (
            alt.Chart(alt.Data(values=points))
            .mark_line(point=True)
            .encode(
                x=alt.X("fraction:Q", title="share of the tokens taken away"),
                y=alt.Y("score:Q", title="score of the target", scale=alt.Scale(zero=False)),
            )
            .properties(width=320, height=200, title=f"Deletion by {self.method}, {self.order}")
        )

    def _repr_html_(self) -> str:
        return html_view(
            f"Deletion by {self.method}, {self.order}", self.sentence, self.plot(), self.rows()
        )


@torch.no_grad()
def deletion_curves(
    model: Model,
    batch: Mapping[str, Tensor],
    target: Target,
    scores: Mapping[str, Tensor],
    keep: Tensor | None = None,
    fractions: Sequence[float] = FRACTIONS,
    batch_size: int = 32,
) -> list[Deletion]:
    """The curves of every method in both orders: two results per method, positive first.

    `scores` (B, T) by method, of the source tokens. `keep` (B, T) bool are tokens that always stay;
    by default special tokens, the class token of a picture, and the token at which the target is
    read (the last one of a decoder). Of the n others `round(f·n)` are taken away, but of patches
    that a head averages the last one stays; of equal scores the earlier token is the more relevant
    one. Inputs that come out the same are run once, and those of one length together, so that
    nothing is padded.
    """
    _check(scores, fractions)
    removal = Removal.of(model, batch, target, next(iter(scores.values())).shape[1], keep)
    least = removal.least()
    wanted: dict[Kept, list[tuple[str, Order, int, int]]] = {}
    for name, given in scores.items():
        for row, order, place, kept in _kept(given, removal, fractions, least):
            wanted.setdefault((row, kept), []).append((name, order, row, place))
    found = {
        (name, order): torch.zeros(removal.inputs, len(fractions), dtype=torch.float64)
        for name in scores
        for order in ORDERS
    }
    for chosen, values in removal.scores(list(wanted), batch_size):
        for key, value in zip(chosen, values.tolist()):
            for name, order, row, place in wanted[key]:
                found[name, order][row, place] = value
    return [
        Deletion(name, order, tuple(map(float, fractions)), found[name, order])
        for name in scores
        for order in ORDERS
    ]


def _kept(
    scores: Tensor, removal: Removal, fractions: Sequence[float], least: int
) -> Iterator[tuple[int, Order, int, tuple[int, ...]]]:
    """Yield (input, order, index of the fraction, positions that stay) for one method.

    `least` is how many of the free tokens must stay.
    """
    for row, (always, free) in enumerate(zip(removal.always, removal.free)):
        values = scores[row].tolist()
        falling = sorted(free, key=lambda i: (-values[i], i))
        for order in ORDERS:
            ranked = falling if order == "positive" else falling[::-1]
            for place, fraction in enumerate(fractions):
                stays = ranked[min(round(fraction * len(ranked)), len(ranked) - least) :]
                yield row, order, place, tuple(sorted([*always, *stays]))


def _check(scores: Mapping[str, Tensor], fractions: Sequence[float]) -> None:
    if not scores:
        raise EigenlensError(
            "no scores were given, so there is no order in which to take tokens away"
        )
    if (
        list(fractions) != sorted(set(fractions))
        or len(fractions) < 2
        or fractions[0] < 0
        or fractions[-1] > 1
    ):
        raise EigenlensError(
            f"fractions must be two or more that rise from 0 to at most 1, not {list(fractions)}"
        )
    if wrong := next(
        (name for name, x in scores.items() if not bool(torch.isfinite(x).all())), None
    ):
        raise EigenlensError(
            f"the scores of {wrong!r} are not all finite numbers, so they give no order"
        )

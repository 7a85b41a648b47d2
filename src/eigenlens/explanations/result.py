"""The result of an explanation, which can be read without the model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import EigenlensError
from ..names import unknown_name
from ..passes.facts import Facts
from ..run.result import ResultViews, TitledTable
from ..run.result_folder import read_result, report_damage, write_result
from .check import check_explanation
from .verdict import in_words, sentence, strongest

FORMAT = 1
LEVELS = 10
"""Steps of colour from none to the largest score of a method, in either direction."""
SAME = 1e-6
"""Scores that differ by a smaller share count as equal, and get no colour."""


@dataclass(frozen=True, repr=False, eq=False)
class Explanation(ResultViews):
    """The tokens of one input by every method, and the target's score as they are taken away.

    `stored` has the facts about its model, input and target, as JSON keeps them; `tokens` are
    the T tokens as text, `special` says which of them belong to the model's frame
    ([CLS], a class token); `scores` has T numbers per method; `deletion` has one record per method
    and order: the fractions taken away, the target's score at each, and the area under this curve.

    >>> found = Explanation.open("EXPLANATION")
    >>> found.scores["relevance"]                          # T numbers
    >>> print(found.sentence)
    """

    stored: dict[str, Any]
    tokens: list[str]
    special: list[bool]
    scores: dict[str, list[float]]
    deletion: list[dict[str, Any]]

    @property
    def name(self) -> str:
        """Model and target: `smollm2: next token ' Paris'`.

        Control characters are spelled out.
        """
        return in_words(f"{self.facts.model.name}: {self.stored['target']['label']}")

    @property
    def title(self) -> str:
        """Model and target, as `name`."""
        return self.name

    @property
    def facts(self) -> Facts:
        """The facts about model, input and making; the name of the data is the input itself."""
        return Facts.from_record(self.stored, text=True)

    @property
    def notes(self) -> list[str]:
        """What was left out, and why; control characters are spelled out."""
        return [in_words(note, 1000) for note in self.facts.notes]

    @property
    def score(self) -> float:
        """The score of the target: a log-probability, a cosine, a squared norm."""
        return float(self.stored["score"])

    @property
    def grid(self) -> tuple[int, int] | None:
        """The rows and columns of the patches of a picture, or one row of frames of sound.

        None for text.
        """
        found = self.stored.get("grid")
        return None if found is None else (found[0], found[1])

    @property
    def unit(self) -> str:
        """What the score of the target is, such as `log-probability` or `cosine`."""
        return self.stored["target"]["unit"]

    @property
    def picture(self) -> str | None:
        """A small picture of the input as a `data:` address; None for text."""
        return self.stored.get("picture")

    @property
    def methods(self) -> list[str]:
        """Names of the methods, in their order."""
        return list(self.scores)

    @property
    def read_at(self) -> int | None:
        """The position at which the target is read.

        That is the last token of a language model, or the token whose label is explained.
        """
        found = self.stored["target"].get("position")
        return None if found is None else int(found)

    @property
    def fixed(self) -> list[bool]:
        """Which tokens colours and votes leave out.

        These are special tokens, and the one at which the target is read; none if no other is left.
        """
        found = [special or i == self.read_at for i, special in enumerate(self.special)]
        return [False] * len(found) if all(found) else found

    @property
    def free(self) -> list[int]:
        """The positions of the tokens that can be taken away.

        Special tokens and the one at which the target is read must stay. If there are none of
        these, the first token stays, as an input has at least one.
        """
        stays = [i for i, special in enumerate(self.special) if special or i == self.read_at] or [0]
        return [i for i in range(len(self.tokens)) if i not in stays]

    @property
    def sentence(self) -> str:
        """The target, its score, and which tokens matter by how many methods, in words."""
        return sentence(self)

    def levels(self, method: str) -> list[int]:
        """How strongly each token is coloured, from −10 to 10, on the method's own scale.

        Where scores have a sign, 10 is the largest absolute one; where all are at least 0, they are
        coloured from the least (0) to the largest (10), since what all tokens share tells none
        apart. The scale is that of tokens that can be taken away: [SEP], which often gets most of
        the attention, has the full colour and does not pale the others.
        """
        mine = self._of(method)
        own = [x for x, fixed in zip(mine, self.fixed) if not fixed]
        least = min(own) if min(mine) >= 0 and len(own) > 1 else 0.0
        span = max(abs(x) for x in own) - least
        if span <= SAME * max(abs(x) for x in own):
            return [0] * len(mine)
        return [
            round(LEVELS * max(-1.0 if least == 0 else 0.0, min(1.0, (x - least) / span)))
            for x in mine
        ]

    def strongest(self, method: str, number: int = 3) -> list[int]:
        """The positions of the tokens that a method finds most relevant, the best first.

        Fixed tokens and scores ≤ 0 are left out.
        """
        return strongest(self._of(method), self.fixed, number)

    def _of(self, method: str) -> list[float]:
        if method not in self.scores:
            raise unknown_name("method", method, self.scores)
        return self.scores[method]

    def rows(self) -> list[dict[str, Any]]:
        """One row per token: position, token, special, and its score by every method."""
        return [
            {
                "position": i,
                "token": token,
                "special": self.special[i],
                **{name: x[i] for name, x in self.scores.items()},
            }
            for i, token in enumerate(self.tokens)
        ]

    def areas(self) -> list[dict[str, Any]]:
        """One row per method: the area under both deletion curves.

        The better method has the smaller positive (most relevant tokens first: the score falls
        soon) and the larger negative one (least relevant first: it stays); empty without.
        """
        found: dict[str, dict[str, Any]] = {}
        for curve in self.deletion:
            row = found.setdefault(
                curve["method"], {"method": curve["method"], "positive": None, "negative": None}
            )
            row[curve["order"]] = curve["auc"]
        return list(found.values())

    def curves(self) -> list[dict[str, Any]]:
        """One row per point of every deletion curve.

        A row has method, order, fraction taken away, and score of the target.
        """
        return [
            {
                "method": curve["method"],
                "order": curve["order"],
                "fraction": fraction,
                "score": score,
            }
            for curve in self.deletion
            for fraction, score in zip(curve["fractions"], curve["scores"])
        ]

    def printed(self) -> list[TitledTable]:
        """What a terminal prints: the areas under the deletion curves."""
        below = (
            "A good method has a low area when the most relevant go first (positive), and a high"
            " one when the least relevant do (negative)."
        )
        title = "Tokens taken away: area under the target's score"
        return [TitledTable(title, self.areas(), below)] if self.deletion else []

    def view(self, width: int | None) -> list[Any]:
        """One line of coloured tokens per method, or maps of patches.

        Without colours, the strongest tokens of each method.
        """
        from .terminal import coloured, strongest_lines

        return strongest_lines(self) if width is None else coloured(self, width)

    def record(self) -> dict[str, Any]:
        """Everything as plain data, as `--json` prints it."""
        return {
            **self.stored,
            "sentence": self.sentence,
            "tokens": self.tokens,
            "special": self.special,
            "scores": self.scores,
            "deletion": self.deletion,
        }

    def save(self, folder: str | Path) -> Path:
        """Write `explanation.json` into a folder."""
        content = {
            "format": FORMAT,
            "facts": self.stored,
            "tokens": self.tokens,
            "special": self.special,
            "scores": self.scores,
            "deletion": self.deletion,
        }
        return write_result(folder, "explanation", content)

    @classmethod
    def open(cls, folder: str | Path) -> Explanation:
        """Open an explanation; a damaged or foreign folder is refused with the reason."""
        content = read_result(folder, "explanation", FORMAT, ("explain", "MODEL", "TEXT"))
        with report_damage(folder, "explanation"):
            found = cls(
                content["facts"],
                content["tokens"],
                content["special"],
                content["scores"],
                content["deletion"],
            )
            check_explanation(found)
        return found

    def plot(self) -> Any:
        """Draw the scores of every method by token, or by patch of a picture (an altair chart)."""
        from .plots import patch_maps, token_map

        return token_map(self) if self.grid is None else patch_maps(self)

    def plot_deletion(self) -> Any:
        """Draw the target's score while tokens are taken away, by method (an altair chart).

        In both orders.
        """
        from .plots import deletion_chart

        if not self.deletion:
            raise EigenlensError(
                "this explanation was made without deletion, so there are no curves to draw"
            )
        return deletion_chart(self)

    def __repr__(self) -> str:
        return (
            f"<explanation of {self.name}, {len(self.tokens)} tokens by {len(self.scores)} methods>"
        )

    def _repr_html_(self) -> str:
        from .lines import html

        return html(self)

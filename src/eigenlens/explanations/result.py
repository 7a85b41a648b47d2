"""Which tokens decide: what every method says of one input, in a folder that can be read without
the model.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import EigenlensError
from ..names import unknown
from ..run.files import disk_errors, write_json
from ..run.result_folder import read_result, report_damage
from .verdict import in_words, sentence, strongest

FORMAT = 1
LEVELS = 10
"""Steps of colour from nothing to the largest score of a method, in either direction."""
SAME = 1e-6
"""Scores that differ by a smaller share are equal: they are rounding, and get no colour."""
FACTS: dict[str, Any] = {
    "model": dict,
    "data": str,
    "length": int,
    "target": dict,
    "score": int | float,
    "notes": list,
    "versions": dict,
}
"""What every explanation says of itself."""
MORE: dict[str, Any] = {
    "against": str | None,
    "inputs": int | None,
    "grid": list | None,
    "picture": str | None,
    "seconds": int | float | None,
    "created": str | None,
}
"""What it may say."""


@dataclass(frozen=True, repr=False, eq=False)
class Explanation:
    """The tokens of one input by every method, and what becomes of the target when they are taken
    away.

    `tokens` are the T tokens as text, `special` says which of them belong to the model's frame
    ([CLS], a class token); `scores` has T numbers for every method; `deletion` one record for each
    method and order: fractions taken away, the target's score at each, and the area under that
    curve.

    >>> found = Explanation.open("EXPLANATION")
    >>> found.scores["relevance"]                          # T numbers
    >>> print(found.sentence)
    """

    facts: dict[str, Any]
    tokens: list[str]
    special: list[bool]
    scores: dict[str, list[float]]
    deletion: list[dict[str, Any]]

    @property
    def name(self) -> str:
        """Model and target: `smollm2: next token ' Paris'`; control characters of either are
        spelled out.
        """
        return in_words(f"{self.facts['model']['name']}: {self.facts['target']['label']}")

    @property
    def notes(self) -> list[str]:
        """What was left out, and why; control characters are spelled out."""
        return [in_words(note, 1000) for note in self.facts["notes"]]

    @property
    def score(self) -> float:
        """What the model gives the target: a log-probability, a cosine, a squared norm."""
        return float(self.facts["score"])

    @property
    def grid(self) -> tuple[int, int] | None:
        """Rows and columns of the patches of a picture, or one row of frames of sound; None of
        text.
        """
        found = self.facts.get("grid")
        return None if found is None else (found[0], found[1])

    @property
    def methods(self) -> list[str]:
        """Names of the methods, in their order."""
        return list(self.scores)

    @property
    def read_at(self) -> int | None:
        """The token at which the target is read: the last one of a language model, the one whose
        label is explained.
        """
        found = self.facts["target"].get("position")
        return None if found is None else int(found)

    @property
    def fixed(self) -> list[bool]:
        """Tokens that colours and votes leave out: special ones, and the one at which the target is
        read; none where that is all there are.
        """
        found = [special or i == self.read_at for i, special in enumerate(self.special)]
        return [False] * len(found) if all(found) else found

    @property
    def free(self) -> list[int]:
        """Positions of the tokens that can be taken away: not special, not the one at which the
        target is read; where no token is either, not the first, since an input has at least one.
        """
        stays = [i for i, special in enumerate(self.special) if special or i == self.read_at] or [0]
        return [i for i in range(len(self.tokens)) if i not in stays]

    @property
    def sentence(self) -> str:
        """The target, its score, and which tokens matter by how many methods."""
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
        """Positions of the tokens a method finds most relevant, the first first; fixed tokens and
        scores ≤ 0 left out.
        """
        return strongest(self._of(method), self.fixed, number)

    def _of(self, method: str) -> list[float]:
        if method not in self.scores:
            raise unknown("method", method, self.scores)
        return self.scores[method]

    def rows(self) -> list[dict[str, Any]]:
        """One row a token: position, token, special, and its score by every method."""
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
        """One row a method: the area under both deletion curves.

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
        """One row a point of every deletion curve: method, order, fraction taken away, score of the
        target.
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

    def record(self) -> dict[str, Any]:
        """Everything as plain data, as `--json` prints it."""
        return {
            **self.facts,
            "sentence": self.sentence,
            "tokens": self.tokens,
            "special": self.special,
            "scores": self.scores,
            "deletion": self.deletion,
        }

    def save(self, folder: str | Path) -> Path:
        """Write `explanation.json` into a folder."""
        folder = Path(folder)
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        content = {
            "format": FORMAT,
            "facts": self.facts,
            "tokens": self.tokens,
            "special": self.special,
        }
        write_json(
            folder / "explanation.json",
            {**content, "scores": self.scores, "deletion": self.deletion},
        )
        return folder

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
            _check(found)
        return found

    def plot(self) -> Any:
        """Every method over the tokens, or over the patches of a picture (an altair chart)."""
        from .plots import patch_maps, token_map

        return token_map(self) if self.grid is None else patch_maps(self)

    def plot_deletion(self) -> Any:
        """The target's score while tokens are taken away, by method, in both orders (an altair
        chart).
        """
        from .plots import deletion_curves

        if not self.deletion:
            raise EigenlensError(
                "this explanation was made without deletion: there are no curves to draw"
            )
        return deletion_curves(self)

    def __repr__(self) -> str:
        return (
            f"<explanation of {self.name}, {len(self.tokens)} tokens by {len(self.scores)} methods>"
        )

    def _repr_html_(self) -> str:
        from .lines import html

        return html(self)


def _check(found: Explanation) -> None:
    """Raises what the first use of a record without these would raise."""
    if missing := FACTS.keys() - found.facts.keys():
        raise KeyError(*sorted(missing))
    for name, kind in {**FACTS, **MORE}.items():
        _typed(name, found.facts.get(name), kind)
    model, target = found.facts["model"], found.facts["target"]
    words = {
        "model": [model["name"], model["kind"], model["fingerprint"]],
        "target": [target["kind"], target["label"], target["unit"]],
        "notes": found.facts["notes"],
        "versions": [*found.facts["versions"].values()],
    }
    for name, message in words.items():
        for word in message:
            _typed(name, word, str)
    _typed("the position of the target", target.get("position"), int | None)
    number = len(found.tokens)
    if found.read_at is not None and not 0 <= found.read_at < number:
        raise ValueError(f"the target is read at token {found.read_at} of {number}")
    if not all(isinstance(special, bool) for special in found.special):
        raise ValueError("special is not true or false of every token")
    if not number or not found.scores or not all(isinstance(token, str) for token in found.tokens):
        raise ValueError("tokens and methods are needed")
    if len(found.special) != number or any(len(x) != number for x in found.scores.values()):
        raise ValueError(f"not every method has {number} scores")
    for curve in found.deletion:
        _typed("the method of a deletion curve", curve["method"], str)
        _numbers([curve["auc"], *curve["fractions"], *curve["scores"]])
        if len(curve["fractions"]) != len(curve["scores"]) or curve["order"] not in (
            "positive",
            "negative",
        ):
            raise ValueError(f"the deletion curve of {curve['method']} is not whole")
    _numbers([found.facts["score"], *(x for scores in found.scores.values() for x in scores)])
    _numbers([found.facts.get(name) or 0 for name in ("length", "inputs", "seconds")])
    for size in found.facts.get("grid") or []:
        _typed("grid", size, int)
    if found.grid is not None and (min(found.grid) < 1 or math.prod(found.grid) > number):
        raise ValueError(f"a grid of {found.grid} has more patches than there are tokens")
    json.dumps(found.record(), allow_nan=False)  # what is printed as JSON has no NaN anywhere


def _typed(name: str, value: Any, kind: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, kind):
        raise TypeError(f"{name} is {str(value)[:40]!r}")


def _numbers(values: list[Any]) -> None:
    """Finite numbers, as floats have them: an integer of hundreds of digits is none."""
    for x in values:
        if isinstance(x, bool) or not isinstance(x, int | float) or not abs(x) <= LARGEST:
            raise ValueError(f"{str(x)[:40]} is no finite number")


LARGEST = sys.float_info.max

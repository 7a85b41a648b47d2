"""What an explanation says in one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..display import listed, visible

if TYPE_CHECKING:
    from .result import Explanation

TOP = 3
"""Tokens that a method votes for."""
MOST_NAMED = 3
"""Tokens that the sentence names."""
CONTROL = "random"
"""A method whose scores mean nothing: it has no vote."""
TIE = 1e-6
"""Areas that differ by a smaller share are equal."""
COUNTS = ("no", "one", "two", "three")


def strongest(scores: Sequence[float], fixed: Sequence[bool], number: int = TOP) -> list[int]:
    """Positions of the largest scores above 0 of tokens that are not fixed, the largest first.

    Of equal ones the earlier comes first.

    >>> strongest([0.9, 0.1, 0.3, -1.0], [True, False, False, False])
    [2, 1]
    """
    known = [i for i, score in enumerate(scores) if score > 0 and not fixed[i]]
    return sorted(known, key=lambda i: (-scores[i], i))[:number]


def votes(found: Explanation, number: int = TOP) -> list[tuple[int, int]]:
    """(position, how many methods have it among their `number` strongest tokens).

    Chance has no vote.

    Most votes first; of as many, the one that the methods rank higher.
    """
    ranks: dict[int, list[int]] = {}
    for name in found.methods:
        for rank, i in enumerate(found.strongest(name, number)):
            if name != CONTROL:
                ranks.setdefault(i, []).append(rank)
    order = sorted(ranks, key=lambda i: (-len(ranks[i]), sum(ranks[i]), i))
    return [(i, len(ranks[i])) for i in order]


def in_words(text: str, most: int = 200) -> str:
    r"""A label or a note as it can be printed.

    Spaces stay, control characters and marks of direction are spelled out.

    >>> in_words("mini: class \x1b[1mgood")
    'mini: class \\u001b[1mgood'
    """
    return visible(text, most).replace("␣", " ")


def sentence(found: Explanation) -> str:
    """The sentence of an explanation, from its numbers.

    Such as `Next token ' Paris': log-probability -0.31; 7 of 9 methods put 'France' among …`.
    """
    return f"{_target(found)}{_tokens(found)}{_deletion(found)}."


def _target(found: Explanation) -> str:
    target = found.stored["target"]
    label, unit = in_words(target["label"]), in_words(target["unit"])
    unit = "" if label.startswith(unit) else f"{unit} "
    return f"{label[:1].upper()}{label[1:]}: {unit}{found.score:.3g}"


def _tokens(found: Explanation) -> str:
    voters = [name for name in found.methods if name != CONTROL]
    free = found.free
    if not free:
        return (
            f"; no {nouns(found).removesuffix('es' if found.grid and found.grid[0] > 1 else 's')}"
            " can be taken away"
        )
    if not voters:
        return ""
    if len(free) == 1:
        return f"; only {named(found, free[0])} can be taken away"
    top = min(TOP, len(free))
    message = votes(found, top)[:MOST_NAMED]
    if not message:
        return f"; no method finds {nouns(found)} that speak for it"
    if len(voters) == 1:
        return (
            f"; by {voters[0]} it is {listed([named(found, i) for i, _ in message])} that matter"
            " most"
        )
    (first, number), *others = message
    beside = (
        ""
        if found.read_at is None
        else f"beside {named(found, found.read_at)}, at which it is read, "
    )
    head = f"{number} of {len(voters)} methods put{'s' * (number == 1)} {named(found, first)}"
    more = "".join(f", {count} {named(found, i)}" for i, count in others)
    return f"; {beside}{head} among the {COUNTS[top]} {nouns(found)} that matter most{more}"


def _deletion(found: Explanation) -> str:
    """Which order of taking tokens away lowers the target's score fastest, beside chance."""
    areas = {row["method"]: row["positive"] for row in found.areas() if row["positive"] is not None}
    chance = areas.pop(CONTROL, None)
    if len(areas) < 2 or len(found.free) < 2:
        return ""
    least, most = min(areas.values()), max(areas.values())
    best = [
        name for name, area in areas.items() if area - least <= TIE * max(abs(least), abs(most))
    ]
    beside = "" if chance is None else f", {chance:.3g} at random"
    if len(best) == len(areas):
        return (
            f"; taking {nouns(found)} away changes it alike in the order of every method (area"
            f" {least:.3g}{beside})"
        )
    message = listed(best) if len(best) <= MOST_NAMED else f"{len(best)} methods alike"
    return (
        f"; taking {nouns(found)} away lowers it soonest in the order of {message} (area"
        f" {least:.3g}{beside})"
    )


def nouns(found: Explanation) -> str:
    """What the tokens of the input are."""
    return "tokens" if found.grid is None else "frames" if found.grid[0] == 1 else "patches"


def named(found: Explanation, position: int) -> str:
    """A token in quotation marks, with its position where its text is there twice.

    A patch or a frame as it is.
    """
    token = found.tokens[position]
    if found.grid is not None:
        return f"patch {token}" if "," in token else token
    again = f" (token {position})" if found.tokens.count(token) > 1 else ""
    return f"'{visible(token.strip() or token)}'{again}"

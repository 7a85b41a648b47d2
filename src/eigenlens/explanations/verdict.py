"""The sentences of an explanation, made from its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..display import listed, visible

if TYPE_CHECKING:
    from .result import Explanation

TOP = 3
"""How many tokens a method votes for."""
MOST_NAMED = 3
"""How many tokens the sentence names."""
CONTROL = "random"
"""A method whose scores mean nothing: it has no vote."""
TIE = 1e-6
"""Areas that differ by a smaller share count as equal."""
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
    """Pairs (position, number of methods that have it among their `number` strongest tokens).

    Random scores have no vote. The most votes come first; with equal votes, the token that the
    methods rank higher.
    """
    ranks: dict[int, list[int]] = {}
    for name in found.methods:
        for rank, i in enumerate(found.strongest(name, number)):
            if name != CONTROL:
                ranks.setdefault(i, []).append(rank)
    order = sorted(ranks, key=lambda i: (-len(ranks[i]), sum(ranks[i]), i))
    return [(i, len(ranks[i])) for i in order]


def in_words(text: str, most: int = 200) -> str:
    r"""A label or a note that is safe to print.

    Spaces stay; control characters and marks of direction are spelled out.

    >>> in_words("mini: class \x1b[1mgood")
    'mini: class \\u001b[1mgood'
    """
    return visible(text, most).replace("␣", " ")


def sentence(found: Explanation) -> str:
    """The target with its score, the tokens that matter, and the best order of deletion.

    Such as `Next token ' Paris': log-probability -0.31. 7 of 9 methods put 'France' among …`.
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
            f". No {nouns(found).removesuffix('es' if found.grid and found.grid[0] > 1 else 's')}"
            " can be taken away"
        )
    if not voters:
        return ""
    if len(free) == 1:
        return f". Only {named(found, free[0])} can be taken away"
    top = min(TOP, len(free))
    message = votes(found, top)[:MOST_NAMED]
    if not message:
        return f". No method finds {nouns(found)} that speak for the target"
    if len(voters) == 1:
        return (
            f". By {voters[0]}, {listed([named(found, i) for i, _ in message])}"
            f" matter{'s' * (len(message) == 1)} most"
        )
    (first, number), *others = message
    beside = (
        ""
        if found.read_at is None
        else f"Besides {named(found, found.read_at)}, where the target is read, "
    )
    head = f"{number} of {len(voters)} methods put{'s' * (number == 1)} {named(found, first)}"
    more = "".join(
        f", {count} put{'s' * (count == 1)} {named(found, i)} there" for i, count in others
    )
    return f". {beside}{head} among the {COUNTS[top]} {nouns(found)} that matter most{more}"


def _deletion(found: Explanation) -> str:
    """Say in whose order taking tokens away lowers the score soonest, beside random order."""
    areas = {row["method"]: row["positive"] for row in found.areas() if row["positive"] is not None}
    chance = areas.pop(CONTROL, None)
    if len(areas) < 2 or len(found.free) < 2:
        return ""
    least, most = min(areas.values()), max(areas.values())
    best = [
        name for name, area in areas.items() if area - least <= TIE * max(abs(least), abs(most))
    ]
    beside = "" if chance is None else f", in random order {chance:.3g}"
    if len(best) == len(areas):
        return (
            f". Taking {nouns(found)} away changes the score alike in the order of every method"
            f" (area under the curve {least:.3g}{beside})"
        )
    message = listed(best) if len(best) <= MOST_NAMED else f"{len(best)} methods alike"
    return (
        f". Taking {nouns(found)} away lowers the score soonest in the order of {message} (area"
        f" under the curve {least:.3g}{beside})"
    )


def nouns(found: Explanation) -> str:
    """What the tokens of the input are called: tokens, patches or frames."""
    return "tokens" if found.grid is None else "frames" if found.grid[0] == 1 else "patches"


def named(found: Explanation, position: int) -> str:
    """A token in quotation marks, with its position where its text occurs more than once.

    A patch or a frame has its name as it is.
    """
    token = found.tokens[position]
    if found.grid is not None:
        return f"patch {token}" if "," in token else token
    again = f" (token {position})" if found.tokens.count(token) > 1 else ""
    return f"'{visible(token.strip() or token)}'{again}"

"""The claim that a window of keys needs the first tokens, on each text and kind of positions."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import Any

from ...display import numbered
from ...stats.intervals import t_interval
from ..claims import Claim
from ..verdicts import judged_at
from .windows import ALL, ALONE, CACHE, FIRST, KEPT

Row = dict[str, Any]


def window_claim(name: str, rows: Sequence[Row]) -> Claim:
    """That a few first keys give back what a window loses, for each text and kind of positions."""
    points: dict[str, bool] = {}
    gains, most = [], []
    for text in dict.fromkeys(row["text"] for row in rows):
        losses = {
            way: [row["loss"] for row in rows if (row["text"], row["keys"]) == (text, way)]
            for way in (ALL, KEPT, CACHE, ALONE)
        }
        lost = mean(losses[ALONE]) - mean(losses[ALL])
        for way, place in ((CACHE, "in the cache"), (KEPT, "in the text")):
            if losses[way]:
                gain, low, high = t_interval([b - a for a, b in zip(losses[way], losses[ALONE])])
                gains.append((gain, low, high))
                most.append(gain >= lost / 2 > 0)
                said = f"{text}, positions {place} (saves {gain:.3g} of {lost:.3g} nats)"
                points[said] = most[-1] and low is not None and low > 0
    main, low, high = gains[0]
    number = len({row["input"] for row in rows})
    return judged_at(
        f"{name}: a window of keys needs the first {FIRST}",
        "StreamingLLM: with them the perplexity stays, without it is lost",
        main,
        points,
        None if low is None or high is None else (low, high),
        f"holds where the 95 % interval of what {FIRST} first keys save is above 0, and they save"
        " at least half of what a window of the latest keys loses; the half is ours",
        f"nats per token that they save in a window of {rows[0]['window']} keys, mean over"
        f" {numbered(number, 'text')} of {rows[0]['tokens']} tokens, at the first point; the"
        " perplexities are in the table of windows",
        reason=(
            f"the scale: {numbered(number, 'text')} leave the interval of what is saved open at 0"
            if any(most)
            else "the claim: the first keys save less than half of what a window loses"
        )
        + f" ({', '.join(points)})",
    )

"""Which documents are for fitting and which are held out."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

FIT = -1
GROUPS = 8
"""How many groups the held-out documents fall into.

Intervals come from leaving out one group at a time.
"""


@dataclass
class Split:
    """Deals documents to the fit set (`FIT`) and to held-out groups 0, 1, …, as they come.

    It counts inputs. A document belongs to one bucket only. The held-out set is kept at the share
    `held_out` of all inputs so far; within it the emptiest group is next. A full bucket gets no
    further document. At a share of 0 there are no groups.
    """

    inputs: int
    held_out: float
    seed: int
    groups: int = GROUPS
    # inputs to fit and to hold out without which the data are too few
    least: tuple[int, int] = (2, 1)
    # bucket → inputs it has; a part of one counts as its share
    made: dict[int, float] = field(default_factory=dict)
    _current: tuple[int, int | None] | None = None  # the document being dealt, and its bucket

    def __post_init__(self) -> None:
        held = (
            min(max(round(self.inputs * self.held_out), 1), self.inputs - 1) if self.held_out else 0
        )
        groups = min(self.groups, held)
        self.quota = {FIT: self.inputs - held}
        self.quota |= {g: held // groups + (g < held % groups) for g in range(groups)}
        self.made = dict.fromkeys(self.quota, 0.0)
        self._held_first = random.Random(self.seed).random() < self.held_out

    @property
    def full(self) -> bool:
        return not self.has_room(FIT) and not any(
            self.has_room(bucket) for bucket in self.quota if bucket != FIT
        )

    def has_room(self, bucket: int, started: bool = False) -> bool:
        """Whether a bucket takes another document, or more of one that is `started`.

        A long document may fill a group twice.
        """
        if bucket == FIT:
            return self.made[FIT] < self.quota[FIT]
        # started inputs of other groups may never be finished
        held = sum(int(n) for g, n in self.made.items() if g != FIT)
        return held < sum(self.quota.values()) - self.quota[FIT] and self.made[bucket] < self.quota[
            bucket
        ] * (1 + started)

    def bucket(self, document: int) -> int | None:
        """Return the bucket of a document; None if there is no room for it.

        Documents come one after the other.
        """
        if self._current is None or self._current[0] != document:
            self._current = (document, self._deal())
        bucket = self._current[1]
        return bucket if bucket is not None and self.has_room(bucket, started=True) else None

    def _deal(self) -> int | None:
        groups = [g for g in self.quota if g != FIT and self.has_room(g)]
        held = sum(n for g, n in self.made.items() if g != FIT)
        total = sum(self.made.values())
        wanted = held < self.held_out * total if total else self._held_first
        if groups and (wanted or not self.has_room(FIT)):
            return min(groups, key=lambda g: (self.made[g], g))
        return FIT if self.has_room(FIT) else None

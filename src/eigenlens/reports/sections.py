"""The sections of the page, in their order."""

from __future__ import annotations

from dataclasses import dataclass, field

from .parts import PagePart


@dataclass(frozen=True)
class Section:
    """A chapter of the page; without parts it says what would fill it."""

    key: str
    title: str
    missing: str
    last: tuple[str, ...] = ()
    """Keys of parts that stand behind those of its own key."""
    parts: list[PagePart] = field(default_factory=list)

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key, *self.last)


SECTIONS = (
    Section(
        "heads",
        "How low-dimensional is each head?",
        "No study was given: `eigenlens study MODEL DATA -o DIR` makes one.",
    ),
    Section(
        "diagnostics",
        "What do the heads and layers do?",
        "No study with diagnostics was given: `eigenlens study MODEL DATA -o DIR` makes one.",
    ),
    Section(
        "overlap",
        "Do heads share their directions?",
        "There is nothing to compare: that takes a study of rows with two heads or more that see"
        " equally many keys.",
    ),
    Section(
        "reconstruction",
        "How much can be left out?",
        "No plan was given: `eigenlens plan STUDY --budget 0.25 -o PLAN` makes one, `eigenlens"
        " evaluate` measures it.",
    ),
    Section(
        "collapse",
        "Why does it not collapse?",
        "No collapse run was given: `eigenlens collapse MODEL DATA -o DIR` makes one.",
        last=("depth",),
    ),
    Section(
        "explanations",
        "Which tokens decide?",
        "No explanation was given: `eigenlens explain MODEL TEXT -o DIR` makes one.",
    ),
)

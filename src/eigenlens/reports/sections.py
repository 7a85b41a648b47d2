"""The sections of the page, in their order."""

from __future__ import annotations

from dataclasses import dataclass, field

from .parts import PagePart


@dataclass(frozen=True)
class Section:
    """A section of the page; without parts it says what would fill it."""

    key: str
    title: str
    missing: str
    last: tuple[str, ...] = ()
    """Keys of parts that come after those of its own key."""
    parts: list[PagePart] = field(default_factory=list)

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key, *self.last)


SECTIONS = (
    Section(
        "heads",
        "How low-dimensional?",
        "No study was given: `eigenlens study MODEL DATA -o DIR` makes one.",
    ),
    Section(
        "diagnostics",
        "What do heads do?",
        "No study with diagnostics was given: `eigenlens study MODEL DATA -o DIR` makes one.",
    ),
    Section(
        "overlap",
        "Shared directions?",
        "There is nothing to compare: this needs a study with rows, and two or more heads that see"
        " equally many keys.",
    ),
    Section(
        "reconstruction",
        "What can be left out?",
        "No plan was given: `eigenlens plan STUDY --budget 0.25 -o PLAN` makes one, `eigenlens"
        " evaluate` measures it.",
    ),
    Section(
        "collapse",
        "Why no collapse?",
        "No collapse run was given: `eigenlens collapse MODEL DATA -o DIR` makes one.",
        last=("depth",),
    ),
    Section(
        "explanations",
        "Which tokens decide?",
        "No explanation was given: `eigenlens explain MODEL TEXT -o DIR` makes one.",
    ),
)

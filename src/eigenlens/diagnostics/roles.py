"""What kind of head a head is, by the thresholds of its diagnostics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..captures import Head, Site
from ..display import numbered, percent
from .finding import Finding


@dataclass(frozen=True)
class Role:
    """A head has the role if a number of a diagnostic reaches `least`.

    If `least` is None, the diagnostic's own setting of that name is the threshold.
    """

    name: str
    diagnostic: str
    number: str
    sentence: str  # of one head; {value} is `shown`
    shown: str = ""
    least: float | None = None

    def heads(self, found: Mapping[str, Finding]) -> dict[Head | Site, float]:
        """The heads that have the role, with the number that decides it."""
        if self.diagnostic not in found:
            return {}
        finding = found[self.diagnostic]
        if not finding.applies:
            return {}
        least = self.least if self.least is not None else float(finding.settings[self.number])
        shown = finding.values(self.shown or self.number)
        return {
            at: shown[at]
            for at, value in finding.values(self.number).items()
            if value >= least and at in shown
        }


ROLES = (
    Role(
        "sink",
        "sinks",
        "rate",
        "Attends to the first token with {share} of its attention (a sink).",
        "strength",
        0.5,
    ),
    Role(
        "previous token",
        "induction",
        "previous",
        "Looks at the previous token ({share} of its attention on random tokens).",
    ),
    Role(
        "induction",
        "induction",
        "prefix",
        "Does induction: {share} of its attention goes to what followed the token earlier.",
    ),
    Role(
        "duplicate token",
        "induction",
        "duplicate",
        "Looks at earlier occurrences of the token ({share} of its attention).",
    ),
)
"""A head is a sink head if the first token is a sink in at least half of the inputs."""


def roles(found: Mapping[str, Finding]) -> dict[Head | Site, list[str]]:
    """Describe each head that has a role in sentences; a head may have several roles."""
    message: dict[Head | Site, list[str]] = {}
    for role in ROLES:
        for at, value in role.heads(found).items():
            message.setdefault(at, []).append(role.sentence.format(share=percent(value)))
    return message


def roles_sentence(found: Mapping[str, Finding]) -> str:
    """Say how many heads have each role; empty if none of the diagnostics was run."""
    asked = [role for role in ROLES if role.diagnostic in found and found[role.diagnostic].applies]
    if not asked:
        return ""
    most = max(len(found[role.diagnostic].by_location()) for role in asked)
    message = ", ".join(f"{len(role.heads(found))} {role.name}" for role in asked)
    return f"Roles of {numbered(most, 'head')}, by the thresholds of the diagnostics: {message}."

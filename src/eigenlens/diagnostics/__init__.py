"""Diagnostics: what the heads and layers of a model do, in numbers and one sentence each."""

from __future__ import annotations

from typing import Any

from ..names import unknown_name
from .amplifier import Amplifier
from .diagnostic import CallView, Diagnostic, LayerView
from .finding import Finding, Number
from .findings import Findings, change, changes, changes_sentence
from .induction import Induction
from .keys import Keys
from .localisation import Localisation
from .qk import QueryKey
from .relevance import Relevance
from .sinks import Sinks
from .smoothing import Smoothing
from .spikes import Spikes
from .studied_model import StudiedModel

_KINDS: tuple[type[Diagnostic], ...] = (
    Sinks,
    Spikes,
    Amplifier,
    Keys,
    Localisation,
    QueryKey,
    Smoothing,
    Relevance,
    Induction,
)
DIAGNOSTICS: dict[str, type[Diagnostic]] = {kind.name: kind for kind in _KINDS}
"""The diagnostics by name, in the order in which they are shown."""


def find_diagnostic(name: str) -> type[Diagnostic]:
    """Return the class of a diagnostic."""
    if name not in DIAGNOSTICS:
        raise unknown_name("diagnostic", name, DIAGNOSTICS)
    return DIAGNOSTICS[name]


def chart_of(finding: Finding) -> Any:
    """Draw a finding the way its diagnostic draws it (an altair chart)."""
    from .pictures import head_map, layer_curves

    if finding.name in DIAGNOSTICS:
        return DIAGNOSTICS[finding.name].chart(finding)
    return head_map(finding) if finding.level == "head" else layer_curves(finding)


__all__ = [
    "DIAGNOSTICS",
    "CallView",
    "Diagnostic",
    "Finding",
    "Findings",
    "LayerView",
    "Number",
    "StudiedModel",
    "change",
    "changes",
    "changes_sentence",
    "find_diagnostic",
]

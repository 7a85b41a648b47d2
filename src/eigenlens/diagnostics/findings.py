"""All findings about a model, and what changed between two models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..captures import Head, Labels, Site, labelled, location_of
from ..display import html_view
from ..names import unknown_name
from .finding import Finding


class Findings(Mapping[str, Finding]):
    """The findings of all diagnostics of a study, by name.

    >>> study.diagnostics["sinks"].sentence
    >>> study.diagnostics.heads()[Head("encoder", 3, 5)]["sinks_rate"]
    """

    def __init__(self, findings: Sequence[Finding]) -> None:
        self._findings = {finding.name: finding for finding in findings}

    def __getitem__(self, name: str) -> Finding:
        if name not in self._findings:
            from . import DIAGNOSTICS

            raise unknown_name("diagnostic", name, self._findings, guess=name not in DIAGNOSTICS)
        return self._findings[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._findings)

    def __len__(self) -> int:
        return len(self._findings)

    def __contains__(self, name: object) -> bool:
        return name in self._findings

    @property
    def found(self) -> list[Finding]:
        """The findings of the diagnostics that apply to the model."""
        return [finding for finding in self.values() if finding.applies]

    def heads(self) -> dict[Head, dict[str, float | None]]:
        """The numbers of each head, named `sinks_rate`, `sinks_rate_low`, …."""
        return {at: numbers for at, numbers in self._numbers() if isinstance(at, Head)}

    def layers(self) -> dict[Site, dict[str, float | None]]:
        """The numbers of each layer."""
        return {at: numbers for at, numbers in self._numbers() if isinstance(at, Site)}

    def _numbers(self) -> Iterable[tuple[Head | Site, dict[str, float | None]]]:
        found: dict[Head | Site, dict[str, float | None]] = {}
        for finding in self.found:
            for at, numbers in finding.by_location().items():
                found.setdefault(at, {}).update(numbers)
        return found.items()

    def words(self, level: str = "head") -> dict[str, str]:
        """What each number of heads (or layers) means: `sinks_rate` → `attention sinks: …`."""
        return {
            f"{finding.name}_{name}": f"{finding.title}: {words}"
            for finding in self.found
            if finding.level == level
            for name, words in finding.words.items()
        }

    def sentences(self) -> list[str]:
        """The sentence of each diagnostic.

        Then the diagnostics that do not apply, grouped by reason.
        """
        notes: dict[str, list[str]] = {}
        for finding in self.values():
            if finding.note:
                notes.setdefault(finding.note, []).append(finding.title)
        message = [
            f"Not applicable: {', '.join(titles)} ({note})." for note, titles in notes.items()
        ]
        return [finding.sentence for finding in self.values() if finding.sentence] + message

    def rows(self) -> list[dict[str, Any]]:
        """One record per layer: the first number of every diagnostic, averaged over heads."""
        rows: dict[Head | Site, dict[str, Any]] = {}
        titles = [finding.name for finding in self.found]
        for finding in self.found:
            first = next(iter(finding.words))
            for row in finding.layers():
                start = {"stack": row["stack"], "layer": row["layer"], **dict.fromkeys(titles)}
                rows.setdefault(location_of(row), start)[finding.name] = row[first]
        return [row for _, row in sorted(rows.items(), key=lambda pair: pair[0])]

    def record(self) -> list[dict[str, Any]]:
        """The findings as plain data, without the numbers, which are kept with heads and layers."""
        return [
            {key: value for key, value in f.record().items() if key != "numbers"}
            for f in self.values()
        ]

    def __repr__(self) -> str:
        return f"<{len(self.found)} diagnostics: {', '.join(f.name for f in self.found)}>"

    def _repr_html_(self) -> str:
        return html_view(
            "What the heads and layers do", " ".join(self.sentences()), None, labelled(self.rows())
        )


def changes(left: Findings, right: Findings) -> list[dict[str, Any]]:
    """Return what changed between two models, or by a fine-tune: one record per number.

    Each record has the mean over all heads or layers on both sides. If both sides have the same
    heads or layers, also the mean |change|, and the one that changed most with its two values.
    `settings` names thresholds that differ between the sides, which makes the numbers incomparable.
    """
    rows = []
    for name in left:
        if name not in right or not (left[name].applies and right[name].applies):
            continue
        for number, words in left[name].words.items():
            one, other = (
                left[name].values(number),
                right[name].values(number) if number in right[name].words else {},
            )
            if not one or not other:
                continue
            row = change(name, number, words, one, other, left[name].labels)
            rows.append(row | {"settings": _other_settings(left[name], right[name])})
    return rows


def change(
    name: str,
    number: str,
    words: str,
    left: Mapping[Head | Site, float],
    right: Mapping[Head | Site, float],
    labels: Labels,
) -> dict[str, Any]:
    """One record of how a number of every head or layer differs between two models."""
    row: dict[str, Any] = {
        "diagnostic": name,
        "number": number,
        "words": words,
        "left": _mean(left),
        "right": _mean(right),
    }
    row |= dict.fromkeys(("change", "most", "most_left", "most_right", "settings"))
    if left.keys() == right.keys():
        moved = {at: abs(right[at] - value) for at, value in left.items()}
        most = max(moved, key=lambda at: moved[at])
        row |= {
            "change": _mean(moved),
            "most": labels(most),
            "most_left": left[most],
            "most_right": right[most],
        }
    return row


def changes_sentence(rows: Sequence[dict[str, Any]], left: str, right: str) -> str:
    """Name the first number of each diagnostic whose mean moved by more than a tenth."""
    seen, parts = set(), []
    for row in rows:
        if row["diagnostic"] in seen:
            continue
        seen.add(row["diagnostic"])
        size = max(abs(row["left"]), abs(row["right"]))
        if size > 0 and abs(row["right"] - row["left"]) > 0.1 * size:
            but = (
                f" (measured with different settings: {row['settings']})" if row["settings"] else ""
            )
            parts.append(
                f"{row['words']} ({row['diagnostic']}) goes from {row['left']:.3g} to"
                f" {row['right']:.3g}{but}"
            )
    if not rows:
        return ""
    message = "; ".join(parts) if parts else "no diagnostic's mean changes by more than 10 %"
    return f"From {left} to {right}: {message}."


def _other_settings(left: Finding, right: Finding) -> str | None:
    """Return the thresholds that differ between two findings, such as `epsilon 0.1 and 0.9`.

    None if they are the same.
    """
    names = [name for name in left.settings if left.settings[name] != right.settings.get(name)]
    return (
        ", ".join(f"{name} {left.settings[name]} and {right.settings.get(name)}" for name in names)
        or None
    )


def _mean(values: Mapping[Head | Site, float]) -> float:
    return sum(values.values()) / len(values)

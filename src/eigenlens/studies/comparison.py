"""Studies beside each other: do they share their eigenspaces?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from ..diagnostics import changes, changes_sentence
from ..errors import EigenlensError
from ..shell import option
from ..spectra.centring import Centring
from ..spectra.overlap import Overlap, overlap_matrix, principal_angles
from ..spectra.spectrum import Level
from .result import Study


@dataclass(frozen=True, eq=False)
class Pair:
    """Two studies at one level and rank: overlaps and captured variance both ways, and the angles
    of their stacks.
    """

    level: Level
    rank: int
    forward: Overlap  # captured: variance of the right study in the spaces of the left
    backward: Overlap
    angles: np.ndarray | None  # (r,) degrees, where each study has one stack

    def record(self) -> dict[str, Any]:
        """One row: mean overlap of all pairs, equal places and best partners; chance, captured
        variance, angles.
        """
        best = self.forward.matrix.max(1).mean()
        same = self.forward.rows_ == self.forward.columns
        record = {
            "left": self.forward.left,
            "right": self.forward.right,
            "level": self.level,
            "rank": self.rank,
            "overlap": float(self.forward.matrix.mean()),
            "same_place": float(self.forward.matrix.diagonal().mean()) if same else None,
            "best_partner": float(best),
            "chance": self.forward.chance,
            "captured_right_by_left": (
                None if self.forward.captured is None else float(self.forward.captured.mean())
            ),
            "captured_left_by_right": (
                None if self.backward.captured is None else float(self.backward.captured.mean())
            ),
        }
        record["largest_angle"] = None if self.angles is None else float(self.angles[-1])
        record["median_angle"] = None if self.angles is None else float(np.median(self.angles))
        return record


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """All pairs of the given studies, by head, layer and stack."""

    studies: tuple[Study, ...]
    centring: Centring
    pairs: tuple[Pair, ...]

    def changes(self) -> list[dict[str, Any]]:
        """What each later study changes in the diagnostics of the first: one record a study and
        number.

        >>> compare("before", "after").changes()[0]
        {'study': …, 'diagnostic': 'sinks', 'number': 'rate', 'left': 0.41, 'right': 0.05, 'most':
        'self/3.2', …}
        """
        if not self.studies:
            return []
        first, *others = self.studies
        labels = labels_of(self.studies)[1:]
        return [
            {"study": label, **row}
            for label, other in zip(labels, others)
            for row in changes(first.diagnostics, other.diagnostics)
        ]

    def rows(self) -> list[dict[str, Any]]:
        """One record a pair of studies, level and rank."""
        return [pair.record() for pair in self.pairs]

    def record(self) -> dict[str, Any]:
        """Everything as plain data, as `--json` prints it."""
        names = [
            {"folder": str(s.folder), "name": s.name, "length": s.length} for s in self.studies
        ]
        return {
            "studies": names,
            "centring": self.centring,
            "pairs": self.rows(),
            "changes": self.changes(),
        }

    def plot(self) -> Any:
        """The overlap of layers of the first two studies as a heat map (an altair chart)."""
        if not self.pairs:
            raise EigenlensError(
                "these studies have no eigenspaces of rows, so there is nothing to draw"
            )
        return next(pair for pair in self.pairs if pair.level == "layer").forward.plot()

    @property
    def sentence(self) -> str:
        """Whether the heads of each two studies share their spaces, at the largest rank, in
        words.
        """
        rank = max((pair.rank for pair in self.pairs), default=0)
        spaces = [
            comparison_sentence(row)
            for row in self.rows()
            if (row["level"], row["rank"]) == ("head", rank)
        ]
        labels, moved = labels_of(self.studies), self.changes()
        message = [
            changes_sentence([row for row in moved if row["study"] == label], labels[0], label)
            for label in labels[1:]
        ]
        return " ".join(filter(None, [*spaces, *message]))

    def __repr__(self) -> str:
        return f"<comparison of {len(self.studies)} studies>"

    def _repr_html_(self) -> str:
        from ..display import html_view

        return html_view(
            f"Comparison of {len(self.studies)} studies",
            self.sentence,
            self.plot() if self.pairs else None,
            self.rows() or self.changes(),
        )


def compare(
    *studies: Study | str | Path, ranks: Sequence[int] | None = None, centring: Centring = "centred"
) -> Comparison:
    """Compare studies of the same length: their eigenspaces and their diagnostics.

    The overlap `‖U_AᵀU_B‖²/r` of two spaces of dimension r is 1 if they are equal, and about r/n by
    chance.

    Parameters
    ----------
    *studies : Study, str or Path
        Two or more studies, or their folders: of other data, another model, a fine-tune.
    ranks : sequence of int, optional
        Dimensions of the eigenspaces. Default: 4 and 16, or less if the inputs are that short.
    centring : {"raw", "centred", "row-centred"}, default "centred"
        Which spectra are compared.

    Returns
    -------
    Comparison
        The overlap of each two studies by head, layer and stack, and what changed in the
        diagnostics.

    Raises
    ------
    EigenlensError
        If there are fewer than two studies, or if they cannot be compared.

    Examples
    --------
    >>> compare("before-study", "after-study", ranks=[8]).sentence
    """
    opened = tuple(s if isinstance(s, Study) else Study.open(s) for s in studies)
    if len(opened) < 2:
        raise EigenlensError(f"{len(opened)} study given; a comparison needs at least two")
    labels = labels_of(opened)
    kinds = {(s.facts["options"]["of"], s.facts["options"]["before_rope"]) for s in opened}
    if len(kinds) > 1:
        message = {
            ("scores", False): "scores",
            ("scores", True): "scores before the rotary embedding",
        }
        named = [
            message.get((s.facts["options"]["of"], s.facts["options"]["before_rope"]), "patterns")
            for s in opened
        ]
        listed = ", ".join(f"{label} is of {what}" for label, what in zip(labels, named))
        raise EigenlensError(f"studies of different things cannot be compared: {listed}")
    lengths = {s.length for s in opened}
    if len(lengths) > 1:
        listed = ", ".join(f"{label} has {s.length}" for label, s in zip(labels, opened))
        raise EigenlensError(f"studies of different lengths cannot be compared: {listed}")
    if ranks is None:
        shortest = min(site.keys for s in opened for site in s.sites.values())
        ranks = sorted({min(rank, max(shortest - 1, 1)) for rank in (4, 16)})
    pairs = []
    levels: tuple[Level, ...] = (
        ("head", "layer", "stack") if all(s.has("rows") for s in opened) else ()
    )
    if not levels and not all(s.has("diagnostics") for s in opened):
        missing = next(s for s in opened if not s.has("rows"))
        raise EigenlensError(
            f"the study in {missing.folder} was made without rows; make it anew with"
            f" {option('only', 'rows')}"
        )
    for level in levels:
        whole = [s.eigenspaces("rows", level, max(ranks), centring) for s in opened]
        for rank in ranks:
            spaces = [replace(space, vectors=space.vectors[:, :, :rank]) for space in whole]
            for i, j in combinations(range(len(opened)), 2):
                forward = overlap_matrix(spaces[i], spaces[j], labels[i], labels[j])
                backward = overlap_matrix(spaces[j], spaces[i], labels[j], labels[i])
                single = level == "stack" and len(spaces[i].names) == len(spaces[j].names) == 1
                angles = (
                    principal_angles(spaces[i].vectors[0], spaces[j].vectors[0]) if single else None
                )
                pairs.append(Pair(level, rank, forward, backward, angles))
    made = Comparison(opened, centring, tuple(pairs))
    if not pairs and not made.changes():
        raise EigenlensError(
            "these studies have nothing in common that could be compared: no rows, and no"
            " diagnostic"
        )
    return made


def labels_of(studies: Sequence[Study]) -> list[str]:
    """What tells studies apart: their names, and where those repeat as much of the end of their
    folders as it takes.
    """
    names = [s.name for s in studies]
    if len(set(names)) == len(names):
        return names
    parts = [s.folder.resolve().parts for s in studies]
    for length in range(1, max(map(len, parts)) + 1):
        labels = [f"{name} ({'/'.join(part[-length:])})" for name, part in zip(names, parts)]
        if len(set(labels)) == len(labels):
            break
    return labels


def comparison_sentence(record: dict[str, Any]) -> str:
    """Do two studies share their spaces, and does either hold the variance of the other?

    `record` is that of a `Pair`.
    """
    times = record["overlap"] / record["chance"]
    near = "about what chance gives" if times < 1.5 else f"{times:.1f} times chance"
    text = (
        f"{record['left']} and {record['right']}: their {record['level']}s share"
        f" {record['overlap']:.2f} of the leading {record['rank']} directions, {near}"
        f" ({record['chance']:.3f}); the best partner of each shares {record['best_partner']:.2f}"
    )
    if record["captured_right_by_left"] is not None:
        text += (
            f". The spaces of the first hold {record['captured_right_by_left']:.0%} of what the"
            " second's own hold of its variance, those of the second"
            f" {record['captured_left_by_right']:.0%} of the first's"
        )
    return text + "."

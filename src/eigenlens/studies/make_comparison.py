"""Comparing studies: their eigenspaces and their diagnostics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

from ..captures import Head, Site
from ..diagnostics import change, changes
from ..errors import EigenlensError
from ..shell import option
from ..spectra.centring import Centring
from ..spectra.overlap import overlap_matrix, principal_angles
from ..spectra.spectrum import Level
from ..spectra.within import WithinKind
from .comparison import Comparison, Pair, StudyRef
from .result import Study

ANY_OF = ("diagnostics", "within")
"""What studies without rows can be compared by."""


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
        raise EigenlensError(f"a comparison needs at least two studies, not {len(opened)}")
    labels = labels_of(opened)
    kinds = {(s.of, s.before_rope) for s in opened}
    if len(kinds) > 1:
        message = {
            ("scores", False): "scores",
            ("scores", True): "scores before the rotary embedding",
        }
        named = [message.get((s.of, s.before_rope), "patterns") for s in opened]
        listed = ", ".join(f"{label} is of {what}" for label, what in zip(labels, named))
        raise EigenlensError(
            f"studies can only be compared if they are of the same thing: {listed}"
        )
    lengths = {s.length for s in opened}
    if len(lengths) > 1:
        listed = ", ".join(f"{label} has {s.length} tokens" for label, s in zip(labels, opened))
        raise EigenlensError(f"studies can only be compared at the same length: {listed}")
    if ranks is None:
        shortest = min(site.keys for s in opened for site in s.sites.values())
        ranks = sorted({min(rank, max(shortest - 1, 1)) for rank in (4, 16)})
    pairs = []
    levels: tuple[Level, ...] = (
        ("head", "layer", "stack") if all(s.has("rows") for s in opened) else ()
    )
    if not levels and not any(all(s.has(name) for s in opened) for name in ANY_OF):
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
                single = level == "stack" and len(spaces[i].at) == len(spaces[j].at) == 1
                angles = (
                    principal_angles(spaces[i].vectors[0], spaces[j].vectors[0]) if single else None
                )
                pairs.append(Pair(level, rank, forward, backward, angles))
    changed = _changes(opened, labels)
    if not pairs and not changed:
        raise EigenlensError(
            "these studies have nothing in common to compare: not all of them have rows, and they"
            " share no diagnostic and no spectra within one input"
        )
    refs = tuple(
        StudyRef(label, study.folder, study.name, study.length, study)
        for label, study in zip(labels, opened)
    )
    return Comparison(refs, centring, tuple(pairs), changed)


def _changes(studies: Sequence[Study], labels: Sequence[str]) -> list[dict[str, Any]]:
    """One record per number that differs between the first study and another."""
    first, *others = studies
    return [
        {"study": label, **row}
        for label, other in zip(labels[1:], others)
        for row in [
            *changes(first.diagnostics, other.diagnostics),
            *_within_changes(first, other),
        ]
    ]


def _within_changes(left: Study, right: Study) -> Iterator[dict[str, Any]]:
    """How the components of one input, and those of the weights, differ between two studies."""
    if not (left.has("within") and right.has("within")):
        return
    words: dict[WithinKind, str] = {
        "centred": "components of one input's scores for 90 % (row-centred)",
        "scores": "components of one input's scores for 90 %",
        "pattern": "components of one input's pattern for 90 %",
        "weights": "components of a head's weights for 90 %",
    }
    for what, meaning in words.items():
        one, other = (_at_90(study, what) for study in (left, right))
        if one and other:
            yield change("within", f"{what}_90", meaning, one, other, left.labels)


def _at_90(study: Study, what: WithinKind) -> dict[Head | Site, float]:
    return {one.at: float(one.dimension(0.9)) for one in study.within.whole(what)}


def labels_of(studies: Sequence[Study]) -> list[str]:
    """The labels of studies: their names, with the end of the folder if names repeat."""
    names = [s.name for s in studies]
    if len(set(names)) == len(names):
        return names
    parts = [s.folder.resolve().parts for s in studies]
    for length in range(1, max(map(len, parts)) + 1):
        labels = [f"{name} ({'/'.join(part[-length:])})" for name, part in zip(names, parts)]
        if len(set(labels)) == len(labels):
            break
    return labels

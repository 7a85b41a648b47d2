"""Sentences about spectra and overlaps, made from their numbers."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..captures import Head, Site
from ..display import listed
from .overlap import Overlap
from .spectrum import Spectra, Spectrum

ALL_ROWS = (
    "over all rows, a pair that the mask excludes counts as the mean of its key; keys that few"
    " rows see (late keys of a causal model) then have too little variance, and dimensions look"
    " lower than they are; over valid rows, each covariance uses only the rows that see both keys"
)
"""A note for every place that shows a dimension of masked rows."""


def masked_rows(spectra: Spectra) -> bool:
    """Whether a mask cuts some rows, so that dimensions over valid rows are given too."""
    return any(s.valid_rows is not None for s in spectra)


def median_or_beyond(values: Iterable[int | None], most: int) -> str:
    """Return the median of dimensions; None means more than the spectrum has: `98`, or `>64`."""
    numbers = [np.inf if v is None else v for v in values]
    middle = float(np.median(numbers)) if numbers else np.nan
    return f">{most}" if np.isinf(middle) else f"{middle:g}"


def bound_levels(spectra: Iterable[Spectrum]) -> str:
    """Name the levels whose spectra are lower bounds: `heads, layers and stacks`, or nothing."""
    found = {s.level for s in spectra if s.lower_bound}
    return listed([f"{level}s" for level in ("head", "layer", "stack") if level in found])


def dimension_sentence(spectra: Spectra) -> str:
    """Say how many dimensions the heads need, for rows or else for matrices.

    Empty if no head has a spectrum.
    """
    heads = spectra.select(analysis="rows", level="head", centring="centred")
    if not len(heads):
        heads = spectra.select(analysis="matrices", level="head", centring="centred")
    if not len(heads):
        return ""
    size, number, kept = heads.spectra[0].dimensions, len(heads), len(heads.spectra[0].eigenvalues)
    at_90 = [s.dimension(0.9) for s in heads]
    middle = median_or_beyond(at_90, kept)
    labels = heads.labels
    known = [(d, labels(s.at)) for d, s in zip(at_90, heads) if d is not None]
    what = f"{'score' if spectra.of == 'scores' else 'pattern'} {heads.spectra[0].analysis}"
    whose = "the median head need" if number > 1 else f"{labels(heads.spectra[0].at)} need"
    text = (
        f"The {what} of {whose} {middle} of {size} dimensions for 90 % of their held-out variance"
    )
    if len(known) > 1:
        text += (
            f"; the least is {min(known)[0]} ({min(known)[1]}), the most {max(known)[0]}"
            f" ({max(known)[1]})"
        )
    valid = _valid_sentence(heads)
    if number == 1:
        return f"{text}.{valid}"
    if kept < size / 8:  # more dimensions than were kept may still be an eighth
        return (
            f"{text}. {len(known)} of {number} heads {_gets(len(known))} by with the {kept} that"
            f" were kept.{valid}"
        )
    low = sum(d is not None and d <= size / 8 for d in at_90)
    return (
        f"{text}. {low} of {number} heads {_gets(low)} by with an eighth of the dimensions or"
        f" less.{valid}"
    )


def _valid_sentence(heads: Spectra) -> str:
    """Say the same over valid rows, if a mask makes a difference."""
    found = [s.valid_rows for s in heads if s.valid_rows is not None]
    if not found:
        return ""
    middle = median_or_beyond([v.dimension(0.9) for v in found], len(found[0].eigenvalues))
    one = "the median is" if len(found) > 1 else "it is"
    return f" These dimensions are over all rows; over valid rows only, {one} {middle}."


def _gets(number: int) -> str:
    return "gets" if number == 1 else "get"


def overlap_sentence(overlap: Overlap) -> str:
    """Say how similar the spaces are, compared with chance, and name the extremes.

    A space is not compared with itself.
    """
    kinds = {Head: "heads", Site: "layers", str: "stacks"}
    what, rows, columns = kinds[type(overlap.rows_[0])], overlap.row_labels, overlap.column_labels
    itself = (
        np.eye(len(overlap.matrix), dtype=bool)
        if overlap.same
        else np.zeros(overlap.matrix.shape, dtype=bool)
    )
    if itself.all():
        return f"There is only one of the {what}, so there is nothing to compare."
    others = np.where(itself, np.nan, overlap.matrix)
    mean, means = float(np.nanmean(others)), np.nanmean(others, 1)
    i, j = np.unravel_index(int(np.nanargmax(others)), others.shape)
    pair = (
        f"Two {what} share"
        if overlap.same
        else f"The {what} of {overlap.left} and of {overlap.right} share"
    )
    inside, between = overlap.within_layers, overlap.across_layers
    split = (
        f": {inside:.2f} inside a layer, {between:.2f} between layers"
        if not np.isnan([inside, between]).any()
        else ""
    )
    lonely = (
        f"; {rows[means.argmin()]} is least like the others ({means.min():.2f})"
        if len(means) > 2
        else ""
    )
    return (
        f"{pair} {mean:.2f} of their leading {overlap.rank} directions on average, which is"
        f" {mean / overlap.chance:.1f} times chance ({overlap.chance:.3f}){split}. The most alike"
        f" are {rows[i]} and {columns[j]} ({others[i, j]:.2f}){lonely}."
    )

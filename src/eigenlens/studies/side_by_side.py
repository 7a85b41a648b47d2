"""What is low-dimensional, and what that is good for: six dimensions of every head side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..captures import Head
from ..display import percent
from ..run.result import Rows, TitledTable
from ..spectra.sentences import dimension_sentence
from ..stats.within import SHARES

if TYPE_CHECKING:
    from .result import Study


@dataclass(frozen=True)
class Measure:
    """One of the dimensions: where it comes from, what it is of, and what an estimator gains."""

    name: str
    words: str
    source: Literal["within", "rows", "matrices"]
    what: str
    use: str


MEASURES = (
    Measure(
        "weights",
        "weights W_QK",
        "within",
        "weights",
        "how short queries and keys could be for good if inputs filled all directions alike;"
        " it needs no data",
    ),
    Measure(
        "within_scores",
        "one input: scores",
        "within",
        "scores",
        "how short queries and keys could be for this very input; finding that projection takes"
        " 2nd² multiply-adds per head (all scores take n²d) once all queries and keys are there",
    ),
    Measure(
        "within_centred",
        "one input: scores without their row's mean",
        "within",
        "centred",
        "the same for what the softmax sees; joint, KQ-SVD and key-pca have one projection for all"
        " inputs, so in this input they need at least as many",
    ),
    Measure(
        "within_pattern",
        "one input: pattern after the softmax",
        "within",
        "pattern",
        "the least width of a pattern in two factors, as Linformer, Nyström and feature maps make"
        " it; it is known only when all scores are, so no estimator can start from it",
    ),
    Measure(
        "rows",
        "over inputs: rows of scores",
        "rows",
        "centred",
        "how many keys rows-lmmse and rows-ls must compute per query, at least: one linear map for"
        " all inputs gives the other scores. It saves work only below nd/(n + d) keys",
    ),
    Measure(
        "matrices",
        "over inputs: whole matrices",
        "matrices",
        "centred",
        "how many pairs matrices-lmmse must compute per input, at least: one linear map for all"
        " inputs gives the others",
    ),
)
COLUMNS = tuple(percent(share) for share in SHARES)


def head_dimensions(study: Study) -> Rows:
    """One record per head: every measure at 50, 90, 95 and 99 %, such as `within_centred_90`.

    Within an input it is the median over inputs; over inputs it is held out. None where a study
    did not measure it, or where more components are needed than were kept.
    """
    found: dict[Head, dict[str, Any]] = {}
    for measure in MEASURES:
        for at, _, _, dimensions in measured(study, measure):
            row = found.setdefault(at, {"stack": at.stack, "layer": at.layer, "head": at.head})
            for share, dimension in zip(SHARES, dimensions):
                row[f"{measure.name}_{round(share * 100)}"] = dimension
    names = [f"{m.name}_{round(share * 100)}" for m in MEASURES for share in SHARES]
    blank = dict.fromkeys(names)
    order = {site: i for i, site in enumerate(study.ordered_sites)}
    heads = sorted(found, key=lambda at: (order[at.site], at.head))
    return [
        {**{key: found[at][key] for key in ("stack", "layer", "head")}, **blank, **found[at]}
        for at in heads
    ]


def dimension_rows(study: Study) -> Rows:
    """One record per measure and stack: medians over its heads, and what it means for cost.

    `most` is the largest dimension that is possible; a dimension beyond the `kept` is None.
    """
    rows = []
    for stack in dict.fromkeys(site.stack for site in study.ordered_sites):
        for measure in MEASURES:
            heads = [each for each in measured(study, measure) if each[0].stack == stack]
            if not heads:
                continue
            row: dict[str, Any] = {"stack": stack, "measure": measure.name, "words": measure.words}
            row |= {"heads": len(heads)}
            row |= {
                name: max(head[at] for head in heads) for at, name in ((1, "most"), (2, "kept"))
            }
            for at, share in enumerate(SHARES):
                found = (head[3][at] for head in heads)
                values = np.array([np.inf if x is None else float(x) for x in found])
                name = f"dimension_{round(share * 100)}"
                ends = {"": np.median(values), "_least": values.min(), "_most": values.max()}
                row |= {f"{name}{end}": _kept(float(x)) for end, x in ends.items()}
            rows.append(row | {"use": measure.use})
    return rows


def dimension_tables(study: Study) -> list[TitledTable]:
    """The table that puts the measures side by side, and the one with every head (long)."""
    records = dimension_rows(study)
    if not any(row["measure"].startswith("within") for row in records):
        return []
    several = len({row["stack"] for row in records}) > 1
    rows = [
        {
            **({"stack": study.labels.stack(row["stack"])} if several else {}),
            "what": row["words"],
            "of": row["most"],
            **{
                column: _shown(row[f"dimension_{round(share * 100)}"], row["kept"])
                for column, share in zip(COLUMNS, SHARES)
            },
        }
        for row in records
    ]
    words = {row["words"]: row["use"] for row in records}
    below = "\n".join(
        [
            "Weights and one input: share of the energy Σσ², in the median input. Over inputs:"
            f" share of the held-out variance, centred.{without_terms(study)}",
            *(f"{what}: {use}." for what, use in words.items()),
        ]
    )
    title = "What is low-dimensional? Dimensions that hold a share, median head"
    return [
        TitledTable(title, rows, below),
        TitledTable("The same at 90 %, head by head", _at_90(study), long=True),
    ]


def two_sentences(study: Study) -> str:
    """How many dimensions the heads need over all inputs, and within one.

    Empty if neither is known. The two answer different questions, and are often taken for each
    other.
    """
    over = dimension_sentence(study.spectra)
    within = study.within.sentence if study.has("within") else ""
    return " ".join(filter(None, (over, within)))


def without_terms(study: Study) -> str:
    """Which stacks have a position bias or a cap that the scores of one input are without."""
    bent = dict.fromkeys(s.stack for s in study.ordered_sites if not study.sites[s].linear)
    if not bent or not study.has("within"):
        return ""
    where = (
        f" of {', '.join(map(study.labels.stack, bent))}"
        if len({site.stack for site in study.sites}) > 1
        else ""
    )
    return (
        f" The scores{where} within one input are without the model's position bias or cap; its"
        " pattern has them."
    )


def readable(records: Rows) -> Rows:
    """The records of `dimension_rows` with `>64` where more is needed than was kept."""
    names = [f"dimension_{round(share * 100)}" for share in SHARES]
    return [{**row, **{name: _shown(row[name], row["kept"]) for name in names}} for row in records]


def _at_90(study: Study) -> Rows:
    """One row per head with its label and its dimensions at 90 %."""
    rows = []
    for record in head_dimensions(study):
        at = Head(record["stack"], record["layer"], record["head"])
        numbers = {m.words: _shown(record[f"{m.name}_90"]) for m in MEASURES}
        rows.append({"head": study.labels(at), **numbers})
    return rows


def _kept(value: float) -> float | None:
    return None if np.isinf(value) else value


def _shown(value: float | None, kept: int | None = None) -> str:
    return f">{kept}" if value is None and kept else "–" if value is None else f"{value:g}"


def measured(study: Study, measure: Measure) -> Iterator[tuple[Head, int, int, list[int | None]]]:
    """Every head that has the measure: most possible, how many were kept, a number per share."""
    if measure.source == "within":
        if study.has("within"):
            for one in study.within.whole(measure.what):  # type: ignore[arg-type]
                numbers: list[int | None] = [one.dimension(share) for share in SHARES]
                yield one.at, one.most, one.most, numbers
        return
    if study.of != "scores":
        return
    spectra = study.spectra.select(analysis=measure.source, level="head", centring=measure.what)
    for spectrum in spectra:
        if isinstance(spectrum.at, Head):
            kept = len(spectrum.eigenvalues)
            found = [spectrum.dimension(share) for share in SHARES]
            yield spectrum.at, spectrum.dimensions, kept, found

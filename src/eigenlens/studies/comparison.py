"""The result of a comparison of studies, which can be read without the studies."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..captures import location_of
from ..diagnostics import changes_sentence
from ..display import percent
from ..errors import EigenlensError
from ..run.files import made_folder, read_tensors, sha256, write_tensors
from ..run.result import ResultViews, TitledTable, without_columns
from ..run.result_folder import read_result, report_damage, write_result
from ..run.schema import COUNT, LAYER, MEASURED, PLAIN, TableSchema, check_schema
from ..spectra.centring import Centring
from ..spectra.overlap import Overlap
from ..spectra.spectrum import Level
from .result import Study

FORMAT = 1
AT = (str, {"stack": str, "layer": LAYER, "head?": LAYER})
"""A stack by its name, a layer, or a head."""
OVERLAP = {
    "left": str,
    "right": str,
    "rows": [AT],
    "columns": [AT],
    "rank": COUNT,
    "chance": MEASURED,
}
SCHEMA = {
    "studies": [{"label": str, "folder": str, "name": str, "length": COUNT}],
    "centring": Centring,
    "changes": [TableSchema((*PLAIN, list))],
    "overlaps": [{"level": Level, "rank": COUNT, "forward": OVERLAP, "backward": OVERLAP}],
    "sha256": str,
}
"""The form of `comparison.json`."""


@dataclass(frozen=True, eq=False)
class StudyRef:
    """One study of a comparison: its label, and where it is."""

    label: str
    folder: Path
    name: str
    length: int
    at_hand: Study | None = None
    """The study itself; None in a comparison that was opened from a folder."""

    def open(self) -> Study:
        return Study.open(self.folder) if self.at_hand is None else self.at_hand

    def record(self) -> dict[str, Any]:
        return {
            "label": self.label,
            "folder": str(self.folder),
            "name": self.name,
            "length": self.length,
        }


@dataclass(frozen=True, eq=False)
class Pair:
    """Two studies compared at one level and rank: overlaps, captured variance and angles."""

    level: Level
    rank: int
    forward: Overlap  # captured: variance of the right study in the spaces of the left
    backward: Overlap
    angles: np.ndarray | None  # (r,) degrees, where each study has one stack

    def record(self) -> dict[str, Any]:
        """One row: mean overlaps, chance, captured variance and angles.

        The overlaps are means over all pairs, over the same heads, and over best partners.
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
class Comparison(ResultViews):
    """A comparison of studies, pair by pair.

    Each pair is compared by head, layer and stack, and the diagnostics of each later study with
    those of the first.

    >>> found = compare("before", "after")
    >>> found.changes()[0]
    {'study': …, 'diagnostic': 'sinks', 'number': 'rate', 'left': 0.41, 'right': 0.05, …}
    """

    studies: tuple[StudyRef, ...]
    centring: Centring
    pairs: tuple[Pair, ...]
    changed: list[dict[str, Any]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The names of the studies: `minilm on a.txt, minilm on b.txt`."""
        return ", ".join(study.label for study in self.studies)

    @property
    def title(self) -> str:
        """How many studies are compared, in words."""
        return f"Comparison of {len(self.studies)} studies"

    @property
    def notes(self) -> tuple[str, ...]:
        """Always empty: each study has its own notes."""
        return ()

    def changes(self) -> list[dict[str, Any]]:
        """How the diagnostics of each later study differ from those of the first.

        One record per study and number.
        """
        return self.changed

    def rows(self) -> list[dict[str, Any]]:
        """One record per pair of studies, level and rank."""
        return [pair.record() for pair in self.pairs]

    def rows_to_read(self) -> list[dict[str, Any]]:
        """One row per pair; without eigenspaces, one row per change in the diagnostics."""
        return self.rows() or self.changed

    def record(self) -> dict[str, Any]:
        """Everything but the matrices as plain data, as `--json` prints it."""
        return {
            "studies": [study.record() for study in self.studies],
            "centring": self.centring,
            "pairs": self.rows(),
            "changes": self.changed,
        }

    def printed(self) -> list[TitledTable]:
        """What a terminal prints: every pair, and what changed in the diagnostics."""
        several = len(self.studies) > 2
        names = ["left", "right"] if several else []
        pairs = TitledTable(
            f"How far heads, layers and stacks share the leading directions ({self.centring} rows)",
            self.rows(),
            columns=[*names, "level", "rank", "overlap", "same_place", "best_partner", "chance"],
        )
        first = {row["diagnostic"]: row["number"] for row in reversed(self.changed)}
        main = [
            {
                **({"study": row["study"]} if several else {}),
                "mean over heads or layers": row["words"],
                "first": row["left"],
                "second": row["right"],
                "changed most": row["most"] or "–",
                "from": row["most_left"],
                "to": row["most_right"],
            }
            for row in self.changed
            if row["number"] == first[row["diagnostic"]]
        ]
        what = "each other study" if several else "the second"
        changed = TitledTable(f"What heads and layers do in the first study and in {what}", main)
        numbers = TitledTable(
            "Every number of the diagnostics: the first study (left) and each other (right)",
            without_columns(self.changed, {"words"}),
            long=True,
        )
        return [table for table in (pairs, changed, numbers) if table.rows]

    def plot(self) -> Any:
        """A heat map of the overlap of layers of the first two studies (an altair chart)."""
        if not self.pairs:
            raise EigenlensError(
                "these studies have no spectra of rows, so there is no overlap to draw"
            )
        return next(pair for pair in self.pairs if pair.level == "layer").forward.plot()

    @property
    def sentence(self) -> str:
        """How far the heads of each two studies share directions, at the largest rank."""
        rank = max((pair.rank for pair in self.pairs), default=0)
        spaces = [
            comparison_sentence(row)
            for row in self.rows()
            if (row["level"], row["rank"]) == ("head", rank)
        ]
        labels = [study.label for study in self.studies]
        message = [
            changes_sentence(
                [row for row in self.changed if row["study"] == label], labels[0], label
            )
            for label in labels[1:]
        ]
        return " ".join(filter(None, [*spaces, *message]))

    def save(self, folder: str | Path) -> Path:
        """Write `comparison.json`, and the matrices of every pair to `comparison.safetensors`."""
        path = made_folder(folder) / "comparison.safetensors"
        write_tensors(path, _tensors(self.pairs))
        overlaps = [
            {
                "level": pair.level,
                "rank": pair.rank,
                "forward": _names(pair.forward),
                "backward": _names(pair.backward),
            }
            for pair in self.pairs
        ]
        record = {"format": FORMAT, **self.record(), "overlaps": overlaps, "sha256": sha256(path)}
        return write_result(folder, "comparison", record)

    @classmethod
    def open(cls, folder: str | Path) -> Comparison:
        """Open a comparison; the studies themselves need not be there.

        A damaged or foreign folder is refused with the reason.
        """
        how = f"eigenlens.compare(STUDY, STUDY).save({str(folder)!r})"
        record = read_result(folder, "comparison", FORMAT, how)
        path = Path(folder) / "comparison.safetensors"
        if not path.is_file() or sha256(path) != record.get("sha256"):
            raise EigenlensError(
                f"the comparison in {folder} is damaged: {path.name} is missing or has changed;"
                " make it anew"
            )
        tensors = read_tensors(path)
        with report_damage(folder, "comparison"):
            check_schema(record, SCHEMA, "it")
            studies = tuple(
                StudyRef(s["label"], Path(s["folder"]), s["name"], s["length"])
                for s in record["studies"]
            )
            pairs = tuple(
                Pair(
                    entry["level"],
                    entry["rank"],
                    _overlap(entry["forward"], tensors, f"{i}/forward"),
                    _overlap(entry["backward"], tensors, f"{i}/backward"),
                    _array(tensors.get(f"{i}/angles")),
                )
                for i, entry in enumerate(record["overlaps"])
            )
            found = cls(studies, record["centring"], pairs, record["changes"])
            found.sentence.strip()  # raises where the comparison is not complete
        return found

    def __repr__(self) -> str:
        return f"<comparison of {len(self.studies)} studies>"


def _tensors(pairs: tuple[Pair, ...]) -> dict[str, Tensor]:
    """`0/forward/matrix (A, B)`, `0/forward/captured (A, B)`, …, `0/angles (r,)`."""
    found = {}
    for i, pair in enumerate(pairs):
        found[f"{i}/angles"] = pair.angles
        for way, overlap in (("forward", pair.forward), ("backward", pair.backward)):
            found[f"{i}/{way}/matrix"] = overlap.matrix
            found[f"{i}/{way}/captured"] = overlap.captured
    return {name: torch.from_numpy(x) for name, x in found.items() if x is not None}


def _names(overlap: Overlap) -> dict[str, Any]:
    return {
        "left": overlap.left,
        "right": overlap.right,
        "rows": [at if isinstance(at, str) else asdict(at) for at in overlap.rows_],
        "columns": [at if isinstance(at, str) else asdict(at) for at in overlap.columns],
        "rank": overlap.rank,
        "chance": overlap.chance,
    }


def _overlap(names: dict[str, Any], tensors: dict[str, Tensor], key: str) -> Overlap:
    matrix, captured = tensors[f"{key}/matrix"], tensors.get(f"{key}/captured")
    rows, columns = (
        tuple(at if isinstance(at, str) else location_of(at) for at in names[side])
        for side in ("rows", "columns")
    )
    for x in (matrix, captured):
        if x is not None and x.shape != (len(rows), len(columns)):
            raise ValueError(f"{key} is of another shape than its names")
    return Overlap(
        names["left"],
        names["right"],
        rows,
        columns,
        names["rank"],
        names["chance"],
        matrix.numpy(),
        _array(captured),
    )


def _array(x: Tensor | None) -> np.ndarray | None:
    return None if x is None else x.numpy()


def comparison_sentence(record: dict[str, Any]) -> str:
    """Say how far two studies share directions, and how much variance each explains of the other.

    `record` is that of a `Pair`.
    """
    times = record["overlap"] / record["chance"]
    near = "about as much as by chance" if times < 1.5 else f"{times:.1f} times chance"
    text = (
        f"{record['left']} and {record['right']}: two {record['level']}s, one of each study, share"
        f" {record['overlap']:.2f} of their leading {record['rank']} directions on average, {near}"
        f" ({record['chance']:.3f}); a {record['level']} and its best match in the other study"
        f" share {record['best_partner']:.2f}"
    )
    if record["captured_right_by_left"] is not None:
        text += (
            ". The directions of the first study explain"
            f" {percent(record['captured_right_by_left'])} of the variance that the second study's"
            " own directions explain; the other way round it is"
            f" {percent(record['captured_left_by_right'])}"
        )
    return text + "."

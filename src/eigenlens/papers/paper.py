"""What every paper's file gives, and the run that is the same for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..run.parts import Parts
from ..run.progress import Report, silent
from .claims import Claim, Reproduction, Tables

MINIATURE = "this is a miniature; verdicts of the full run can differ"


@dataclass(frozen=True)
class Paper:
    """A paper: how large the full and the quick run are, what is measured, what it says of the claims, and its pictures.

    `measure(scale, parts, seed, report)` gives the tables: lists of rows by name. What takes long it makes as a part, which
    a run with `resume` finds again. `claims(tables, quick)` judges them. `charts(tables)` draws, the main picture first.
    `shown` are the tables to print, title and name of each. `notes` are said of every run.
    """

    name: str
    title: str
    full: Any
    quick: Any
    measure: Callable[[Any, Parts, int, Report], Tables]
    claims: Callable[[Tables, bool], tuple[Claim, ...]]
    charts: Callable[[Tables], dict[str, Any]]
    shown: Sequence[Sequence[str]] = ()
    notes: tuple[str, ...] = ()

    def __call__(
        self, quick: bool = False, out: Path | None = None, seed: int = 0, report: Report = silent,
        *, resume: bool = False, force: bool = False,
    ) -> Reproduction:  # fmt: skip
        """Measure every claim; what is finished is kept in `out`, and a run with `resume` goes on from there.

        Studies, collapse runs, evaluations and passes of diagnostics are done by the engine in force; training, and what is
        measured of trained models, in this process.
        """
        scale = self.quick if quick else self.full
        request = {"paper": self.name, "seed": seed, **asdict(scale)}
        with Parts.held(out or Path(self.name), request, resume=resume, force=force) as parts:
            tables = self.measure(scale, parts, seed, report)
            notes = (MINIATURE, *self.notes) if quick else self.notes
            done = Reproduction(self.name, self.title, self.claims(tables, quick), tables, notes, parts.request, self.shown)
            parts.write("reproduction", done.record())
        return done

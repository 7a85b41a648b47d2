"""`Paper`: what the folder of every paper gives, and the run that is the same for all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..data.needs import PHOTOS, check_named, names_of_scale
from ..display import numbered
from ..errors import EigenlensError
from ..models.borrowed_names import named
from ..models.facts import Kind
from ..run.parts import Make, Parts
from ..run.progress import Here, Progress, silent
from .claims import Claim, Reproduction, Tables
from .own_models import OwnModels

Size = Literal["quick", "full", "thorough"]
"""A miniature of a minute or two, what the pages show, or the long form of what was cut down."""
MINIATURE = "this is a miniature; verdicts of the full run can differ"


@dataclass(frozen=True)
class Paper:
    """A paper: its scales, what is measured, what that says of the claims, and its pictures.

    `measure(scale, parts, seed, progress)` gives the tables: lists of rows by name. What takes long
    it makes as a part, which a run with `resume` finds again; what a reader of this one run has to
    know, such as a model that could not be loaded, it adds to `parts.notes`. `claims(tables,
    quick)` judges the tables. `charts(tables)` draws them, the main picture first. `shown` are the
    tables to print, title and name of each; `columns` are the main columns of a table that has too
    many for a page. `thorough` is the long form where the full run takes more than 40 minutes and
    `full` is cut down; None where it is not. `notes` belong to every run. `reads(scale)` are the
    catalogue's models and data sets that a run of that scale reads: by default those that the
    scale names. `models` are the fields of a scale that name pretrained models, which models of
    the user's own can take the place of; `kinds` are those that the paper can measure, by default
    all.
    """

    name: str
    title: str
    full: Any
    quick: Any
    measure: Callable[[Any, Parts, int, Progress], Tables]
    claims: Callable[[Tables, bool], tuple[Claim, ...]]
    charts: Callable[[Tables], dict[str, Any]]
    shown: Sequence[Sequence[str]] = ()
    notes: tuple[str, ...] = ()
    reads: Callable[[Any], Sequence[str]] = names_of_scale
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)
    thorough: Any = None
    models: tuple[str, ...] = ()
    kinds: tuple[Kind, ...] = ()

    def scale(self, size: Size) -> Any:
        """The settings of a run of that size; `thorough` is `full` where nothing was cut down."""
        if size == "thorough":
            return self.full if self.thorough is None else self.thorough
        return self.quick if size == "quick" else self.full

    def check(self, size: Size = "full", own: OwnModels | None = None) -> None:
        """Refuse a run whose models and data need libraries that are not here.

        Also a run on models of the user's `own` that the paper cannot measure.
        """
        scale, pictures = self.scale(size), False
        if own is not None:
            scale, _ = own.put_into(scale, self)
            pictures = any(own.facts[name].kind == "vision" for name in own.fitting(self))
        named_here = (*self.reads(scale), *([PHOTOS] if pictures else []))
        check_named(named_here, f"the paper {self.name}")

    def __call__(
        self,
        size: Size = "full",
        output_dir: Path | None = None,
        seed: int = 0,
        progress: Progress = silent,
        *,
        resume: bool = False,
        overwrite: bool = False,
        model: str | Path | Sequence[str | Path] | OwnModels = (),
    ) -> Reproduction:
        """Measure every claim.

        Finished parts are kept in `output_dir`, and a run with `resume` starts from them.

        `model` is a folder, a hub id or a name of the catalogue, or several of them, to be measured
        in the place of the models that the paper names itself.

        The current engine does the work: studies, collapse runs, evaluations and passes of
        diagnostics in shards, and parts that do not need each other, such as trainings from several
        seeds, at the same time. Tables of times are made in this process.
        """
        given = [model] if isinstance(model, str | Path) else model
        own = given if isinstance(given, OwnModels) else OwnModels.of(given) if given else None
        self.check(size, own)
        scale, quick, about = self.scale(size), size == "quick", tuple[str, ...]()
        if own is not None:
            scale, about = own.put_into(scale, self)
        request = {"paper": self.name, "seed": seed, **asdict(scale)}
        if own is not None:
            request["model_weights"] = own.record()
        folder = output_dir or Path(self.name)
        places = own.places if own is not None else {}
        with (
            named(places),
            Parts.held(folder, request, resume=resume, overwrite=overwrite) as parts,
        ):
            parts.models = places
            tables = self.measure(scale, parts, seed, Here(progress))
            notes = (*([MINIATURE] if quick else []), *about, *self.notes, *parts.notes)
            done = Reproduction(
                self.name,
                self.title,
                self.claims(tables, quick),
                tables=tables,
                notes=notes,
                settings=parts.request,
                shown=self.shown,
            )
            parts.write("reproduction", done.record())
        return done


def parts_by_model(
    parts: Parts, makes: Mapping[str, Make], progress: Progress, folder: str = "models"
) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """The part of each model, by name, and a row for each model that has none, with the reason.

    An error if there is no part at all.
    """
    named = {f"{folder}/{name}": make for name, make in makes.items()}
    stage = f"measuring {numbered(len(makes), 'pretrained model')}"
    parts.ahead(named, progress, stage)
    found, missing = {}, []
    for done, (name, (part, make)) in enumerate(zip(makes, named.items())):
        progress(stage, done, len(makes))
        try:
            found[name] = parts.part(part, make)
        except EigenlensError as error:
            missing.append({"model": name, "reason": str(error)})
    if not found:
        raise EigenlensError(
            f"none of the models can be measured: {'; '.join(row['reason'] for row in missing)}"
        )
    return found, missing

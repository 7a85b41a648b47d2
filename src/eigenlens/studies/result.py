"""A study: a folder that can be read without the model."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from ..captures import SiteInfo
from ..diagnostics import Finding, Findings, find
from ..display import few_names, numbered
from ..errors import EigenlensError
from ..names import Named, unknown
from ..run.checkpoints import unpack_states
from ..run.files import read_tensors, seal, sha256, write_json, write_tensors
from ..run.result_folder import read_result, report_damage
from ..run.schema import LAYER, check_form
from ..shell import option
from ..spectra.bases import Place
from ..spectra.centring import Centring
from ..spectra.overlap import Eigenspaces, Overlap, overlap_matrix
from ..spectra.rows import RowBasis, levels, row_basis
from ..spectra.spectrum import Level, Spectra
from ..stats import DepthMetrics, QueryKeyMoments, RowMoments, RowSums, VectorSums
from ..stats.rounding import rounding_floor
from .depth import Depth, of_depth
from .eigenspaces import eigenspaces_of, place_label
from .record import check_record
from .recorder import Recording
from .stored import (
    check_depth,
    check_moments,
    check_rows,
    halves,
    matrix_tensors,
    read_matrices,
    read_spectra,
    spectra_tensors,
)

FORMAT = 4
HALVES = ("fit", "held")
FILES = ("spectra", "rows", "moments", "matrices", "depth", "diagnostics")


class Study:
    """What was found about a model's attention.

    >>> study = Study.open("minilm-study")
    >>> head = dict(analysis="rows", level="head", centring="centred", layer=0, head=3)
    >>> study.spectra.one(**head).dimension(0.9)
    >>> study.overlap(rank=16).plot()
    """

    def __init__(
        self,
        folder: Path,
        facts: dict[str, Any],
        keep: tempfile.TemporaryDirectory[str] | None = None,
    ) -> None:
        self.folder, self.facts = folder, facts
        self._keep = keep  # a study without a place of its own lives as long as this object

    @classmethod
    def open(cls, folder: str | Path) -> Study:
        """Open a finished study.

        Half-written, damaged and foreign folders are refused with the reason.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise EigenlensError(f"no such study: {folder} is no folder")
        if not (folder / "study.json").is_file() and any(folder.glob("unfinished*")):
            raise EigenlensError(
                f"the study in {folder} was interrupted before it was finished; the call that"
                f" began it goes on with {option('resume')}"
            )
        facts = read_result(folder, "study", FORMAT, ("study", "MODEL", "DATA"))
        if facts.pop("seal", None) != seal(facts):
            raise EigenlensError(
                f"the study in {folder} is damaged: study.json has changed since it was written"
            )
        with report_damage(folder, "study"):
            check_record(facts, {f"{name}.safetensors" for name in FILES})
        for name, entry in facts["files"].items():
            path = folder / name
            if not path.is_file() or path.stat().st_size != entry["bytes"]:
                raise EigenlensError(
                    f"the study in {folder} is damaged: {name} is missing or has another size"
                )
        return cls(folder, facts)

    @classmethod
    def write(cls, folder: Path, facts: dict[str, Any], recording: Recording) -> None:
        """Write the files of a finished study; `study.json` comes last and makes it one."""
        tensors: dict[str, dict[str, Tensor]] = {"spectra": spectra_tensors(recording.spectra)}
        for name in ("rows", "moments"):
            parts = {"fit": recording.fit.get(name), "held": recording.held.get(name)}
            if parts["fit"] is not None:
                tensors[name] = {
                    f"{part}:{key}": x
                    for part, s in parts.items()
                    if s is not None
                    for key, x in s.state().items()
                }
        if recording.matrices is not None:
            tensors["matrices"] = matrix_tensors(recording)
        if recording.depth is not None:
            tensors["depth"] = recording.depth.state()
        if recording.diagnosing is not None:
            tensors["diagnostics"] = recording.diagnosing.state()
        files = {}
        for name, content in tensors.items():
            path = folder / f"{name}.safetensors"
            write_tensors(path, content)
            files[path.name] = {"bytes": path.stat().st_size, "sha256": sha256(path)}
        record = {"format": FORMAT, **facts, "files": files}
        write_json(folder / "study.json", {**record, "seal": seal(record)})

    def _tensors(self, name: str) -> dict[str, Tensor]:
        file = f"{name}.safetensors"
        if file not in self.facts["files"]:
            raise EigenlensError(
                f"the study in {self.folder} was made without {name}; make it anew with"
                f" {option('only', name)}"
            )
        if sha256(self.folder / file) != self.facts["files"][file]["sha256"]:
            raise EigenlensError(
                f"the study in {self.folder} is damaged: {file} has changed since it was written"
            )
        return read_tensors(self.folder / file)

    def _damage(self, name: str) -> AbstractContextManager[None]:
        """Around what is made from one of the files."""
        return report_damage(self.folder, "study", f"{name}.safetensors")

    @property
    def name(self) -> str:
        """Model and data: `minilm on python-docs`."""
        return f"{self.facts['model']['name']} on {few_names(self.facts['data']['name'])}"

    @property
    def length(self) -> int:
        """Tokens in an input."""
        return self.facts["length"]

    @property
    def partial(self) -> list[dict[str, Any]]:
        """The shards that failed and are missing from the study, with their documents and errors;
        usually none.
        """
        return self.facts.get("partial", [])

    @cached_property
    def sites(self) -> dict[str, SiteInfo]:
        """Every place that attends, such as `encoder/3`, with its heads, shapes and mask."""
        return {site: SiteInfo.of(record) for site, record in self.facts["sites"].items()}

    @property
    def ordered_sites(self) -> list[str]:
        """The sites stack by stack, each in the order the model runs them."""
        stacks = list(dict.fromkeys(Place.of(site, "stack").stack for site in self.sites))
        return sorted(self.sites, key=lambda site: stacks.index(Place.of(site, "stack").stack))

    @cached_property
    def spectra(self) -> Spectra:
        """Spectra of rows and matrices, by head, layer and stack, in every centring."""
        with self._damage("spectra"):
            return Spectra(
                tuple(read_spectra(self._tensors("spectra"), self.sites)),
                self.facts["options"]["of"],
            )

    @cached_property
    def _rows(self) -> dict[str, dict[str, RowSums]]:
        with self._damage("rows"):
            parts = halves(self._tensors("rows"))
            for state in parts.values():
                check_rows(state, self.sites)
            return {
                part: Named("site", RowMoments.from_state(state).result())
                for part, state in parts.items()
            }

    def row_sums(self, part: Literal["fit", "held"] = "fit") -> dict[str, RowSums]:
        """First and second moments of the rows of every site."""
        if part not in HALVES:
            raise unknown("part", part, HALVES)
        return self._rows[part]

    def moments(self, part: Literal["fit", "held"] = "fit") -> dict[str, VectorSums]:
        """Moments of queries and keys of every site."""
        if part not in HALVES:
            raise unknown("part", part, HALVES)
        with self._damage("moments"):
            state = halves(self._tensors("moments"))[part]
            check_moments(state, self.sites)
            return Named("site", QueryKeyMoments.from_state(state).result())

    @cached_property
    def depth(self) -> Depth:
        """Rank, residual and mixing of the tokens along the depth of the model."""
        with self._damage("depth"):
            state = self._tensors("depth")
            check_depth(state)
            asked = "float64" if self.facts["options"]["float64"] else "float32"
            return Depth(
                DepthMetrics.from_state(state).result(),
                rounding_floor(self.facts.get("precision", asked)),
            )

    @cached_property
    def diagnostics(self) -> Findings:
        """What each diagnostic found about heads and layers; entropy and spectral gap are those of
        the metrics along depth.
        """
        along = of_depth(self.depth) if self.has("depth") else []
        with self._damage("diagnostics"):
            return Findings([*self._diagnosed(), *along])

    def _diagnosed(self) -> Iterator[Finding]:
        if not self.has("diagnostics"):
            return
        about, asked = self.facts["diagnostics"], self.facts["options"]["diagnosed"]
        states = unpack_states(
            self._tensors("diagnostics"), [f"diagnostic {name}" for name in asked]
        )
        tokens = {int(number): text for number, text in about["tokens"].items()}
        for name, settings in asked.items():
            made = (
                find(name)
                .from_state(states[f"diagnostic {name}"], **settings)
                .result(about["notes"].get(name, ""), tokens)
            )
            for number in made.numbers:
                check_form(number.layer, LAYER, f"a layer of {name}")
            yield made

    def has(self, name: str) -> bool:
        """Whether the study was made with this statistic."""
        return f"{name}.safetensors" in self.facts["files"]

    @cached_property
    def _bases(self) -> dict[tuple[Place, Centring], RowBasis]:
        return {}

    def row_basis(self, place: Place, centring: Centring = "centred") -> RowBasis:
        """Mean, eigenvalues and eigenvectors of the rows of a place: `Place("head", "encoder",
        3)`.
        """
        if (place, centring) not in self._bases:
            known = levels(self.row_sums())
            if (sums := known.get(place)) is None:
                raise unknown(
                    place.level,
                    place_label(place),
                    (place_label(one) for one in known if one.level == place.level),
                )
            with self._damage("rows"):
                self._bases[place, centring] = row_basis(sums, centring)
        return self._bases[place, centring]

    @cached_property
    def matrix_results(self) -> dict[str, dict[str, Tensor]]:
        """By site: `vectors (H, k, T, S)` leading eigenvectors, centred; `mean` and `variance` maps
        `(H, T, S)`.
        """
        with self._damage("matrices"):
            return Named("site", read_matrices(self._tensors("matrices"), self.sites))

    def eigenspaces(
        self,
        analysis: Literal["rows", "matrices"] = "rows",
        level: Level = "head",
        rank: int = 16,
        centring: Centring = "centred",
    ) -> Eigenspaces:
        """The leading `rank` eigenvectors of every head, layer or stack, ready to be compared."""
        return eigenspaces_of(self, analysis, level, rank, centring)

    def overlap(
        self,
        rank: int = 16,
        centring: Centring = "centred",
        analysis: Literal["rows", "matrices"] = "rows",
        level: Level = "head",
    ) -> Overlap:
        """How far the leading eigenspaces of the heads (or layers) agree with each other, with
        chance beside it.
        """
        spaces = self.eigenspaces(analysis, level, rank, centring)
        return overlap_matrix(spaces, spaces, self.name, self.name)

    def rows(self) -> list[dict[str, Any]]:
        """One record a spectrum, ready for a data frame."""
        return self.spectra.rows()

    def record(self) -> dict[str, Any]:
        """Everything as plain data, as `--json` prints it: the facts, and every number of every
        head and layer.
        """
        return {
            "model": self.facts["model"],
            "data": self.facts["data"],
            "length": self.length,
            "inputs": self.facts["inputs"],
            "seconds": self.facts["seconds"],
            "versions": self.facts["versions"],
            "options": self.facts["options"],
            "sites": self.facts["sites"],
            "notes": self.facts["notes"],
            "partial": self.partial,
            "heads": self.heads(),
            "layers": self._layers(),
            "diagnostics": self.diagnostics.record(),
            "stacks": _wide(self.spectra.select(level="stack")),
        }

    def heads(self) -> list[dict[str, Any]]:
        """One record a head: the numbers of its spectra, each under its analysis and centring, and
        of its diagnostics.
        """
        found = {
            (r["stack"], r["layer"], r["head"]): r for r in _wide(self.spectra.select(level="head"))
        }
        for (stack, layer, head), numbers in self.diagnostics.heads().items():
            found.setdefault(
                (stack, layer, head), {"stack": stack, "layer": layer, "head": head}
            ).update(numbers)
        return list(found.values())

    def _layers(self) -> list[dict[str, Any]]:
        """One record a layer: the numbers of its spectra, those along depth, and those of
        diagnostics.
        """
        found = {(r["stack"], r["layer"]): r for r in _wide(self.spectra.select(level="layer"))}
        for (stack, layer), numbers in (self.depth.by_layer() if self.has("depth") else {}).items():
            found.setdefault((stack, layer), {"stack": stack, "layer": layer, "head": None}).update(
                numbers
            )
        for (stack, layer, _), numbers in self.diagnostics.layers().items():
            found.setdefault((stack, layer), {"stack": stack, "layer": layer, "head": None}).update(
                numbers
            )
        return [found[place] for place in sorted(found)]

    def plot(self) -> Any:
        """Held-out dimension of every head, layers × heads; without spectra the metrics along depth
        (an altair chart).
        """
        from ..spectra.plots import dimension_map

        if not len(self.spectra) and self.has("depth"):
            return self.depth.plot()
        return dimension_map(
            self.spectra, "rows" if len(self.spectra.select(analysis="rows")) else "matrices"
        )

    def __repr__(self) -> str:
        heads = numbered(sum(site.heads for site in self.sites.values()), "head")
        holds = ", ".join(name for name in FILES[1:] if self.has(name))
        where = "" if self._keep is not None else f", in {self.folder}"
        missing = ", partial" if self.partial else ""
        inputs = numbered(self.facts["inputs"], "input")
        return (
            f"<study of {self.name}: {inputs} of {self.length} tokens{missing}, {heads};"
            f" {holds}{where}>"
        )

    def _repr_html_(self) -> str:
        from ..display import html_view
        from .tables import sentence, summary_rows

        if not len(self.spectra) and self.has("depth"):
            return html_view(self.name, self.depth.sentence, self.plot(), self.depth.rows())
        words = " ".join(
            [sentence(self), *(f"Note: {note}." for note in self.facts["notes"] if self.partial)]
        )
        return html_view(
            self.name, words, self.plot() if len(self.spectra) else None, summary_rows(self)
        )


def _wide(spectra: Spectra) -> list[dict[str, Any]]:
    """One record a head: the numbers of each analysis and centring under `rows_centred_…`,
    `matrices_raw_…`.
    """
    found: dict[tuple[str, int | None, int | None], dict[str, Any]] = {}
    for spectrum in spectra:
        place = (spectrum.stack, spectrum.layer, spectrum.head)
        record = found.setdefault(place, dict(zip(("stack", "layer", "head"), place)))
        prefix = f"{spectrum.analysis}_{spectrum.centring.replace('-', '_')}"
        skipped = {"analysis", "level", "centring", "stack", "layer", "head"}
        record |= {
            f"{prefix}_{key}": value for key, value in spectrum.row().items() if key not in skipped
        }
    return list(found.values())

"""A study: a folder that can be read without the model."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from ..captures import BySite, Labels, Site, SiteInfo, unknown_location
from ..data.inputs import Request
from ..diagnostics import Finding, Findings, find_diagnostic
from ..diagnostics.depth import Depth, depth_findings
from ..diagnostics.roles import roles_sentence
from ..display import numbered
from ..errors import EigenlensError
from ..names import unknown_name
from ..passes.facts import ModelResultViews
from ..run.checkpoints import unpack_states
from ..run.files import read_tensors, seal, sha256
from ..run.result import TitledTable, copy_files
from ..run.result_folder import read_result, report_damage
from ..run.schema import LAYER, check_schema
from ..shell import option
from ..spectra.bases import Scope
from ..spectra.centring import Centring
from ..spectra.overlap import Eigenspaces, Overlap, overlap_matrix
from ..spectra.rows import RowBasis, row_basis, sums_by_scope
from ..spectra.spectrum import Level, Spectra
from ..spectra.within import Within, within_spectra
from ..stats import (
    DepthMetrics,
    QueryKeyMoments,
    RowMoments,
    RowSums,
    VectorSums,
    WithinSpectra,
)
from ..stats.rounding import rounding_floor
from .check import check_record
from .eigenspaces import eigenspaces_of
from .every_number import head_rows, layer_rows, wide_rows
from .side_by_side import dimension_rows, head_dimensions, two_sentences
from .stored import (
    check_depth,
    check_moments,
    check_rows,
    check_within,
    halves,
    read_matrices,
    read_spectra,
)

FORMAT = 4
HALVES = ("fit", "held")
FILES = ("spectra", "rows", "moments", "matrices", "within", "depth", "diagnostics")


class Study(ModelResultViews):
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
        self.folder, self.stored = folder, facts
        self._keep = keep  # a study without a place of its own lives as long as this object

    @classmethod
    def open(
        cls, folder: str | Path, keep: tempfile.TemporaryDirectory[str] | None = None
    ) -> Study:
        """Open a finished study.

        A temporary folder given as `keep` lives as long as the study. Unfinished, damaged and
        foreign folders are refused with the reason.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise EigenlensError(f"no such study: {folder} is no folder")
        if not (folder / "study.json").is_file() and any(folder.glob("unfinished*")):
            raise EigenlensError(
                f"the study in {folder} was interrupted before it was finished; go on by the same"
                f" call with {option('resume')}"
            )
        facts = read_result(folder, "study", FORMAT, ("study", "MODEL", "DATA"))
        if facts.pop("seal", None) != seal(facts):
            raise EigenlensError(
                f"the study in {folder} is damaged: study.json has changed since it was written;"
                " make it anew"
            )
        with report_damage(folder, "study"):
            check_record(facts, {f"{name}.safetensors" for name in FILES})
        for name, entry in facts["files"].items():
            path = folder / name
            if not path.is_file() or path.stat().st_size != entry["bytes"]:
                raise EigenlensError(
                    f"the study in {folder} is damaged: {name} is missing or has another size;"
                    " make it anew"
                )
        return cls(folder, facts, keep)

    def _tensors(self, name: str) -> dict[str, Tensor]:
        file = f"{name}.safetensors"
        if file not in self.stored["files"]:
            raise EigenlensError(
                f"the study in {self.folder} was made without {name}; make it anew with"
                f" {option('only', name)}"
            )
        if sha256(self.folder / file) != self.stored["files"][file]["sha256"]:
            raise EigenlensError(
                f"the study in {self.folder} is damaged: {file} has changed since it was written;"
                " make it anew"
            )
        return read_tensors(self.folder / file)

    def _damage(self, name: str) -> AbstractContextManager[None]:
        """A context that reports errors in one of the files as damage."""
        return report_damage(self.folder, "study", f"{name}.safetensors")

    @property
    def title(self) -> str:
        """Model and data, the number of inputs and documents, and the seconds it took."""
        facts, data = self.facts, self.facts.data
        return (
            f"{self.name}: {facts.inputs} inputs of {self.length} tokens, {data.inputs_held_out} of"
            f" them held out ({data.documents_held_out} of {data.documents} documents),"
            f" {facts.seconds} s"
        )

    @property
    def length(self) -> int:
        """Tokens per input."""
        return self.stored["length"]

    @property
    def request(self) -> Request:
        """The inputs that were asked for."""
        return Request.from_record(self.stored["options"]["request"])

    @property
    def of(self) -> Literal["scores", "pattern"]:
        """What the spectra are of: `scores` or `pattern`."""
        return self.stored["options"]["of"]

    @property
    def before_rope(self) -> bool:
        """Whether the scores are those before the rotary embedding."""
        return self.stored["options"]["before_rope"]

    @property
    def diagnostics_every(self) -> int:
        """The n of every n-th input on which diagnostics were measured."""
        return self.stored["diagnostics"].get("every", 1)

    @property
    def partial(self) -> list[dict[str, Any]]:
        """The shards that failed, with their documents and errors; usually none."""
        return self.stored.get("partial", [])

    @cached_property
    def sites(self) -> dict[Site, SiteInfo]:
        """Every layer that attends, with its heads, shapes and mask."""
        return {
            Site.parse(key): SiteInfo.of(record) for key, record in self.stored["sites"].items()
        }

    @property
    def ordered_sites(self) -> list[Site]:
        """The sites, stack by stack, in the order in which the model runs them."""
        stacks = list(dict.fromkeys(site.stack for site in self.sites))
        return sorted(self.sites, key=lambda site: stacks.index(site.stack))

    @property
    def labels(self) -> Labels:
        """The labels of heads and layers: `L3H4`, with several stacks `encoder L3H4`."""
        return Labels(site.stack for site in self.ordered_sites)

    @cached_property
    def spectra(self) -> Spectra:
        """Spectra of rows and matrices, by head, layer and stack, in every centring."""
        with self._damage("spectra"):
            return Spectra(
                tuple(read_spectra(self._tensors("spectra"), self.sites)),
                self.of,
            )

    @cached_property
    def _rows(self) -> dict[str, dict[Site, RowSums]]:
        with self._damage("rows"):
            parts = halves(self._tensors("rows"))
            for state in parts.values():
                check_rows(state, self.sites)
            return {
                part: BySite(RowMoments.from_state(state).result()) for part, state in parts.items()
            }

    def row_sums(self, part: Literal["fit", "held"] = "fit") -> dict[Site, RowSums]:
        """The first and second moments of the rows, by site."""
        if part not in HALVES:
            raise unknown_name("part", part, HALVES)
        return self._rows[part]

    def moments(self, part: Literal["fit", "held"] = "fit") -> dict[Site, VectorSums]:
        """The moments of queries and keys, by site."""
        if part not in HALVES:
            raise unknown_name("part", part, HALVES)
        with self._damage("moments"):
            state = halves(self._tensors("moments"))[part]
            check_moments(state, self.sites)
            return BySite(QueryKeyMoments.from_state(state).result())

    @cached_property
    def within(self) -> Within:
        """How many components one input's scores and patterns have, and the heads' weights."""
        with self._damage("within"):
            state = self._tensors("within")
            check_within(state, self.sites)
            bent = {site for site, info in self.sites.items() if not info.linear}
            return within_spectra(WithinSpectra.from_state(state).result(), bent)

    @cached_property
    def depth(self) -> Depth:
        """Rank, residual and mixing of the tokens along the depth of the model."""
        with self._damage("depth"):
            state = self._tensors("depth")
            check_depth(state)
            asked = "float64" if self.stored["options"]["float64"] else "float32"
            return Depth(
                DepthMetrics.from_state(state).result(),
                rounding_floor(self.stored.get("precision", asked)),
            )

    @cached_property
    def diagnostics(self) -> Findings:
        """What each diagnostic found about heads and layers.

        Entropy and spectral gap are those of the metrics along depth.
        """
        along = depth_findings(self.depth) if self.has("depth") else []
        with self._damage("diagnostics"):
            return Findings([*self._diagnosed(), *along])

    def _diagnosed(self) -> Iterator[Finding]:
        if not self.has("diagnostics"):
            return
        about, asked = self.stored["diagnostics"], self.stored["options"]["diagnosed"]
        states = unpack_states(
            self._tensors("diagnostics"), [f"diagnostic {name}" for name in asked]
        )
        tokens = {int(number): text for number, text in about["tokens"].items()}
        for name, settings in asked.items():
            made = (
                find_diagnostic(name)
                .from_state(states[f"diagnostic {name}"], **settings)
                .result(about["notes"].get(name, ""), tokens)
            )
            for number in made.numbers:
                check_schema(number.layer, LAYER, f"a layer of {name}")
            yield made

    def has(self, name: str) -> bool:
        """Whether the study was made with this statistic."""
        return f"{name}.safetensors" in self.stored["files"]

    @cached_property
    def _bases(self) -> dict[tuple[Scope, Centring], RowBasis]:
        return {}

    def row_basis(self, scope: Scope, centring: Centring = "centred") -> RowBasis:
        """The mean, eigenvalues and eigenvectors of rows.

        `Scope("head", "encoder", 3)` gives those of each head of layer 3.
        """
        if (scope, centring) not in self._bases:
            known = sums_by_scope(self.row_sums())
            if (sums := known.get(scope)) is None:
                others = (one.at for one in known if one.level == scope.level)
                raise unknown_location(scope.level, scope.at, others)
            with self._damage("rows"):
                self._bases[scope, centring] = row_basis(sums, centring)
        return self._bases[scope, centring]

    @cached_property
    def matrix_results(self) -> dict[Site, dict[str, Tensor]]:
        """The spectra of whole matrices by site: `vectors`, `mean` and `variance`.

        `vectors (H, k, T, S)` are the leading centred eigenvectors; `mean` and `variance` are maps
        `(H, T, S)`.
        """
        with self._damage("matrices"):
            return BySite(read_matrices(self._tensors("matrices"), self.sites))

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
        """The overlap of the leading eigenspaces of heads (or layers), beside chance."""
        spaces = self.eigenspaces(analysis, level, rank, centring)
        return overlap_matrix(spaces, spaces, self.name, self.name)

    def rows(self) -> list[dict[str, Any]]:
        """One record per spectrum; None for numbers that only other kinds of spectra have."""
        rows = self.spectra.rows()
        names = dict.fromkeys(name for row in rows for name in row)
        return [{**names, **row} for row in rows]

    def record(self) -> dict[str, Any]:
        """Everything as plain data, as `--json` prints it.

        That is the facts, and every number of every head and layer.
        """
        return {
            "model": self.stored["model"],
            "data": self.stored["data"],
            "length": self.length,
            "inputs": self.stored["inputs"],
            "seconds": self.stored["seconds"],
            "versions": self.stored["versions"],
            "options": self.stored["options"],
            "sites": self.stored["sites"],
            "notes": self.stored["notes"],
            "partial": self.partial,
            "heads": self.heads(),
            "layers": layer_rows(self),
            "diagnostics": self.diagnostics.record(),
            "dimensions": dimension_rows(self),
            "within": self.within.rows() if self.has("within") else [],
            "stacks": wide_rows(self.spectra.select(level="stack")),
        }

    def dimensions(self) -> list[dict[str, Any]]:
        """What is low-dimensional: one record per head, with six dimensions side by side.

        Rank of the weights, of one input's scores, row-centred scores and pattern (medians over
        inputs), and the held-out dimension over inputs of rows and whole matrices, each at 50, 90,
        95 and 99 %.
        """
        return head_dimensions(self)

    def heads(self) -> list[dict[str, Any]]:
        """One record per head: the numbers of its spectra and of its diagnostics.

        Numbers of spectra are named after their analysis and centring.
        """
        return head_rows(self)

    @property
    def sentence(self) -> str:
        """How many dimensions the heads need, over all inputs and within one.

        Without spectra, what the metrics along depth or the roles of the heads say.
        """
        return (
            two_sentences(self)
            or (self.depth.sentence if self.has("depth") else "")
            or roles_sentence(self.diagnostics)
            or "This study has no spectra."
        )

    def printed(self) -> list[TitledTable]:
        """What a terminal prints: dimensions, layers, overlap, depth, diagnostics."""
        from .tables import study_tables

        return study_tables(self)

    def rows_to_read(self) -> list[dict[str, Any]]:
        """Medians over the heads; without spectra, growth with length or metrics along depth."""
        from .tables import depth_rows, summary_rows

        if len(self.spectra):
            return summary_rows(self)
        if self.has("within"):
            return self.within.growth()
        return depth_rows(self) if self.has("depth") else []

    def remarks(self) -> list[str]:
        """What the diagnostics say, one line each."""
        found = (roles_sentence(self.diagnostics), *self.diagnostics.sentences())
        return [f"- {message}" for message in found if message]

    def save(self, folder: str | Path) -> Path:
        """Copy the study to another folder."""
        return copy_files(self.folder, [*self.stored["files"], "study.json"], folder)

    def plot(self) -> Any:
        """A map of the held-out dimension of every head (an altair chart).

        Without spectra over inputs, those within one, or the metrics along depth.
        """
        from ..spectra.plots import dimension_map

        if not len(self.spectra) and self.has("within"):
            return self.within.plot()
        if not len(self.spectra) and self.has("depth"):
            return self.depth.plot()
        if not len(self.spectra):
            raise EigenlensError(
                "this study has no spectra and no metrics along depth, so there is nothing to draw"
            )
        return dimension_map(
            self.spectra, "rows" if len(self.spectra.select(analysis="rows")) else "matrices"
        )

    def __repr__(self) -> str:
        heads = numbered(sum(site.heads for site in self.sites.values()), "head")
        holds = ", ".join(name for name in FILES[1:] if self.has(name))
        where = "" if self._keep is not None else f", in {self.folder}"
        missing = ", partial" if self.partial else ""
        inputs = numbered(self.stored["inputs"], "input")
        return (
            f"<study of {self.name}: {inputs} of {self.length} tokens{missing}, {heads};"
            f" {holds}{where}>"
        )

"""The pass over the data: fit inputs make the bases, held-out inputs are measured in them, every
input runs once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..data.inputs import Inputs
from ..data.split import FIT
from ..errors import EigenlensError
from ..models.forward import forward_of
from ..passes.shards import make_shards
from ..run.checkpoints import Checkpoints, pack_states, unpack_states
from ..run.engine import Engine
from ..run.files import read_tensors, write_tensors
from ..run.progress import Progress
from ..run.shards import PartialFold, Shard, shard_groups
from ..spectra.matrices import MatrixAnalysis
from ..spectra.rows import RowAnalysis
from ..spectra.spectrum import Spectrum
from ..spectra.valid_rows import with_valid_rows
from ..stats import DepthMetrics, MatrixGram, MatrixSketch, State, Statistic
from .diagnostic_runner import DiagnosticRunner
from .groups import Group, pack_groups, unpack_groups
from .stage import Pass

ShardGroups = list[list[Shard]]
PILOT, FITTED = "pilot.safetensors", "fit.safetensors"


@dataclass
class Recording:
    """What the pass found."""

    fit: dict[str, Statistic]
    held: dict[str, Statistic]
    spectra: list[Spectrum]
    matrices: MatrixAnalysis | None
    depth: DepthMetrics | None  # over all inputs: nothing is fitted
    diagnosing: DiagnosticRunner | None = None
    failed: list[dict[str, Any]] = field(default_factory=list)  # shards that are missing
    seconds: float = 0.0  # with those of earlier runs up to their last checkpoint


class Recorder:
    """Runs the stages pilot, fit, held; can be killed at any moment and goes on from the last
    checkpoint.

    `stage` is what all stages have in common, `matrix` how matrix spectra are to be had.
    """

    def __init__(
        self,
        stage: Pass,
        inputs: Inputs,
        matrix: str | None,
        diagnose: Callable[[Mapping[str, State]], DiagnosticRunner] | None,
        engine: Engine,
        work: Path,
        progress: Progress,
    ) -> None:
        self.stage, self.inputs, self.matrix, self.diagnose = stage, inputs, matrix, diagnose
        self.options = stage.options
        self.engine, self.work, self.progress = engine, work, progress
        self.diagnosing: DiagnosticRunner | None = None
        self.depth: DepthMetrics | None = None
        self.batch = self.options.batch_size(inputs.length)
        self.checkpoints = Checkpoints(work)
        self.total = len(inputs.buckets)
        self.failed: list[dict[str, Any]] = []
        # files that the next checkpoint needs, written only if there is one
        self._ahead: dict[str, Callable[[], State]] = {}
        self._built_on: list[str] = []

    def run(self) -> Recording:
        begin = time.perf_counter()
        where, state = self.checkpoints.load() or (
            {"stage": "start", "failed": [], "seconds": 0.0},
            {},
        )
        self.failed = list(where["failed"])
        self._begin = begin - where["seconds"]
        if self.stage.depth is not None:
            sums = {f"depth:{name}": x for name, x in unpack_states(state, ["all"])["all"].items()}
            restored = self.stage.statistics(sums)["depth"]
            assert isinstance(restored, DepthMetrics)
            self.depth = restored
        if self.diagnose is not None:
            names = [f"diagnostic {name}" for name in self.options.diagnosed]
            found = unpack_states(state, names)
            self.diagnosing = self.diagnose(
                {name.partition(" ")[2]: part for name, part in found.items()}
            )
            self.stage = replace(self.stage, _own=self.diagnosing)
        fit = self._fit(where, state)
        rows = RowAnalysis(fit["rows"].result()) if "rows" in fit else None
        matrices = None
        if "matrices" in fit:
            # what the bases are made from is on disk, and needs no place in memory
            saved = not self._ahead
            matrices = MatrixAnalysis(fit["matrices"], self.options.rank, release=saved)  # type: ignore[arg-type]
        held, groups = self._held(where, state, rows, matrices)
        if self.diagnosing is not None:
            forward = forward_of(self.stage.model_ref.model)
            self.diagnosing.probe(forward, lambda done, total: self.progress("probes", done, total))
        self.progress("eigen-analysis", self.total, self.total)
        spectra = rows.spectra([group["rows"] for group in groups]) if rows is not None else []
        if rows is not None:
            del rows  # its bases are as large as all that follows
            spectra = with_valid_rows(spectra, fit["rows"], held["rows"])  # type: ignore[arg-type]
        spectra += (
            matrices.spectra([group["matrices"] for group in groups])
            if matrices is not None
            else []
        )
        return Recording(
            fit, held, spectra, matrices, self.depth, self.diagnosing, self.failed, self._seconds
        )

    @property
    def _seconds(self) -> float:
        return round(time.perf_counter() - self._begin, 2)

    def _trunks(self, bucket: int, start: int, stop: int, before: int, size: int) -> ShardGroups:
        """The inputs `start` to `stop` of a bucket; `before` inputs of other buckets run before the
        first of this one.
        """
        chosen = np.flatnonzero(self.inputs.buckets == bucket)[start:stop]
        return shard_groups(make_shards(self.inputs, chosen, size, self.batch, before + start))

    def _fold(
        self,
        name: str,
        job: Pass,
        parts: ShardGroups,
        before: int,
        resume_from: PartialFold[State] | None,
        take: Callable[[int, State | None], None],
        kept: Callable[[], State],
    ) -> None:
        """Every group of a stage to `take`, in order; `kept` is what a checkpoint then needs beside
        what all stages share.
        """
        what = "held-out inputs" if name == "held" else "fit inputs"

        def progress(done: int) -> None:
            self.progress(what, before + done, self.total)

        for folded in self.engine.fold(job, parts, resume_from, progress):
            missing = [failure.record() for failure in folded.failed]
            if folded.whole:
                self.failed += missing
                missing = []
                self._take_shared(folded.state)
                take(folded.group, folded.state)
            if self.checkpoints.due():
                at = {"trunk": folded.group, "shards": folded.shards, "whole": folded.whole}
                opened = {} if folded.whole or folded.state is None else folded.state
                state = {**kept(), **{f"open {name}": x for name, x in opened.items()}}
                self._save({"stage": name, **at, "failed": self.failed + missing}, state)
                del opened, state
            del folded  # not to be held beside the next one

    def _take_shared(self, state: State | None) -> None:
        """What all stages add to: metrics along depth and diagnostics."""
        if state is None:
            return
        if self.depth is not None:
            more = self.stage.statistics(state)["depth"]
            assert isinstance(more, DepthMetrics)
            self.depth.merge(more)
        if self.diagnosing is not None:
            self.diagnosing.take(state, self.stage.diagnosed)

    def _save(self, where: dict[str, Any], state: State) -> None:
        """A checkpoint, after the files it builds on: what the pilot found, and from the held-out
        stage on the whole fit.
        """
        for name, content in self._ahead.items():
            write_tensors(self.work / name, content())
            self._built_on.append(name)
        self._ahead.clear()
        depth = (
            {}
            if self.depth is None
            else {f"all:{name}": x for name, x in self.depth.state().items()}
        )
        diagnostics = {} if self.diagnosing is None else self.diagnosing.state()
        self.checkpoints.save(
            {**where, "seconds": self._seconds}, {**state, **depth, **diagnostics}, self._built_on
        )

    def _fit(self, where: dict[str, Any], state: State) -> dict[str, Statistic]:
        number, columns, stage = self.inputs.number(FIT), self.options.columns, where["stage"]
        sketched = self.matrix == "sketch"
        samples = replace(
            self.stage,
            matrices="samples" if self.matrix else None,
            most=columns if sketched else number,
        )
        if sketched and stage in {"fit", "held"}:
            self._built_on.append(PILOT)
            tests = read_tensors(self.work / PILOT)
            job = replace(self.stage, matrices="sketch", against=tests)
        else:
            job = samples
        if stage == "held":
            self._built_on.append(FITTED)
            state = read_tensors(self.work / FITTED)
        fit = _without_depth(job.statistics(state))

        def take(_: int, found: State | None) -> None:
            if found is not None:
                merged(fit, _without_depth(job.statistics(found)))

        def kept() -> State:
            return pack_states(fit)

        if sketched and stage in {"start", "pilot"}:
            parts = self._trunks(FIT, 0, columns, 0, self.batch)
            self._fold("pilot", job, parts, 0, resume_point(where, state, "pilot"), take, kept)
            pilot = fit["matrices"]
            assert isinstance(pilot, MatrixGram)
            fit["matrices"] = sketch = MatrixSketch.from_pilot(pilot)
            del pilot
            if self.failed and not sketch.tests:  # a sketch tests all inputs against the first ones
                raise self._nothing("first fit")
            job = replace(self.stage, matrices="sketch", against=sketch.tests)
            self._ahead[PILOT] = lambda: sketch.tests
        if stage != "held":
            first = columns if sketched else 0
            parts = self._trunks(FIT, first, number, 0, self.options.shard_size(self.inputs.length))
            self._fold("fit", job, parts, first, resume_point(where, state, "fit"), take, kept)
            if sum(failure["inputs"] for failure in self.failed) == number:
                raise self._nothing("fit")
            self._ahead[FITTED] = lambda: pack_states(fit)
            # a long run: on disk before the bases take its place
            if self.checkpoints.due() or self.checkpoints.any:
                self._save(
                    {
                        "stage": "held",
                        "trunk": -1,
                        "shards": 0,
                        "whole": True,
                        "failed": self.failed,
                    },
                    {},
                )
        return fit

    def _nothing(self, which: str) -> EigenlensError:
        error = f", the last of them with: {self.failed[-1]['error']}" if self.failed else ""
        return EigenlensError(f"every shard of the {which} inputs failed{error}")

    def _held(
        self,
        where: dict[str, Any],
        state: State,
        rows: RowAnalysis | None,
        matrices: MatrixAnalysis | None,
    ) -> tuple[dict[str, Statistic], list[Group]]:
        bases = matrices.projection_bases if matrices is not None else {}
        job = replace(
            self.stage, matrices="projection" if matrices is not None else None, against=bases
        )
        mine = state if where["stage"] == "held" else {}
        stored = unpack_states(mine, ["energies"])["energies"]
        groups = unpack_groups(stored)
        total = _without_depth(replace(job, matrices=None).statistics(_named(mine, "total ")))
        group = _without_depth(job.statistics(_named(mine, "group ")))
        parts: ShardGroups = []
        last: set[int] = set()  # the groups that end a group
        before, fit = 0, self.inputs.number(FIT)
        for bucket in self.inputs.groups[1:]:
            number = self.inputs.number(bucket)
            parts += self._trunks(
                bucket, 0, number, fit + before, self.options.shard_size(self.inputs.length)
            )
            last.add(len(parts) - 1)
            before += number

        def take(shard_group: int, found: State | None) -> None:
            nonlocal group
            if found is not None:
                merged(group, _without_depth(job.statistics(found)))
            if shard_group in last:
                analyses = {"rows": rows, "matrices": matrices}
                if any(statistic.state() for statistic in group.values()):
                    groups.append(
                        {
                            name: a.energies(group[name].result())
                            for name, a in analyses.items()
                            if a is not None
                        }
                    )
                merged(total, group)
                group = _without_depth(job.statistics())

        def kept() -> State:
            return {
                **{f"total {name}": x for name, x in pack_states(total).items()},
                **{f"group {name}": x for name, x in pack_states(group).items()},
                **pack_groups(groups),
            }

        self._fold("held", job, parts, fit, resume_point(where, state, "held"), take, kept)
        if sum(failure["inputs"] for failure in self.failed if failure["shard"] >= fit) == before:
            raise self._nothing("held-out")
        return total, groups


def resume_point(where: Mapping[str, Any], state: State, stage: str) -> PartialFold[State] | None:
    """Where an earlier run stopped in this stage."""
    if where["stage"] != stage or where["trunk"] < 0:
        return None
    return PartialFold(
        where["trunk"], where["shards"], where["whole"], _named(state, "open ") or None
    )


def merged(mine: dict[str, Statistic], more: Mapping[str, Statistic]) -> None:
    """Merge statistics by name; where there is nothing yet, take what comes."""
    for name in mine.keys() & more.keys():
        if mine[name].state():
            mine[name].merge(more[name])
        else:
            mine[name] = more[name]


def _named(state: State, prefix: str) -> State:
    return {name.removeprefix(prefix): x for name, x in state.items() if name.startswith(prefix)}


def _without_depth(statistics: dict[str, Statistic]) -> dict[str, Statistic]:
    return {name: statistic for name, statistic in statistics.items() if name != "depth"}

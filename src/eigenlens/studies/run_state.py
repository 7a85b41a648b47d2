"""The state of a running study, in memory and as a checkpoint."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from ..data.inputs import Inputs
from ..data.split import FIT
from ..run.arrays import aligned
from ..run.checkpoints import Checkpoints, pack_states, unpack_states
from ..run.engine import Engine
from ..run.files import read_tensors, write_tensors
from ..run.progress import Progress
from ..run.shards import PartialFold
from ..spectra.bases import Energies, Key, Scope
from ..stats import DepthMetrics, MatrixSketch, State, Statistic, WithinSpectra
from .diagnostic_runner import DiagnosticRunner
from .study_pass import Pass
from .survey import MatrixForm

PILOT, FITTED = "pilot.safetensors", "fit.safetensors"
"""The files of what the pilot and the fit found, beside the checkpoints of later stages."""

DocumentGroup = dict[str, dict[Key, Energies]]
"""What one group of held-out documents showed, by analysis and scope."""


@dataclass
class StudyRun:
    """A running study: what it does, how far it has come, and all that it has seen so far.

    The stages (`pilot`, `fit`, `held_out` of `recorder.py`) change it; a checkpoint is its content
    on disk.
    """

    base_pass: Pass  # what every stage does with a shard; each adds what it makes of matrices
    inputs: Inputs
    matrix: MatrixForm | None  # how spectra of whole matrices are made; None without them
    engine: Engine
    checkpoints: Checkpoints
    progress: Progress

    # where the run stands
    stage: Literal["pilot", "fit", "held"]
    began: float  # by `time.perf_counter`; earlier runs count as if they had just ended
    resume_from: PartialFold[State] | None = None  # where an earlier run stopped in this stage
    restored: State = field(default_factory=dict)  # what an earlier run had seen in `held`

    # what it has seen
    fit: dict[str, Statistic] = field(default_factory=dict)  # of fit inputs
    held: dict[str, Statistic] = field(default_factory=dict)  # of document groups that are over
    held_group: dict[str, Statistic] = field(default_factory=dict)  # of the one under way
    document_groups: list[DocumentGroup] = field(default_factory=list)  # those that are over
    depth: DepthMetrics | None = None  # of all inputs
    within: WithinSpectra | None = None  # of all inputs
    diagnostics: DiagnosticRunner | None = None  # of all inputs
    failed: list[dict[str, Any]] = field(default_factory=list)  # shards, as `Failure.record`

    # files that a checkpoint builds on: on disk, and those that the next checkpoint writes first
    builds_on: list[str] = field(default_factory=list)
    unsaved: list[str] = field(default_factory=list)

    @classmethod
    def resume_or_begin(
        cls,
        base_pass: Pass,
        inputs: Inputs,
        matrix: MatrixForm | None,
        engine: Engine,
        work: Path,
        progress: Progress,
    ) -> StudyRun:
        """Make a run that goes on from the last checkpoint in `work`, or begins."""
        began, checkpoints = time.perf_counter(), Checkpoints(work)
        first = "pilot" if matrix == "sketch" else "fit"
        where, state = checkpoints.load() or ({"stage": first, "failed": [], "seconds": 0.0}, {})
        run = cls(
            base_pass,
            inputs,
            matrix,
            engine,
            checkpoints,
            progress,
            where["stage"],
            began - where["seconds"],
            failed=list(where["failed"]),
            depth=base_pass.depth_metrics(state),
            within=base_pass.within_spectra(state),
        )
        if where.get("group", -1) >= 0:
            run.resume_from = PartialFold(
                where["group"], where["shards"], where["complete"], named(state, "open ") or None
            )
        if diagnosed := base_pass.options.diagnosed:
            found = unpack_states(state, [f"diagnostic {name}" for name in diagnosed])
            states = {name: found[f"diagnostic {name}"] for name in diagnosed}
            model = base_pass.model_ref.model
            run.diagnostics = base_pass.diagnostic_runner(model, diagnosed, states)
            run.base_pass = replace(base_pass, runner=run.diagnostics)
        tests = None
        if matrix == "sketch" and run.stage != "pilot":
            run.builds_on.append(PILOT)
            tests = aligned(read_tensors(work / PILOT))
        if run.stage == "held":
            run.builds_on.append(FITTED)
            run.restored, state = state, aligned(read_tensors(work / FITTED))
        run.fit = run.fit_job(tests).statistics(state)
        return run

    @property
    def total(self) -> int:
        """All inputs of the study."""
        return len(self.inputs.buckets)

    @property
    def seconds(self) -> float:
        return round(time.perf_counter() - self.began, 2)

    def fit_job(self, sketch_tests: State | None = None) -> Pass:
        """The pass over a shard of fit inputs.

        The tests of a sketch are known after the pilot.
        """
        if sketch_tests is not None:
            return replace(self.base_pass, matrices="sketch", sketch_tests=sketch_tests)
        most = self.inputs.number(FIT)
        if self.matrix == "sketch":
            most = self.base_pass.options.columns
        return replace(self.base_pass, matrices="samples" if self.matrix else None, most=most)

    @property
    def sketch_tests(self) -> State:
        """The tests of the sketch that the pilot began."""
        sketch = self.fit["matrices"]
        assert isinstance(sketch, MatrixSketch)
        return {str(site): x for site, x in sketch.tests.items()}

    def state(self) -> State:
        """The part of a checkpoint for shard groups that are complete.

        The fit gets a file of its own when it is over.
        """
        if self.stage == "held":
            mine = {
                **{f"total {name}": x for name, x in pack_states(self.held).items()},
                **{f"group {name}": x for name, x in pack_states(self.held_group).items()},
                **pack_groups(self.document_groups),
            }
        else:
            mine = pack_states(self.fit)
        for name, found in (("depth", self.depth), ("within", self.within)):
            if found is not None:
                mine |= {f"{name}:{key}": x for key, x in found.state().items()}
        diagnostics = {} if self.diagnostics is None else self.diagnostics.state()
        return {**mine, **diagnostics}

    def due(self, part: PartialFold[State] | None = None) -> bool:
        """Whether it is time for a checkpoint; `part` is the current shard group."""
        if not self.checkpoints.any:
            parts = [*self.state().values(), *((part and part.state) or {}).values()]
            if PILOT in self.unsaved:
                parts += self.sketch_tests.values()
            self.checkpoints.expect(sum(x.nbytes for x in parts))
        return self.checkpoints.due()

    def save(self, part: PartialFold[State]) -> None:
        """Write a checkpoint; `part` is the current shard group."""
        work = self.checkpoints.folder
        for name in self.unsaved:
            write_tensors(
                work / name, self.sketch_tests if name == PILOT else pack_states(self.fit)
            )
            self.builds_on.append(name)
        self.unsaved.clear()
        where: dict[str, Any] = {"stage": self.stage, "seconds": self.seconds}
        where |= {"group": part.group, "shards": part.shards, "complete": part.complete}
        where["failed"] = self.failed
        under_way: State = {}
        if not part.complete:
            where["failed"] = self.failed + [failure.record() for failure in part.failed]
            under_way = {f"open {name}": x for name, x in (part.state or {}).items()}
        self.checkpoints.save(where, {**self.state(), **under_way}, self.builds_on)


def named(state: State, prefix: str) -> State:
    """The tensors whose names begin with `prefix`, without it."""
    return {name.removeprefix(prefix): x for name, x in state.items() if name.startswith(prefix)}


def pack_groups(groups: list[DocumentGroup]) -> State:
    state: State = {}
    for index, group in enumerate(groups):
        for analysis, found in group.items():
            for (scope, centring), energies in found.items():
                layer = "" if scope.layer is None else scope.layer
                name = f"energies:{index}|{analysis}|{scope.level}|{scope.stack}|{layer}|{centring}"
                state[f"{name}|energy"], state[f"{name}|total"] = energies.energy, energies.total
    return state


def unpack_groups(state: State) -> list[DocumentGroup]:
    """Read them back, from a state without `energies:` in its names."""
    groups: dict[int, DocumentGroup] = {}
    for name, energy in state.items():
        index, analysis, level, stack, layer, centring, what = name.split("|")
        if what == "energy":
            scope = Scope(level, stack, int(layer) if layer else None)  # type: ignore[arg-type]
            total = state[name.removesuffix("energy") + "total"]
            energies = groups.setdefault(int(index), {}).setdefault(analysis, {})
            energies[scope, centring] = Energies(energy, total)  # type: ignore[index]
    return [groups[index] for index in sorted(groups)]

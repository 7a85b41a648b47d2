"""The pass over the data: fit inputs make the bases, held-out inputs are measured in them, every input runs once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..capture import AttentionCall, Layer, capture, capture_layers
from ..run.files import read_tensors, write_tensors
from ..run.local import Checkpoints, pack_states, run_stage, unpack_states
from ..run.progress import Report
from ..sources.forward import forward_of
from ..sources.inputs import Inputs
from ..sources.models import Model
from ..sources.split import FIT
from ..spectra.bases import Energies, Key, Place
from ..spectra.matrices import MatrixAnalysis
from ..spectra.rows import RowAnalysis
from ..spectra.spectrum import Spectrum
from ..stats import (
    DepthMetrics,
    MatrixGram,
    MatrixProjection,
    MatrixSketch,
    QueryKeyMoments,
    RowMoments,
    State,
    Statistic,
)
from .diagnosing import Diagnosing
from .options import Options
from .probe import DepthForm

Group = dict[str, dict[Key, Energies]]
"""What one group of held-out documents showed, by analysis."""


@dataclass
class Recording:
    """What the pass found."""

    fit: dict[str, Statistic]
    held: dict[str, Statistic]
    spectra: list[Spectrum]
    matrices: MatrixAnalysis | None
    depth: DepthMetrics | None  # over all inputs: nothing is fitted
    diagnosing: Diagnosing | None = None


class Recorder:
    """Runs the stages pilot, fit, held-out groups; can be killed at any moment and goes on from the last checkpoint."""

    def __init__(
        self,
        model: Model,
        inputs: Inputs,
        options: Options,
        matrix: str | None,
        depth: DepthForm | None,
        names: Mapping[str, Any],
        diagnose: Callable[[Mapping[str, State]], Diagnosing] | None,
        work: Path,
        report: Report,
    ) -> None:
        self.model, self.inputs, self.options, self.matrix = model, inputs, options, matrix
        self.form, self.depth = depth, None if depth is None else DepthMetrics(depth.sinks, depth.every)
        self.diagnose = diagnose
        self.diagnosing: Diagnosing | None = None
        self.work, self.report = work, report
        self.names = names  # of the attention modules, where blocks are to be seen
        self.size = options.batch_size(inputs.length)
        self.checkpoints = Checkpoints(work)
        self.total = len(inputs.buckets)
        self._ahead: dict[str, Callable[[], State]] = {}  # files that the next checkpoint needs, written only if there is one

    def run(self) -> Recording:
        standing = self.checkpoints.load()
        if standing is not None and self.form is not None:
            state = unpack_states(standing[2], ["depth"])["depth"]
            self.depth = DepthMetrics.from_state(state, sinks=self.form.sinks, every=self.form.every)
        if self.diagnose is not None:
            names = [f"diagnostic {name}" for name in self.options.diagnosed]
            found = unpack_states({} if standing is None else standing[2], names)
            self.diagnosing = self.diagnose({name.partition(" ")[2]: state for name, state in found.items()})
        fit = self._fit(standing)
        rows = RowAnalysis(fit["rows"].result()) if "rows" in fit else None
        matrices = None
        if "matrices" in fit:
            saved = not self._ahead  # what the bases are made from is on disk, and needs no place in memory
            matrices = MatrixAnalysis(fit["matrices"], self.options.rank, release=saved)  # type: ignore[arg-type]
        held, groups = self._held(standing, rows, matrices)
        if self.diagnosing is not None:
            self.diagnosing.probe(forward_of(self.model), lambda done, total: self.report("probes", done, total))
        self.report("eigen-analysis", self.total, self.total)
        spectra = rows.spectra([group["rows"] for group in groups]) if rows is not None else []
        spectra += matrices.spectra([group["matrices"] for group in groups]) if matrices is not None else []
        return Recording(fit, held, spectra, matrices, self.depth, self.diagnosing)

    def _pass(
        self,
        stage: str,
        bucket: int,
        stop: int,
        done: int,
        before: int,
        statistics: Mapping[str, Statistic],
        extra: State,
    ) -> None:
        """Inputs `done` to `stop` of a bucket through the model, into `statistics`; `before` inputs ran in other buckets."""
        place = before + done  # of the next batch's first input among all inputs of the study

        own = self.diagnosing  # sees the model's own patterns, behind the rotary embedding
        together = not self.options.before_rope

        def sink(call: AttentionCall) -> None:
            for statistic in statistics.values():
                statistic.update(call)

        def see(call: AttentionCall) -> None:
            if own is not None:
                own.call(call)
            if together:
                sink(call)

        def measure(layer: Layer) -> None:
            if self.depth is not None:
                self.depth.update(layer, place)
            if own is not None:
                own.layer(layer)

        run = forward_of(self.model)

        def forward(batch: Mapping[str, Tensor]) -> None:
            if own is not None:
                own.shown(batch, place)
            run(batch)

        def after(done: int) -> None:
            nonlocal place
            place = before + done
            self.report("held-out inputs" if bucket != FIT else "fit inputs", before + done, self.total)
            if done < stop and self.checkpoints.due():
                self._save(stage, done, {**pack_states(statistics), **extra})

        if done >= stop:
            return
        with torch.no_grad(), ExitStack() as doors:
            if own is not None:
                doors.enter_context(own.attached())
            if not together:
                doors.enter_context(capture(self.model.backbone, sink, before_rope=True))
            if self.names:
                doors.enter_context(capture_layers(self.model.backbone, self.names, measure, calls=see))
            elif together or own is not None:
                doors.enter_context(capture(self.model.backbone, see))
            run_stage(forward, self.inputs.batches(bucket, self.size, done, stop), done, after)

    def _save(self, stage: str, done: int, state: State) -> None:
        """A checkpoint, after the files it builds on: what the pilot found, and from the held-out stages on the whole fit."""
        for name, content in self._ahead.items():
            write_tensors(self.work / name, content())
        self._ahead.clear()
        depth = {} if self.depth is None else {f"depth:{name}": x for name, x in self.depth.state().items()}
        diagnostics = {} if self.diagnosing is None else self.diagnosing.state()
        self.checkpoints.save(stage, done, {**state, **depth, **diagnostics})

    def _fit(self, standing: tuple[str, int, State] | None) -> dict[str, Statistic]:
        number, columns, of = self.inputs.number(FIT), self.options.columns, self.options.of
        fitted, pilot_file = self.work / "fit.safetensors", self.work / "pilot.safetensors"
        stage, done, state = standing or ("start", 0, {})
        statistics: dict[str, Statistic] = {}
        tests = read_tensors(pilot_file) if self.matrix == "sketch" and stage not in {"start", "pilot"} else {}
        if stage.startswith("held"):
            stage, done, state = "fitted", number, read_tensors(fitted)
        parts = unpack_states(state, self.options.only)
        if "rows" in self.options.only:
            statistics["rows"] = RowMoments.from_state(parts["rows"], of=of)
        if "moments" in self.options.only:
            statistics["moments"] = QueryKeyMoments.from_state(parts["moments"])
        if self.matrix is not None:
            saved = parts["matrices"]
            statistics["matrices"] = (
                MatrixSketch.from_state(saved, tests=tests, of=of)
                if tests
                else MatrixGram.from_state(saved, of=of, most=number)
            )
        if self.matrix == "sketch" and not tests:
            self._pass("pilot", FIT, columns, done, 0, statistics, {})
            pilot = statistics["matrices"]
            assert isinstance(pilot, MatrixGram)
            statistics["matrices"] = sketch = MatrixSketch.from_pilot(pilot)
            self._ahead[pilot_file.name] = lambda: sketch.tests
            done = columns
        if stage != "fitted":
            self._pass("fit", FIT, number, done, 0, statistics, {})
            self._ahead[fitted.name] = lambda: pack_states(statistics)
            if self.checkpoints.due() or self.checkpoints.path.is_file():  # a long run: on disk before the bases take its place
                self._save("held 0", 0, {})
        return statistics

    def _held(
        self, standing: tuple[str, int, State] | None, rows: RowAnalysis | None, matrices: MatrixAnalysis | None
    ) -> tuple[dict[str, Statistic], list[Group]]:
        stage, done, state = standing if standing is not None and standing[0].startswith("held") else ("held 0", 0, {})
        first, of = int(stage.split()[1]), self.options.of
        parts = unpack_states(state, ["total rows", "total moments", "rows", "moments", "matrices", "energies"])
        total: dict[str, Statistic] = {}
        if rows is not None:
            total["rows"] = RowMoments.from_state(parts["total rows"], of=of)
        if "moments" in self.options.only:
            total["moments"] = QueryKeyMoments.from_state(parts["total moments"])
        groups = _unpack_energies(parts["energies"])
        bases = matrices.projection_bases if matrices is not None else {}
        buckets = self.inputs.groups[1:]
        before = self.inputs.number(FIT) + sum(self.inputs.number(bucket) for bucket in buckets[:first])
        for index in range(first, len(buckets)):
            group: dict[str, Statistic] = {}
            if rows is not None:
                group["rows"] = RowMoments.from_state(parts["rows"], of=of)
            if "moments" in self.options.only:
                group["moments"] = QueryKeyMoments.from_state(parts["moments"])
            if matrices is not None:
                group["matrices"] = MatrixProjection.from_state(parts["matrices"], bases=bases, of=of)
            bucket, number = buckets[index], self.inputs.number(buckets[index])
            kept = {**_pack_totals(total), **_pack_energies(groups)}
            self._pass(f"held {index}", bucket, number, done, before, group, kept)
            analyses = {"rows": rows, "matrices": matrices}
            groups.append({name: a.energies(group[name].result()) for name, a in analyses.items() if a is not None})
            for name, statistic in total.items():
                statistic.merge(group[name])
            parts, done, before = {name: {} for name in parts}, 0, before + number
            if self.checkpoints.due():
                self._save(f"held {index + 1}", 0, {**_pack_totals(total), **_pack_energies(groups)})
        return total, groups


def _pack_totals(total: Mapping[str, Statistic]) -> State:
    return pack_states({f"total {name}": statistic for name, statistic in total.items()})


def _pack_energies(groups: list[Group]) -> State:
    state: State = {}
    for index, group in enumerate(groups):
        for analysis, found in group.items():
            for (place, centring), energies in found.items():
                layer = "" if place.layer is None else place.layer
                name = f"energies:{index}|{analysis}|{place.level}|{place.stack}|{layer}|{centring}"
                state[f"{name}|energy"], state[f"{name}|total"] = energies.energy, energies.total
    return state


def _unpack_energies(state: State) -> list[Group]:
    groups: dict[int, Group] = {}
    for name, energy in state.items():
        index, analysis, level, stack, layer, centring, what = name.split("|")
        if what == "energy":
            place = Place(level, stack, int(layer) if layer else None)  # type: ignore[arg-type]
            total = state[name.removesuffix("energy") + "total"]
            groups.setdefault(int(index), {}).setdefault(analysis, {})[place, centring] = Energies(energy, total)  # type: ignore[index]
    return [groups[index] for index in sorted(groups)]

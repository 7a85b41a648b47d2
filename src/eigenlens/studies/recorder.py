"""The pass over the data: fit inputs give the bases, held-out inputs are measured in them.

Every input runs once.

A run goes through three stages, each a function below:

    pilot      the first fit inputs, against which a sketch of matrices tests all others; without a
               sketch there is no pilot
    fit        the other fit inputs
    held_out   the held-out inputs, one group of documents after the other

All that it has seen is in one `StudyRun`. It may be killed at any moment and goes on from its last
checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..data.inputs import Inputs
from ..data.split import FIT
from ..errors import EigenlensError
from ..models.forward import forward_of
from ..passes.shards import make_shards
from ..run.checkpoints import unpack_states
from ..run.engine import Engine
from ..run.progress import Progress
from ..run.shards import PartialFold, Shard, shard_groups
from ..spectra.matrices import MatrixAnalysis
from ..spectra.rows import RowAnalysis
from ..spectra.spectrum import Spectrum
from ..spectra.valid_rows import with_valid_rows
from ..stats import DepthMetrics, MatrixGram, MatrixSketch, State, Statistic, WithinSpectra
from .diagnostic_runner import DiagnosticRunner
from .run_state import FITTED, PILOT, StudyRun, named, unpack_groups
from .study_pass import Pass
from .survey import MatrixForm


@dataclass
class Recording:
    """What the pass found."""

    fit: dict[str, Statistic]
    held: dict[str, Statistic]
    spectra: list[Spectrum]
    matrices: MatrixAnalysis | None
    depth: DepthMetrics | None  # over all inputs: nothing is fitted
    within: WithinSpectra | None = None  # over all inputs
    diagnostics: DiagnosticRunner | None = None
    failed: list[dict[str, Any]] = field(default_factory=list)  # shards that are missing
    seconds: float = 0.0  # with those of earlier runs up to their last checkpoint


def run_stages(
    base_pass: Pass,
    inputs: Inputs,
    matrix: MatrixForm | None,
    engine: Engine,
    work: Path,
    progress: Progress,
) -> Recording:
    """Run all stages that no earlier run has finished.

    `base_pass` is what every stage does with a shard, `work` the folder of checkpoints.
    """
    run = StudyRun.resume_or_begin(base_pass, inputs, matrix, engine, work, progress)
    if run.stage == "pilot":
        pilot(run)
    if run.stage == "fit":
        fit(run)
    rows = RowAnalysis(run.fit["rows"].result()) if "rows" in run.fit else None
    matrices = None
    if "matrices" in run.fit:
        # what the bases are made from needs no place in memory where it is on disk
        matrices = MatrixAnalysis(
            run.fit["matrices"],  # type: ignore[arg-type]
            base_pass.options.rank,
            release=not run.unsaved,
        )
    held_out(run, rows, matrices)
    if run.diagnostics is not None:
        run.diagnostics.probe(
            forward_of(base_pass.model_ref.model),
            lambda done, total: progress("looking for induction heads", done, total),
        )
    progress("computing eigenvalues", run.total, run.total)
    spectra: list[Spectrum] = []
    if rows is not None:
        spectra = rows.spectra([group["rows"] for group in run.document_groups])
        del rows  # its bases are as large as all that follows
        spectra = with_valid_rows(spectra, run.fit["rows"], run.held["rows"])  # type: ignore[arg-type]
    if matrices is not None:
        spectra += matrices.spectra([group["matrices"] for group in run.document_groups])
    return Recording(
        run.fit,
        run.held,
        spectra,
        matrices,
        run.depth,
        run.within,
        run.diagnostics,
        run.failed,
        run.seconds,
    )


def pilot(run: StudyRun) -> None:
    """Run the first fit inputs as samples, as many as the sketch has columns.

    They become the tests of the sketch, and its first inputs.
    """
    job, options = run.fit_job(), run.base_pass.options
    size = options.inputs_per_batch(run.inputs.length)
    groups = _shard_groups(run, FIT, 0, options.columns, size)
    for part in _complete_groups(run, job, groups, before=0):
        _add_fit(run, job, part)
        del part  # not to be held while the next one is made
    samples = run.fit.pop("matrices")
    assert isinstance(samples, MatrixGram)
    run.fit["matrices"] = MatrixSketch.from_pilot(samples)
    if run.failed and not run.sketch_tests:
        raise _all_failed(run, "first fit")
    run.unsaved.append(PILOT)
    run.stage = "fit"


def fit(run: StudyRun) -> None:
    """Run all fit inputs, or those after the pilot."""
    number, sketched = run.inputs.number(FIT), run.matrix == "sketch"
    first = run.base_pass.options.columns if sketched else 0
    job = run.fit_job(run.sketch_tests if sketched else None)
    groups = _shard_groups(run, FIT, first, number)
    for part in _complete_groups(run, job, groups, before=first):
        _add_fit(run, job, part)
        del part  # not to be held while the next one is made
    if sum(failure["inputs"] for failure in run.failed) == number:
        raise _all_failed(run, "fit")
    run.unsaved.append(FITTED)
    run.stage = "held"
    # a long run: on disk before the bases take its place
    if run.due() or run.checkpoints.any:
        run.save(PartialFold(-1, 0, True, None))


def held_out(run: StudyRun, rows: RowAnalysis | None, matrices: MatrixAnalysis | None) -> None:
    """Run the held-out inputs.

    After the last shard of a group of documents, the variance of this group that the bases hold is
    measured.
    """
    job = replace(run.base_pass, matrices=None)
    run.held = job.statistics(named(run.restored, "total "))
    if matrices is not None:
        job = replace(job, matrices="projection", bases=matrices.projection_bases)
    run.held_group = job.statistics(named(run.restored, "group "))
    run.document_groups = unpack_groups(unpack_states(run.restored, ["energies"])["energies"])
    run.restored = {}
    number = run.inputs.number(FIT)
    groups: list[list[Shard]] = []
    last: set[int] = set()  # the shard groups that end a group of documents
    before = number
    for bucket in run.inputs.groups[1:]:
        groups += _shard_groups(run, bucket, 0, run.inputs.number(bucket), before=before)
        last.add(len(groups) - 1)
        before += run.inputs.number(bucket)
    for part in _complete_groups(run, job, groups, before=number):
        if part.state is not None:
            merge_by_name(run.held_group, job.statistics(part.state))
        if part.group in last:
            _end_document_group(run, {"rows": rows, "matrices": matrices})
            run.held_group = job.statistics()
        del part  # not to be held while the next one is made
    lost = sum(failure["inputs"] for failure in run.failed if failure["shard"] >= number)
    if lost == before - number:
        raise _all_failed(run, "held-out")


def _complete_groups(
    run: StudyRun, job: Pass, groups: list[list[Shard]], before: int
) -> Iterator[PartialFold[State]]:
    """The shard groups of a stage in order, each as soon as it is complete.

    `before` inputs ran before them. What needs no fit (metrics along depth, spectra within one
    input, diagnostics) is added here, as all stages need that.
    A checkpoint is written whenever one is due: inside a shard group, or after it, when the stage
    has added it and asks for the next.
    """
    what = f"reading {run.inputs.facts.count(run.total)}"
    if run.stage == "held":
        what += ", now the held-out ones"

    def progress(done: int) -> None:
        run.progress(what, before + done, run.total)

    resume_from, run.resume_from = run.resume_from, None
    for part in run.engine.fold(job, groups, resume_from, progress):
        if part.complete:
            run.failed += [failure.record() for failure in part.failed]
            if part.state is not None and (more := job.depth_metrics(part.state)) is not None:
                assert run.depth is not None
                run.depth.merge(more)
            if part.state is not None and (seen := job.within_spectra(part.state)) is not None:
                assert run.within is not None
                run.within.merge(seen)
            if part.state is not None and run.diagnostics is not None:
                run.diagnostics.take(part.state, job.diagnosed)
            yield part
        if run.due(part):
            run.save(part)
        del part  # not to be held while the next one is made


def _shard_groups(
    run: StudyRun, bucket: int, start: int, stop: int, size: int | None = None, before: int = 0
) -> list[list[Shard]]:
    """The inputs `start` to `stop` of a bucket, in shards of about `size`.

    `before` inputs of other buckets run before this one.
    """
    options, length = run.base_pass.options, run.inputs.length
    chosen = np.flatnonzero(run.inputs.buckets == bucket)[start:stop]
    size, batch = size or options.inputs_per_shard(length), options.inputs_per_batch(length)
    return shard_groups(make_shards(run.inputs, chosen, size, batch, before + start))


def _add_fit(run: StudyRun, job: Pass, part: PartialFold[State]) -> None:
    if part.state is not None:
        merge_by_name(run.fit, job.statistics(part.state))


def _end_document_group(
    run: StudyRun, analyses: Mapping[str, RowAnalysis | MatrixAnalysis | None]
) -> None:
    """Measure what the bases hold of the current group, and add the group to the others.

    A group whose shards all failed shows nothing.
    """
    if any(statistic.state() for statistic in run.held_group.values()):
        run.document_groups.append(
            {
                name: analysis.energies(run.held_group[name].result())
                for name, analysis in analyses.items()
                if analysis is not None
            }
        )
    merge_by_name(run.held, run.held_group)


def merge_by_name(mine: dict[str, Statistic], more: Mapping[str, Statistic]) -> None:
    """Merge statistics by name; where there is nothing yet, take what comes."""
    for name in mine.keys() & more.keys():
        if mine[name].state():
            mine[name].merge(more[name])
        else:
            mine[name] = more[name]


def _all_failed(run: StudyRun, which: str) -> EigenlensError:
    error = f"; the last error was: {run.failed[-1]['error']}" if run.failed else ""
    return EigenlensError(f"every shard of the {which} inputs failed{error}")

"""Making a study: from a model and data to a folder."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from ..captures.borrowed import borrowed
from ..captures.precision import in_double, stays_double
from ..data.inputs import Inputs, Request, prepare
from ..data.needs import check_asked
from ..data.token_text import id_texts
from ..diagnostics import StudiedModel
from ..errors import EigenlensError
from ..models.catalogue import DEFAULT_MODEL
from ..models.load import Model, load
from ..names import several
from ..passes.data_names import Data, data_names
from ..passes.facts import made_now
from ..passes.model_ref import ModelRef
from ..passes.versions import versions
from ..run.engine import Engine, choose, use_engine
from ..run.files import disk_errors, locked, read_json, sha256, write_json
from ..run.memory import free
from ..run.progress import Progress, say, silent
from ..run.run_all import lost
from ..spectra.sentences import bound_levels
from ..stats import State
from ..stats.rounding import precision_of
from .diagnostic_runner import DiagnosticRunner
from .memory import study_memory
from .options import STATISTICS, Options
from .recorder import Recorder, Recording
from .result import FILES, Study
from .stage import Pass
from .survey import depth_form, longest_of, matrix_form, probe


def study(
    model: str | Path | nn.Module | Model = DEFAULT_MODEL,
    data: Data | None = None,
    output_dir: str | Path | None = None,
    *,
    max_length: int | None = None,
    max_inputs: int = 1000,
    held_out: float = 0.2,
    only: str | Sequence[str] = STATISTICS,
    seed: int = 0,
    of: Literal["scores", "pattern"] = "scores",
    before_rope: bool = False,
    padding: bool = False,
    rank: int = 64,
    matrix_memory: float = 4.0,
    max_memory: float | None = None,
    batch_size: int | None = None,
    shard_size: int | None = None,
    depth_every: int | None = None,
    diagnostics_every: int | None = None,
    thresholds: Mapping[str, Mapping[str, Any]] | None = None,
    float64: bool = False,
    tokenizer: Any = None,
    device: str = "auto",
    engine: Engine | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress = silent,
) -> Study:
    """Study a model's attention on data, in one pass.

    `model` is a catalogue name, a folder, a hub id or an `nn.Module`; `data` text files, folders, a
    named set, token ids (a `.npy` file, or an array `(N, length)`), pictures for a vision model,
    `.wav` files for a speech model. By default the catalogue's text, or its photographs.
    `max_length` is 128 tokens by default, and of an array that of its rows. `output_dir` is the
    study's folder; without one the study lives as long as the object. Metrics along depth are
    measured on every `depth_every`-th input, diagnostics on every `diagnostics_every`-th;
    `thresholds` are other settings of diagnostics than those of their papers, `{"sinks":
    {"epsilon": 0.2}}`. `float64` runs the model in double, also where its own code goes down to
    float32. A study that was killed goes on with `resume=True` and ends with the same numbers. The
    inputs are cut into shards of about `shard_size` inputs, which `engine` works on: this process,
    or a cluster (`Dask`); the numbers do not depend on which, if the number of threads is the same.

    >>> study("minilm", "book.txt", inputs=200).spectra.plot()
    """
    keep = tempfile.TemporaryDirectory(prefix="eigenlens-") if output_dir is None else None
    folder = Path(keep.name if keep else output_dir)  # type: ignore[arg-type]
    with ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="eigenlens-data-"))
        engine = choose(engine)
        _check_place(folder, resume, overwrite)
        check_asked(model, data)
        if existed := folder.is_dir():
            stack.enter_context(locked(folder))
        loaded = load(model, device=device, tokenizer=tokenizer)
        stack.enter_context(borrowed(loaded.module, device))
        if engine.remote:
            ModelRef.of(loaded).check_place()
        with disk_errors(Path(scratch)):
            names = data_names(data, loaded, Path(scratch))
        if float64:
            loaded = replace(loaded, module=in_double(loaded.module))
            stack.enter_context(stays_double())
        request = Request(names, max_length, max_inputs, held_out, seed, padding)
        asked = Options(
            request,
            tuple(several(only)),
            of,
            before_rope,
            rank,
            matrix_gigabytes=matrix_memory,
            batch=batch_size,
            shard=shard_size,
            depth_every=depth_every,
            diagnostics_every=diagnostics_every,
            thresholds=dict(thresholds or {}),
            float64=float64,
        )
        unfinished = folder / "unfinished"
        goes_on = resume and (unfinished / "request.json").is_file()
        identity = _identity(loaded, asked, engine.threads)
        if goes_on:
            _check_same(unfinished, identity)
            _check_inputs(unfinished)
        spool = Path(scratch) / "spool"
        spool.mkdir()
        with disk_errors(spool):
            ready = prepare(loaded, request, unfinished if goes_on else spool, resume=goes_on)
        fingerprint = ready.facts.get("fingerprint")
        if goes_on and read_json(unfinished / "request.json").get("fingerprint") != fingerprint:
            raise EigenlensError(
                f"the data of the study in {folder} has changed since it was begun; begin anew with"
                " --overwrite"
            )
        sites = probe(loaded, ready, asked)
        matrix, note = matrix_form(sites, ready, asked)
        depth, no_depth = depth_form(sites, loaded, asked)
        missing = {"matrices"} if matrix is None else set()
        missing |= {"depth"} if depth is None else set()
        options = replace(asked, only=tuple(name for name in asked.only if name not in missing))
        memory = study_memory(loaded, ready, sites, options, matrix, engine.here)
        room = free(loaded.device)
        memory.check(room, None if max_memory is None else int(max_memory * 1e9))
        stack.enter_context(use_engine(engine))  # a cluster that cannot be had leaves no folder
        if not existed:
            with disk_errors(folder):
                folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(folder))
            _check_place(folder, resume, overwrite)  # another process may have been here since
        if not goes_on:
            del ready  # the inputs move with their folder
            try:
                _begin(folder, spool, {**identity, "fingerprint": fingerprint})
            except BaseException:
                if not existed:
                    shutil.rmtree(folder, ignore_errors=True)
                raise
            ready = prepare(loaded, request, unfinished, resume=True)
        with disk_errors(unfinished):
            say(memory.sentence(room))
            notes = [text for text in (note, no_depth) if text]
            stage = Pass(
                ModelRef.of(loaded, device, float64), options, sites, depth, engine.threads
            )
            _record(folder, stage, ready, matrix, notes, engine, progress)
        shutil.rmtree(unfinished)
    made = Study.open(folder)
    return Study(folder, made.stored, keep)


def _record(
    folder: Path,
    stage: Pass,
    inputs: Inputs,
    matrix: str | None,
    notes: list[str],
    engine: Engine,
    progress: Progress,
) -> None:
    model, options, sites, depth = stage.model_ref.model, stage.options, stage.sites, stage.depth
    studied, every = StudiedModel(model, sites), options.every_diagnosed(longest_of(sites))

    def diagnose(states: Mapping[str, State]) -> DiagnosticRunner:
        return DiagnosticRunner.of(studied, options.diagnosed, every, states, bool(stage.names))

    asks = diagnose if options.diagnosed else None
    recording = Recorder(stage, inputs, matrix, asks, engine, folder / "unfinished", progress).run()
    asked, got = options.request.inputs, len(inputs.buckets)
    if got < asked:
        notes.append(f"the data gave {got:,} inputs, fewer than {asked:,}")
    if recording.depth is not None and not recording.depth.sums:
        notes.append(
            f"the blocks of {model.name} pass on no tokens (B, T, C), so there are no metrics along"
            " depth"
        )
    if bounds := bound_levels(recording.spectra):
        notes.append(
            f"the spectra of whole matrices of {bounds} are lower bounds: the true eigenvalues, and"
            " shares of variance in the sample, are at least these, and fewer dimensions may do"
        )
    if recording.failed:
        notes.append(lost("the study", recording.failed))
    facts = {
        **made_now(model, recording.seconds),
        "data": inputs.facts,
        "length": inputs.length,
        "precision": precision_of(model.module),
        "inputs": got - sum(failure["inputs"] for failure in recording.failed),
        "options": {
            **options.record(),
            "matrices_by": matrix,
            "depth_by": depth.record() if depth else None,
            "threads": engine.threads,
        },
        "sites": sites,
        "diagnostics": _diagnosed(recording, model, every),
        "notes": notes,
        "partial": recording.failed,
    }
    Study.write(folder, facts, recording)


def _diagnosed(recording: Recording, model: Model, every: int) -> dict[str, Any]:
    """What the findings need besides their numbers: why some do not apply, and the texts of the
    tokens they name.
    """
    found = recording.diagnosing
    if found is None:
        return {}
    ids = {number for diagnostic in found.diagnostics.values() for number in diagnostic.token_ids()}
    listed = sorted(ids)
    texts = id_texts(model.tokenizer, torch.tensor([listed]))[0] if listed else []
    return {
        "every": every,
        "notes": found.notes,
        "tokens": {str(number): text for number, text in zip(listed, texts)},
    }


def _check_place(folder: Path, resume: bool, force: bool) -> None:
    if folder.is_file():
        raise EigenlensError(f"{folder} is a file; name a folder for the study")
    if not folder.exists() or not any(folder.iterdir()):
        return
    if (folder / "study.json").is_file():
        if force:
            return
        hint = (
            "it is finished, so there is nothing to resume"
            if resume
            else "open it, name another folder, or overwrite it with --overwrite"
        )
        raise EigenlensError(f"{folder} already holds a study; {hint}")
    if any(folder.glob("unfinished*")):
        if resume or force:
            return
        raise EigenlensError(
            f"{folder} holds a study that was interrupted; go on with --resume or begin anew with"
            " --overwrite"
        )
    raise EigenlensError(f"{folder} exists and is not a study; name another folder")


def _check_inputs(unfinished: Path) -> None:
    """Inputs that changed on disk would change the numbers without a word."""
    for name, digest in read_json(unfinished / "request.json").get("inputs_kept", {}).items():
        if not (unfinished / name).is_file() or sha256(unfinished / name) != digest:
            raise EigenlensError(
                f"{unfinished / name} is not as it was written; begin anew with --overwrite"
            )


def _check_same(unfinished: Path, now: dict[str, Any]) -> None:
    stored = read_json(unfinished / "request.json")
    if not isinstance(stored, dict):
        raise EigenlensError(
            f"{unfinished / 'request.json'} is damaged; begin anew with --overwrite"
        )
    for key, value in now.items():
        if stored.get(key) != value:
            raise EigenlensError(
                f"the interrupted study in {unfinished.parent} was begun with another"
                f" {key.replace('_', ' ')} ({stored.get(key)} then, {value} now); resume with the"
                " same, or begin anew with --overwrite"
            )


def _identity(model: Model, options: Options, threads: int) -> dict[str, Any]:
    """What must not change between the parts of a study, as JSON gives it back."""
    record = options.record()
    request = record.pop("request")
    request["data"] = [Path(name).name for name in request["data"]]
    facts = {
        "model": model.name,
        "weights": model.facts.get("fingerprint"),
        "version": versions()["eigenlens"],
    }
    return json.loads(json.dumps({**facts, **request, **record, "threads": threads}))


def _begin(folder: Path, spool: Path, identity: dict[str, Any]) -> None:
    """Put the inputs and the request into the folder; everything that could be wrong has been
    checked by now.

    Killed at any moment it leaves what was there before, or what `--resume` begins anew.
    """
    part, unfinished = folder / "unfinished.part", folder / "unfinished"
    with disk_errors(folder):
        try:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            for file in spool.iterdir():
                shutil.copyfile(file, part / file.name)
            kept = {file.name: sha256(part / file.name) for file in sorted(spool.iterdir())}
            write_json(part / "request.json", {**identity, "inputs_kept": kept})
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
        (folder / "study.json").unlink(missing_ok=True)  # from here on there is no old study
        (unfinished / "request.json").unlink(missing_ok=True)
        shutil.rmtree(unfinished, ignore_errors=True)
        part.rename(unfinished)
        shutil.rmtree(folder / "pictures", ignore_errors=True)
        for name in FILES:
            (folder / f"{name}.safetensors").unlink(missing_ok=True)

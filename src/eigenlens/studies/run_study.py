"""Making a study: from a model and data to a folder."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

from torch import nn

from ..data.inputs import Request, prepare
from ..models.catalogue import DEFAULT_MODEL
from ..models.load import Model
from ..names import split_names
from ..passes.data_names import Data
from ..passes.use_model import use_model
from ..run.engine import Engine, choose_engine, use_engine
from ..run.files import disk_errors
from ..run.memory import free_bytes
from ..run.progress import Progress, print_line, silent
from .folder import StudyFolder, identity_of
from .memory import study_memory
from .options import STATISTICS, Options
from .recorder import run_stages
from .result import Study
from .study_pass import Pass
from .survey import survey
from .write_study import write_study


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

    Parameters
    ----------
    model : str, Path, nn.Module or Model, default "minilm"
        A name of the catalogue, a folder as `save_pretrained` writes it, a hub id (`"org/name"`),
        or a module in memory.
    data : str, Path, array or sequence of them, optional
        Text files, folders, `FILE.jsonl` or `FILE.jsonl:FIELD`, a named set, token ids (a `.npy`
        file, or an array `(N, length)`), pictures for a vision model, `.wav` files for a speech
        model. Default: the text of the catalogue, or its photographs.
    output_dir : str or Path, optional
        The folder of the study. Default: a temporary one, which lives as long as the object.
    max_length : int, optional
        Tokens per input; for a vision model pixels per side. Default: 128 tokens or the most that
        the model takes (224 pixels), or the length of the rows of an array.
    max_inputs : int, default 1000
        At most this many inputs, fit and held out together.
    held_out : float, default 0.2
        Share of the inputs that is held out, by document.
    only : str or sequence of str, default all
        Statistics: `rows`, `moments`, `matrices`, `within`, `depth`, `diagnostics`, or single
        diagnostics by name; as a list or with commas.
    seed : int, default 0
        Order and split of the documents.
    of : {"scores", "pattern"}, default "scores"
        Study the scores before the softmax, or the pattern after it.
    before_rope : bool, default False
        Study scores before the rotary embedding.
    padding : bool, default False
        One input per document, padded, instead of packed text.
    rank : int, default 64
        Components of the matrix spectra.
    matrix_memory : float, default 4.0
        Most gigabytes for matrix spectra; if they need more they are left out, with a note.
    max_memory : float, optional
        Most gigabytes that the study may take. Default: what is free.
    batch_size : int, optional
        Inputs per batch. Default: 4096 tokens.
    shard_size : int, optional
        Inputs per shard, about. Default: 16384 tokens.
    depth_every : int, optional
        Measure the metrics along depth on every n-th input. Default: 32, or more often if the
        inputs are few.
    diagnostics_every : int, optional
        Measure the diagnostics on every n-th input. Default: 32, or more often if the inputs are
        few.
    thresholds : mapping, optional
        Settings of diagnostics, such as `{"sinks": {"epsilon": 0.2}}`. Default: those of their
        papers.
    float64 : bool, default False
        Run the model in double precision, also where its own code goes down to float32.
    tokenizer : object, optional
        The tokenizer of a module in memory. Default: the one in the model's folder.
    device : str, default "auto"
        Where the model runs, such as `"cpu"` or `"cuda"`; `"auto"` is a GPU if there is one. A
        module in memory stays where it is.
    engine : Engine, optional
        Who computes: `Local()`, or `Dask(...)` for a cluster. Default: the engine of the
        surrounding `with` block, else this process. At equal threads the numbers do not depend on
        it.
    resume : bool, default False
        Go on with a study that was interrupted, to the same numbers.
    overwrite : bool, default False
        Overwrite an existing result.
    progress : callable, optional
        Called with `(what, done, total)` during the work. Default: silent.

    Returns
    -------
    Study
        Spectra, metrics along depth and diagnostics of every head and layer.

    Raises
    ------
    EigenlensError
        If the model or the data cannot be read, an option is wrong, the folder is taken, or the
        memory does not suffice.

    Examples
    --------
    >>> study("minilm", "book.txt", max_inputs=200).spectra.plot()
    """
    keep = tempfile.TemporaryDirectory(prefix="eigenlens-") if output_dir is None else None
    folder = StudyFolder(Path(keep.name if keep else output_dir), resume, overwrite)  # type: ignore[arg-type]
    engine = choose_engine(engine)
    with ExitStack() as stack:
        stack.enter_context(folder.reserved())

        # request
        used = stack.enter_context(
            use_model(
                model, data, device=device, tokenizer=tokenizer, engine=engine, float64=float64
            )
        )
        loaded = stack.enter_context(used.ref.running())
        asked = Options(
            Request(used.names, max_length, max_inputs, held_out, seed, padding),
            tuple(split_names(only)),
            of,
            before_rope,
            rank,
            matrix_memory=matrix_memory,
            batch_size=batch_size,
            shard_size=shard_size,
            depth_every=depth_every,
            diagnostics_every=diagnostics_every,
            thresholds=dict(thresholds or {}),
            float64=float64,
        )

        # inputs
        identity = identity_of(loaded, asked, engine.threads)
        inputs = folder.inputs(loaded, asked, identity, used.scratch)

        # survey: one input through the model
        surveyed = survey(loaded, inputs, asked)

        # memory
        memory = study_memory(
            loaded, inputs, surveyed.sites, surveyed.options, surveyed.matrix, engine.here
        )
        room = free_bytes(loaded.device)
        memory.check(room, None if max_memory is None else int(max_memory * 1e9))

        # run
        stack.enter_context(use_engine(engine))  # a cluster that cannot be reached leaves no folder
        if not folder.goes_on:
            del inputs  # not to be held twice: they are read again from the folder
            folder.begin()
            inputs = prepare(loaded, asked.request, folder.unfinished, resume=True)
        with disk_errors(folder.unfinished):
            print_line(memory.sentence(room))
            job = Pass(
                used.ref,
                surveyed.options,
                surveyed.sites,
                surveyed.depth,
                engine.threads,
                within=surveyed.within,
            )
            recording = run_stages(
                job, inputs, surveyed.matrix, engine, folder.unfinished, progress
            )

            # write
            write_study(folder.path, loaded, inputs, surveyed, recording, engine.threads)
        folder.finish()
    return Study.open(folder.path, keep)

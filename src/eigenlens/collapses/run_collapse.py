"""Making a collapse run: from a model and data to its result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, get_args

from torch import nn

from ..anatomy.blocks import read_stacks
from ..anatomy.switches import Switches
from ..data.inputs import Request, prepare
from ..errors import EigenlensError
from ..models.catalogue import DEFAULT_MODEL
from ..models.load import Model
from ..names import split_names, unknown_name
from ..passes.data_names import Data
from ..passes.facts import Facts
from ..passes.sinks import sinks_of
from ..passes.use_model import use_model
from ..run.engine import Engine, choose_engine, use_engine
from ..run.parts import Parts
from ..run.progress import Progress, silent
from ..run.run_all import Refused, describe_failures
from ..stats.rounding import precision_of
from .ablation import VARIANTS
from .measure import CollapseRun
from .paths import By
from .result import Collapse

ABLATIONS = {
    **VARIANTS,
    "without attention skip": Switches(attention_skip=False),
    "without MLP skip": Switches(mlp_skip=False),
    "without norm": Switches(norm=False),
}
"""The variants of the paper, and every part taken out alone.

SAN+skip is the model without MLPs, SAN+MLP the model without skips.
"""


def collapse(
    model: str | Path | nn.Module | Model = DEFAULT_MODEL,
    data: Data | None = None,
    output_dir: str | Path | None = None,
    *,
    max_length: int | None = None,
    max_inputs: int = 32,
    paths: int = 8,
    bounds: int = 2,
    by: By = "attention",
    variants: str | Sequence[str] | None = None,
    float64: bool = False,
    padding: bool = False,
    seed: int = 0,
    tokenizer: Any = None,
    device: str = "auto",
    engine: Engine | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress = silent,
) -> Collapse:
    """Measure where a model's tokens would collapse, and what keeps them apart.

    The metrics of a study along depth are measured for the model and for its ablations. A family
    whose blocks are not known gets the metrics of the model itself, and a note that says what is
    missing.

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
        The folder of the run, where finished parts are kept. Default: none is written.
    max_length : int, optional
        Tokens per input; for a vision model pixels per side. Default: 128 tokens (224 pixels).
    max_inputs : int, default 32
        At most this many inputs.
    paths : int, default 8
        Number of inputs whose output is split by path length.
    bounds : int, default 2
        Number of inputs on which the bounds of every head are computed.
    by : {"attention", "mlp", "both"}, default "attention"
        Which hops count in a path.
    variants : str or sequence of str, optional
        Names of the ablations, as a list or with commas. Default: all.
    float64 : bool, default False
        Run everything in double precision, which a curve below 1e-6 needs.
    padding : bool, default False
        One input per document, padded, instead of packed text.
    seed : int, default 0
        Order of the documents.
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
        Go on with a run that was interrupted, after its last finished part.
    overwrite : bool, default False
        Overwrite an existing result.
    progress : callable, optional
        Called with `(what, done, total)` during the work. Default: silent.

    Returns
    -------
    Collapse
        Curves of the model and its ablations along depth, the output by path length, the bounds of
        every head.

    Raises
    ------
    EigenlensError
        If the model or the data cannot be read, an option is wrong, or the folder is taken.

    Examples
    --------
    >>> collapse("minilm").plot()
    """
    chosen = list(ABLATIONS) if variants is None else split_names(variants)
    for name in chosen:
        if name not in ABLATIONS:
            raise unknown_name("variant", name, ABLATIONS)
    if by not in get_args(By):
        raise EigenlensError(f"paths are counted by {', '.join(get_args(By))}, not by {by!r}")
    if paths < 0 or bounds < 0:
        raise EigenlensError(
            f"paths and bounds are measured on 0 or more inputs, not on {min(paths, bounds)}"
        )
    chosen = ["full", *(name for name in chosen if name != "full")]
    engine = choose_engine(engine)
    with ExitStack() as stack:
        used = stack.enter_context(
            use_model(
                model, data, device=device, tokenizer=tokenizer, engine=engine, float64=float64
            )
        )
        loaded, names = used.model, used.names
        request = Request(names, max_length, max_inputs, 0.2, seed, padding)
        ready = prepare(loaded, request, used.scratch)
        notes = _missing(loaded)
        settings = {
            "model": loaded.name,
            "weights": loaded.facts.fingerprint,
            "data": [Path(name).name for name in names],
            "fingerprint": ready.facts.fingerprint,
            "length": ready.length,
            "inputs": len(ready.buckets),
            "paths": paths,
            "bounds": bounds,
            "by": by,
            "float64": float64,
            "pad": padding,
            "seed": seed,
            "threads": engine.threads,
        }
        folder = used.scratch / "parts" if output_dir is None else Path(output_dir)
        Parts.check(folder, settings, resume, overwrite, "collapse run")
        stack.enter_context(use_engine(engine))  # a cluster that cannot be reached leaves no folder
        parts = stack.enter_context(
            Parts.held(folder, settings, resume=resume, overwrite=overwrite, what="collapse run")
        )
        run = CollapseRun(used.ref, ready, sinks_of(loaded, names), engine, progress)
        found = _measured(run, parts, chosen, paths, bounds, by, notes)
        facts = Facts.now(
            loaded.facts,
            ready.facts,
            length=ready.length,
            inputs=len(ready.buckets),
            notes=notes,
        )
        stored = {
            **settings,
            **facts.record("model", "versions", "created", "data", "notes"),
            "precision": precision_of(loaded.module),
        }
        result = Collapse({"facts": stored, **found})
        if output_dir is not None:
            result.save(folder)
    return result


def _measured(
    run: CollapseRun,
    parts: Parts,
    variants: Sequence[str],
    paths: int,
    bounds: int,
    by: By,
    notes: list[str],
) -> dict[str, Any]:
    known, most = not notes, len(run.inputs.buckets)

    def part(name: str, measure: Callable[[], Any]) -> Any:
        made = parts.part(name.replace(" ", "-"), measure)
        if made["failed"]:
            notes.append(describe_failures(f"what was found of {name}", made["failed"]))
        return made["found"]

    def optional(name: str, measure: Callable[[], Any]) -> Any:
        """Measure, or return None with a note if this model does not allow it."""
        try:
            return part(name, measure)
        except Refused as error:
            notes.append(f"{name} left out: {error.reason}")
            return None

    curves = {"full": part("full", partial(run.curves, "full", None))}
    for name in variants[1:] if known else []:
        found = optional(name, partial(run.curves, name, ABLATIONS[name]))
        if found is not None:
            curves[name] = found
    found_paths = (
        optional("paths", partial(run.paths, min(paths, most), by)) if known and paths else None
    )
    found_bounds = (
        optional("bounds", partial(run.bounds, min(bounds, most))) if known and bounds else None
    )
    return {
        "curves": curves,
        "paths": found_paths or {"error": None, "lengths": [], "heads": [], "single": []},
        "bounds": found_bounds or {"heads": [], "depth": []},
    }


def _missing(model: Model) -> list[str]:
    """A note if ablations, paths and bounds cannot be measured, with the reason."""
    try:
        read_stacks(model.backbone)
    except EigenlensError as error:
        return [f"only the model itself was measured, without ablations, paths and bounds: {error}"]
    return []

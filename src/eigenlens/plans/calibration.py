"""How long every form of attention takes on this machine: measured once, and kept.

Forms are timed on random queries and keys at a few lengths, for one width of heads. A plan's cost
is made of these: the pairs it attends and the pairs of the rows that choose, each at its measured
seconds per pair. What was measured is kept in the cache by machine, device, threads, torch and
kernel, and measured anew if one of them changes.
"""

from __future__ import annotations

import hashlib
import json
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..attention.attend_by_forms import full_attention
from ..attention.head_forms import HeadForm, LayerForms
from ..attention.head_keys import keep_keys
from ..attention.kept_attention import Form, attend_kept
from ..cache import cache_folder
from ..errors import EigenlensError, EigenlensWarning
from ..kernels.build import kernel, processor
from ..run.clock import now
from ..run.files import made_folder, read_json, write_text
from ..run.progress import Progress, silent
from ..run.schema import NumberSchema, check_schema
from .menu import RANK, RANKED_SAMPLES, SAMPLES

LENGTHS = (1024, 2048, 4096, 8192)
HEADS = 4
KEPT = 0.25
"""The share of the pairs in the measurement of gathered keys."""
USUAL = 0.25
"""The share of the pairs that a plan usually computes."""
WINDOW = 256
REPEATS = 3
VERSION = 1
DENSE, GATHERED, NEAR, CHOOSING, RANKED = (
    "dense",
    "gathered keys",
    "window",
    "choosing keys",
    "choosing keys, ranked",
)
FORMS = (DENSE, NEAR, GATHERED, CHOOSING, RANKED)
_SOME, _MEASURED = NumberSchema(1, 2**31, integer=True), NumberSchema(1e-12)
SCHEMA = {
    "version": NumberSchema(VERSION, VERSION, integer=True),
    "machine": str,
    "device": str,
    "threads": _SOME,
    "torch": str,
    "kernel": (str, None),
    "width": _SOME,
    "timings": [
        {
            "form": str,
            "by": str,
            "causal": bool,
            "length": _SOME,
            "seconds": _MEASURED,
            "pairs": _MEASURED,
        }
    ],
    "measured": str,
}


@dataclass(frozen=True)
class Timing:
    """One measurement: seconds of all heads, and the pairs they were for."""

    form: str
    by: str  # torch or native
    causal: bool
    length: int
    seconds: float
    pairs: float

    @property
    def nanoseconds(self) -> float:
        """Per pair of one head."""
        return 1e9 * self.seconds / self.pairs


@dataclass(frozen=True)
class Calibration:
    """The seconds of every form for heads of one width."""

    machine: str
    device: str
    threads: int
    torch: str
    kernel: str | None
    width: int
    timings: tuple[Timing, ...]
    measured: str
    """When."""

    def per_pair(self, form: str, causal: bool, length: int, by: str | None = None) -> float:
        """Seconds per pair of one head at a length, between those measured.

        `by` is who computes: the native kernel if there is one, else torch.
        """
        by = by or ("native" if self.kernel and form != DENSE else "torch")
        found = sorted(
            (t.length, t.nanoseconds)
            for t in self.timings
            if (t.form, t.by, t.causal) == (form, by, causal)
        )
        lengths, values = zip(*found)
        return float(np.interp(np.log(length), np.log(lengths), values)) / 1e9

    def usual_head(self, causal: bool, length: int) -> tuple[float, float]:
        """Seconds of one head by torch's own attention, and by a usual plan.

        A usual plan computes a quarter of the pairs, and chooses them.
        """
        pairs = length**2 * (0.5 if causal else 1.0)
        planned = USUAL * self.per_pair(GATHERED, causal, length)
        planned += SAMPLES / LayerForms(()).block * self.per_pair(CHOOSING, causal, length)
        return pairs * self.per_pair(DENSE, causal, length), pairs * planned

    def rows(self) -> list[dict[str, Any]]:
        """One row per form, direction and length: native and torch side by side.

        Milliseconds per head and nanoseconds per pair of query and key; `torch / native` says how
        many times faster the native kernel is.
        """
        found: dict[tuple[str, bool, int], dict[str, Timing]] = {}
        for t in self.timings:
            found.setdefault((t.form, t.causal, t.length), {})[t.by] = t

        def row(form: str, causal: bool, length: int, by: dict[str, Timing]) -> dict[str, Any]:
            native, torch_ = by.get("native"), by.get("torch")
            return {
                "form": form,
                "direction": "causal" if causal else "both ways",
                "tokens": length,
                "native ms": native and 1e3 * native.seconds / HEADS,
                "torch ms": torch_ and 1e3 * torch_.seconds / HEADS,
                "native ns": native and native.nanoseconds,
                "torch ns": torch_ and torch_.nanoseconds,
                "torch / native": native and torch_ and torch_.seconds / native.seconds,
            }

        return [row(*key, by) for key, by in sorted(found.items(), key=_order)]

    def record(self) -> dict[str, Any]:
        """Everything as plain JSON values."""
        return {**asdict(self), "timings": [asdict(t) for t in self.timings]}

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Calibration:
        timings = tuple(Timing(**t) for t in record["timings"])
        return cls(**{**record, "timings": timings})


def calibrate(
    width: int = 64,
    device: str | torch.device = "cpu",
    *,
    longest: int = LENGTHS[-1],
    again: bool = False,
    progress: Progress = silent,
) -> Calibration:
    """Measure every form for heads of a width, or read what was measured before.

    Parameters
    ----------
    width : int, default 64
        The width of a head.
    device : str or device, default "cpu"
        Where attention is computed.
    longest : int, default 8192
        The longest input that it is for; shorter lengths take less time to measure.
    again : bool, default False
        Measure anew.
    progress : callable, optional
        Called with `(what, done, total)`. Default: silent.

    Returns
    -------
    Calibration
        The seconds of every form at each length, as the cache keeps them.
    """
    facts = _facts(width, str(device))
    path = _path(facts)
    before = None if again else _read(path)
    if before is not None and not facts.items() <= before.record().items():
        before = None
    needed = [n for i, n in enumerate(LENGTHS) if not i or LENGTHS[i - 1] < longest]
    missing = [n for n in needed if before is None or not _has(before, n)]
    if before is not None and not missing:
        return before
    timings = [] if before is None else [t for t in before.timings if t.length not in missing]
    for i, length in enumerate(missing):
        progress("measuring attention on this machine", i, len(missing))
        for causal in (True, False):
            timings += _measured(width, length, causal, torch.device(device), bool(facts["kernel"]))
    progress("measuring attention on this machine", len(missing), len(missing))
    made = Calibration(
        **facts,
        timings=tuple(timings),
        measured=time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()),
    )
    try:
        made_folder(path.parent)
        write_text(path, json.dumps({"version": VERSION, **made.record()}, indent=1))
    except EigenlensError as error:
        warnings.warn(
            f"what was measured of this machine is not kept: {error}",
            EigenlensWarning,
            stacklevel=2,
        )
    return made


def calibrations() -> list[Calibration]:
    """What was measured on this machine with these threads, this torch and this kernel."""
    try:
        paths = sorted((cache_folder() / "calibrations").glob("*.json"))
    except OSError:
        return []
    read = (one for path in paths if (one := _read(path)) is not None)
    return sorted(
        (one for one in read if _facts(one.width, one.device).items() <= one.record().items()),
        key=lambda one: (one.device, one.width, one.measured),
    )


def _order(item: tuple[tuple[str, bool, int], Any]) -> tuple[int, bool, int]:
    """Forms in one order, causal first, short first."""
    form, causal, length = item[0]
    return FORMS.index(form) if form in FORMS else len(FORMS), not causal, length


def _facts(width: int, device: str) -> dict[str, Any]:
    native = kernel()
    path = native.path if native.library is not None and device == "cpu" else None
    return {
        "machine": _machine(torch.device(device)),
        "device": device,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "kernel": path.stem if path is not None else None,
        "width": width,
    }


def _machine(device: torch.device) -> str:
    """The name of what computes."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else processor()[0]


def _path(facts: dict[str, Any]) -> Path:
    terms = json.dumps([VERSION, processor(), facts], sort_keys=True)
    name = hashlib.sha256(terms.encode()).hexdigest()[:16]
    return cache_folder() / "calibrations" / f"{name}.json"


def _read(path: Path) -> Calibration | None:
    """A stored calibration; None if there is none, or it cannot be read."""
    try:
        record = read_json(path)
        check_schema(record, SCHEMA, "it")
        del record["version"]
        return Calibration.from_record(record)
    except (EigenlensError, ValueError, KeyError, TypeError):
        return None


def _has(one: Calibration, length: int) -> bool:
    """Whether a calibration has every form at a length."""
    known = {(t.by, t.form, t.causal) for t in one.timings if t.length == length}
    wanted = {("torch", form) for form in FORMS}
    wanted |= {("native", form) for form in FORMS if form != DENSE and one.kernel}
    return all((*form, causal) in known for form in wanted for causal in (True, False))


def _measured(
    width: int, length: int, causal: bool, device: torch.device, native: bool
) -> Iterator[Timing]:
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, HEADS, length, width, generator=draw).to(device) for _ in range(3))
    scale, full = width**-0.5, length * length * (0.5 if causal else 1.0)

    def timing(form: str, by: str, pairs: float, work: Callable[[], Any]) -> Timing:
        return Timing(form, by, causal, length, _seconds(work, device), pairs * HEADS)

    yield timing(DENSE, "torch", full, lambda: full_attention(q, k, v, causal, scale, None))
    kept = _random_keys(q, k, v, causal, scale, draw)
    pairs = float(kept.pairs(length).mean())
    near = LayerForms((HeadForm("window", window=WINDOW),) * HEADS, causal, last=0)
    window = keep_keys(q, k, v, near, scale=scale)
    blocks = LayerForms((HeadForm("blocks", 1.0, 64, SAMPLES, correction=0.5),) * HEADS, causal)
    maps = torch.randn(HEADS, width, min(RANK, width), generator=draw).to(device)
    form = HeadForm("ranked", 1.0, 128, RANKED_SAMPLES, maps.shape[2], correction=0.5)
    ranked = LayerForms((form,) * HEADS, causal, to_x=maps, to_y=maps)
    forms: tuple[Form, ...] = ("native", "torch") if native else ("torch",)
    for by in forms:
        yield timing(GATHERED, by, pairs, partial(attend_kept, q, k, v, kept, scale, None, by))
        yield timing(
            NEAR,
            by,
            float(window.pairs(length).mean()),
            partial(attend_kept, q, k, v, window, scale, None, by),
        )
        for name, chosen, samples in (
            (CHOOSING, blocks, SAMPLES),
            (RANKED, ranked, RANKED_SAMPLES),
        ):
            rows = full * samples / chosen.block
            yield timing(
                name,
                by,
                rows,
                partial(keep_keys, q, k, v, chosen, scale=scale, form=by),
            )


def _random_keys(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, draw: torch.Generator
) -> Any:
    """A random quarter of the far keys for every unit."""
    near = LayerForms((HeadForm("window", window=64),) * HEADS, causal, last=0)
    kept = keep_keys(q, k, v, near, scale=scale)
    N, S = kept.counts.shape[2], k.shape[2]
    chosen = torch.rand(1, HEADS, N, S, generator=draw).to(q.device) < KEPT
    place = torch.arange(S, device=q.device)
    low, high = kept.ranges[..., :1], kept.ranges[..., 1:]
    chosen &= (place < low) if causal else (place < low) | (place >= high)
    counts = chosen.sum(3).to(torch.int32)
    keys = chosen.to(torch.uint8).argsort(dim=3, descending=True, stable=True).to(torch.int32)
    return replace(kept, keys=keys.contiguous(), counts=counts)


def _seconds(work: Callable[[], Any], device: torch.device) -> float:
    """The median of a few runs, after one to warm up."""
    found = []
    for _ in range(REPEATS + 1):
        begin = now(device)
        work()
        found.append(now(device) - begin)
    return median(found[1:])

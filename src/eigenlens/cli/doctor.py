"""The command `doctor`: what this machine has, and what is missing for what."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..display import listed, numbered
from ..errors import EigenlensError
from .app import app
from .options import MEASURE, Command, Full, Json, example
from .terminal import print_table, print_text

if TYPE_CHECKING:
    from ..plans.calibration import Calibration
    from .machine import Machine

WIDTH = 64
"""The width of the heads that are measured, if none is named: that of most models."""


@app.command(cls=Command, epilog=example("eigenlens doctor", "eigenlens doctor --calibrate"))
def doctor(
    calibrate: Annotated[
        bool,
        typer.Option(
            "--calibrate",
            help="Measure anew what attention takes here (default: print what was measured).",
            rich_help_panel=MEASURE,
        ),
    ] = False,
    width: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1024,
            help=f"With --calibrate: the width of a head (default: {WIDTH}).",
            rich_help_panel=MEASURE,
        ),
    ] = None,
    full: Full = False,
    as_json: Json = False,
) -> None:
    """Say what this machine has, and what is missing for what.

    Versions, processor, devices, extras, the native kernel, the cache folder, and how long
    attention takes here. Something that is missing is no error: the command ends with 0.
    """
    if width is not None and not calibrate:
        raise EigenlensError("--width says what --calibrate measures; add --calibrate")
    from ..run.progress import progress_bar
    from .machine import diagnose_machine

    measured = []
    if calibrate:
        from ..plans.calibration import calibrate as measure

        with progress_bar() as progress:
            measured.append(measure(width or WIDTH, again=True, progress=progress))
    machine = diagnose_machine()
    # in a cache that cannot be written it was not found again
    fresh = (one for one in measured if one not in machine.calibrations)
    machine = replace(machine, calibrations=(*machine.calibrations, *fresh))
    if as_json:
        print(json.dumps(machine.record()))
    else:
        _print(machine, full)


def _print(machine: Machine, full: bool) -> None:
    v, p = machine.versions, machine.processor
    print_text(
        f"eigenlens {v.eigenlens} on Python {v.python} with torch {v.torch} and"
        f" {f'transformers {v.transformers}' if v.transformers else 'without transformers'}"
    )
    print_text(
        f"Processor: {p.name}, {numbered(p.cores, 'core')} ({p.system}). torch computes with"
        f" {numbered(p.threads, 'thread')} and {p.instructions}."
    )
    print_text(f"Memory: {_gigabytes(p.free_bytes)} are free.")
    print_text(f"Devices: {_devices(machine)}.")
    print()
    rows = [
        *(
            {
                "what": f"extra {extra.name}",
                "for": extra.purpose,
                "installed": f"no: {listed(extra.missing)}" if extra.missing else "yes",
            }
            for extra in machine.extras
        ),
        *(
            {"what": one.name, "for": one.purpose, "installed": "yes" if one.installed else "no"}
            for one in machine.programs
        ),
    ]
    print_table("What only some work needs", rows, full)
    missing = [extra.name for extra in machine.extras if extra.missing]
    if missing:
        print_text(f"Install the libraries with: pip install 'eigenlens[{','.join(missing)}]'\n")
    native = machine.kernel
    if native.compiled:
        print_text(f"Native kernel: compiled by {native.compiler}.\n")
    else:
        print_text(
            f"There is no native kernel: {native.missing}. The torch form of attention is used"
            " instead.\n"
        )
    cache = machine.cache
    can = "can be written"
    if not cache.writable:
        can = f"cannot be written ({cache.problem}); set EIGENLENS_CACHE to another folder"
    print_text(f"Cache folder: {cache.folder}, {_gigabytes(cache.bytes)}; it {can}.\n")
    held: list[dict[str, Any]] = [
        {
            "folder": one.name,
            "what it holds": one.what,
            "files": one.files,
            "MB": f"{one.bytes / 1e6:.1f}",
        }
        for one in cache.holds
    ]
    print_table("", held, full)
    _print_calibrations(machine, full)


def _print_calibrations(machine: Machine, full: bool) -> None:
    for one in machine.calibrations:
        rows = one.rows()
        if not full:
            longest = max((row["tokens"] for row in rows), default=0)
            rows = [row for row in rows if row["tokens"] == longest]
        print_table(_title(one), rows, full)
    if not machine.calibrations:
        print_text(
            "How long attention takes here, with"
            f" {numbered(machine.processor.threads, 'thread')}, was not measured yet: eigenlens"
            " doctor --calibrate measures it; a plan within a loss (plan --loss) does when it is"
            " made."
        )
    elif not full:
        print("All lengths: eigenlens doctor --full")


def _title(one: Calibration) -> str:
    return (
        f"Attention on {one.device} with {numbered(one.threads, 'thread')}, heads of width"
        f" {one.width}, measured {one.measured} UTC: ms per head, ns per pair of query and key"
    )


def _devices(machine: Machine) -> str:
    def words(name: str, what: str, free: int | None) -> str:
        return f"{name} ({what}{'' if free is None else f', {_gigabytes(free)} free'})"

    found = [words(one.name, one.what, one.free_bytes) for one in machine.devices]
    absent = [kind for kind in ("cuda", "mps") if not any(kind in one for one in found)]
    none = f"; there is no {listed(absent, 'or')}" if absent else ""
    return f"{listed(['cpu', *found])}{none}"


def _gigabytes(number: int) -> str:
    return f"{number / 1e9:.1f} GB"

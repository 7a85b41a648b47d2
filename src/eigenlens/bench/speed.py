"""Time and memory of every mechanism against the length, beside torch's own attention."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..attention import Mechanism, Shape, find, make
from ..display import numbered
from ..run.clock import finish
from ..run.parts import Parts
from ..run.progress import Progress
from .entrants import fits
from .fit import crossover, exponent
from .result import Bench
from .timing import Pace, in_rounds, medians, peak_bytes

YARDSTICK = "torch SDPA"
EXPONENT, CROSSOVER = 1.15, 4096
"""What is expected of a linear mechanism.

The exponent of its time from 2,048 tokens on, and the tokens from which on it is below torch's.
"""
PASSES = ("forward", "forward and backward")
SECONDS, GIGABYTES = 8.0, 4.0
"""A length at which one call would take more is left out."""
PROBE = 512
"""The length that tells what a longer one would take, where none was measured yet."""
Call = Callable[[], Tensor]
Row = dict[str, Any]


@dataclass(frozen=True)
class SpeedScale:
    """Sizes of the inputs: (batch, heads, tokens, head_width).

    `recurrence` and `races` are length and numbers of heads of the recurrence's own race.
    """

    lengths: tuple[int, ...] = (256, 512, 1024, 2048, 4096, 8192, 16384)
    heads: int = 4
    head_width: int = 32
    batch: int = 1
    recurrence: int = 4096
    races: tuple[int, ...] = (1, 4, 8)
    seconds: float = 0.2
    rounds: int = 3


SPEED_QUICK = SpeedScale(lengths=(64, 128, 256), recurrence=256, seconds=0.01, rounds=2)


def speed(
    scale: SpeedScale, parts: Parts, names: Sequence[str], progress: Progress, device: str = "cpu"
) -> Bench:
    """Forward time (median of rounds) and peak memory at every length; one length is one part."""
    rows: list[Row] = []
    stage = (
        f"timing {numbered(len(names), 'mechanism')} at {numbered(len(scale.lengths), 'length')}"
    )
    for done, n in enumerate(sorted(scale.lengths)):
        progress(stage, done, len(scale.lengths))
        rows += parts.part(
            f"length-{n}", functools.partial(_length, n, scale, names, rows, torch.device(device))
        )
    progress(stage, len(scale.lengths), len(scale.lengths))
    race = parts.part("recurrence", lambda: recurrence_race(scale, torch.device(device)))
    threads = parts.part("threads", torch.get_num_threads)
    summary = summarised(rows)
    left_out = [row for row in rows if row["skipped"]]
    notes = dict.fromkeys(f"{row['mechanism']}: {row['skipped']}" for row in left_out)
    pace = f"forward, {numbered(threads, 'thread')} of the {device}"
    where = f"{scale.batch} × {scale.heads} heads of width {scale.head_width}, {pace}"
    return Bench(
        "speed",
        f"Time against length ({where})",
        sentence(summary, race),
        tables={"summary": summary, "lengths": rows, "recurrence": race},
        notes=tuple(notes),
        settings={"threads": threads, "device": device},
        shown=(
            (
                "How time grows with length, from how many tokens on it is below torch's own"
                " attention, and what the longest input takes",
                "summary",
            ),
            ("The gated delta rule in chunks and token by token", "recurrence"),
        ),
    )


def _length(
    n: int, scale: SpeedScale, names: Sequence[str], before: Sequence[Row], device: torch.device
) -> list[Row]:
    """One row per mechanism: milliseconds, megabytes, rounds, or why it was left out."""
    causal = {name: fits(name, True) for name in names}
    ways = sorted({causal[name] for name in names}, reverse=True)
    rows: list[Row] = []
    calls: dict[str, Call] = {_yardstick(way): _sdpa_call(n, scale, way, device) for way in ways}
    of: dict[str, tuple[str, bool]] = {_yardstick(way): (YARDSTICK, way) for way in ways}
    for name in names:
        why = _too_much(name, n, scale, causal[name], before, device)
        if why is None:
            calls[name], of[name] = (
                _call(name, n, scale, causal[name], device),
                (name, causal[name]),
            )
        else:
            rows.append(_row(name, causal[name], n, skipped=why))
    with torch.no_grad():
        # this is their first pass, too
        memory = {name: peak_bytes(call, device) for name, call in calls.items()}
        pace = Pace(scale.seconds, scale.rounds)
        times = in_rounds({name: _finished(call, device) for name, call in calls.items()}, pace)
    found = [
        _row(*of[name], n, 1e3 * seconds, memory[name] / 1e6, len(times[name]))
        for name, seconds in medians(times).items()
    ]
    return found + rows


def _row(
    name: str,
    causal: bool,
    n: int,
    milliseconds: float | None = None,
    megabytes: float | None = None,
    rounds: int = 0,
    skipped: str = "",
) -> Row:
    return {
        "mechanism": name,
        "direction": "causal" if causal else "both ways",
        "tokens": n,
        "milliseconds": milliseconds,
        "megabytes": megabytes,
        "rounds": rounds,
        "skipped": skipped,
    }


def _yardstick(causal: bool) -> str:
    return f"{YARDSTICK}, {'causal' if causal else 'both ways'}"


def _tensors(
    n: int, scale: SpeedScale, device: torch.device
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(n)
    shape = (scale.batch, scale.heads, n, scale.head_width)
    q, k, v = (torch.randn(shape, generator=generator).to(device) for _ in range(3))
    return (
        q,
        k,
        v,
        torch.randn(scale.batch, n, scale.heads * scale.head_width, generator=generator).to(device),
    )


def _sdpa_call(n: int, scale: SpeedScale, causal: bool, device: torch.device) -> Call:
    q, k, v, _ = _tensors(n, scale, device)
    return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def _call(name: str, n: int, scale: SpeedScale, causal: bool, device: torch.device) -> Call:
    torch.manual_seed(0)
    shape = Shape(scale.heads, scale.head_width, scale.heads * scale.head_width, n)
    mechanism: Mechanism = make(name, shape).to(device).eval()
    q, k, v, x = _tensors(n, scale, device)
    stream = x if mechanism.reads_stream else None
    return lambda: mechanism(q, k, v, causal=causal, x=stream)


def _finished(call: Call, device: torch.device) -> Callable[[], Any]:
    """Run a call until its result is there."""

    def whole() -> None:
        call()
        finish(device)

    return whole


def _too_much(
    name: str, n: int, scale: SpeedScale, causal: bool, before: Sequence[Row], device: torch.device
) -> str | None:
    """What a call of this length would take, if that is too much.

    It is estimated from the longest length that was measured.
    """
    known = [row for row in before if row["mechanism"] == name and row["milliseconds"] is not None]
    if any(row["mechanism"] == name and row["skipped"] for row in before):
        return next(row["skipped"] for row in before if row["mechanism"] == name and row["skipped"])
    if known:
        at, seconds, size = (
            known[-1]["tokens"],
            known[-1]["milliseconds"] / 1e3,
            known[-1]["megabytes"] / 1e3,
        )
    elif n <= PROBE:
        return None
    else:
        call, at = _call(name, PROBE, scale, causal, device), PROBE
        with torch.no_grad():
            size = peak_bytes(call, device) / 1e9
            seconds = medians(in_rounds({name: _finished(call, device)}, Pace(0.0, 3)))[name]
    more = (n / at) ** (1 if find(name).linear else 2)
    if size * more > GIGABYTES:
        return f"from {n} tokens on a call would hold about {size * more:.0f} GB"
    if seconds * more > SECONDS:
        return f"from {n} tokens on a call would take about {seconds * more:.0f} s"
    return None


def recurrence_race(scale: SpeedScale, device: torch.device) -> list[Row]:
    """The gated delta rule token by token and in chunks, for several numbers of heads.

    Both take turns on the same inputs.

    Timed are a forward pass, and the forward and backward pass of a training step. Token by token
    the number of calls decides, and it is the same for one head as for eight: the fewer heads, the
    more the chunks gain.
    """
    found = []
    for heads in scale.races:
        q, k, v, x = _tensors(scale.recurrence, replace(scale, heads=heads), device)
        q, k = F.normalize(q, dim=3), F.normalize(k, dim=3)
        # (B, H, n)
        alpha, beta = (t.sigmoid() for t in (x[..., :heads].mT + 4, x[..., -heads:].mT))
        for training in (False, True):
            given = [t.clone().requires_grad_(training) for t in (q, k, v, alpha, beta)]
            found.append({"heads": heads, "pass": PASSES[training], **_race(given, scale, device)})
    return found


def _race(given: Sequence[Tensor], scale: SpeedScale, device: torch.device) -> Row:
    """Milliseconds of both forms, and by how much their outputs differ at most."""
    from ..attention.delta_rule import chunked, recurrent

    training = given[0].requires_grad

    def whole(form: Callable[..., Tensor]) -> Tensor:
        with torch.set_grad_enabled(training):
            out = form(*given)
            if training:
                torch.autograd.grad(out.square().sum(), given)
        return out.detach()

    calls = {
        "loop": functools.partial(whole, recurrent),
        "chunks": functools.partial(whole, chunked),
    }
    difference = float((calls["loop"]() - calls["chunks"]()).abs().max())
    seconds = medians(
        in_rounds(
            {name: _finished(call, device) for name, call in calls.items()}, Pace(scale.seconds, 3)
        )
    )
    return {
        "tokens": scale.recurrence,
        "loop_milliseconds": 1e3 * seconds["loop"],
        "chunks_milliseconds": 1e3 * seconds["chunks"],
        "times_faster": seconds["loop"] / seconds["chunks"],
        "largest_difference": difference,
    }


def summarised(rows: Sequence[Row]) -> list[Row]:
    """One row per mechanism: exponent, crossover with its yardstick, the longest input.

    The exponent is from 2,048 tokens on; the yardstick is that of its direction.
    """
    found = []
    keys = list(dict.fromkeys((row["mechanism"], row["direction"]) for row in rows))
    times = {
        key: {
            row["tokens"]: row["milliseconds"]
            for row in rows
            if (row["mechanism"], row["direction"]) == key and row["milliseconds"] is not None
        }
        for key in keys
    }
    for name, direction in keys:
        mine, yard = times[name, direction], times.get((YARDSTICK, direction), {})
        longest = max(mine, default=None)
        last = (
            {}
            if longest is None
            else next(
                row
                for row in rows
                if (row["mechanism"], row["direction"], row["tokens"]) == (name, direction, longest)
            )
        )
        found.append(
            {
                "mechanism": name,
                "direction": direction,
                "exponent": exponent(mine),
                "crossover": None if name == YARDSTICK else crossover(mine, yard),
                "longest": longest,
                "milliseconds": last.get("milliseconds"),
                "megabytes": last.get("megabytes"),
                "times_sdpa": mine[longest] / yard[longest] if longest in yard else None,
            }
        )
    return found


def sentence(summary: Sequence[Row], race: Sequence[Row]) -> str:
    """How many end below torch's own attention, the earliest and the latest of them, in words."""
    others = [row for row in summary if row["mechanism"] != YARDSTICK]
    below = sorted(
        (row for row in others if row["crossover"] is not None), key=lambda row: row["crossover"]
    )
    message = [f"{row['mechanism']} from {_rounded(row['crossover'])} tokens on" for row in below]
    which = (
        f" (the earliest: {message[0]}; the latest: {message[-1]})"
        if len(message) > 1
        else f" ({message[0]})"
        if message
        else ""
    )
    least, most = (pick(row["times_faster"] for row in race) for pick in (min, max))
    return (
        f"{len(below)} of {len(others)} mechanisms end up faster than torch's own attention{which};"
        f" {_held_to(others)}the gated delta rule in chunks is {least:.0f} to {most:.0f} times as"
        f" fast as token by token at {race[0]['tokens']:,} tokens."
    )


def _held_to(rows: Sequence[Row]) -> str:
    """How many linear mechanisms do what is expected of them, in words.

    Empty where no length was long enough to tell.
    """
    linear = [
        row for row in rows if row.get("exponent") is not None and find(row["mechanism"]).linear
    ]
    if not linear:
        return ""
    grows = sum(row["exponent"] <= EXPONENT for row in linear)
    early = sum(row["crossover"] is not None and row["crossover"] < CROSSOVER for row in linear)
    return (
        f"of {numbered(len(linear), 'linear one')} {grows} grow with an exponent of at most"
        f" {EXPONENT} and {early} are faster from below {CROSSOVER:,} tokens on; "
    )


def _rounded(n: float) -> str:
    return f"{float(f'{n:.2g}'):,.0f}"

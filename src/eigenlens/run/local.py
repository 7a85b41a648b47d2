"""The local engine: one process, one pass, a checkpoint now and then."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from ..stats import State, Statistic
from .files import read_json, read_tensors, write_json, write_tensors


def run_stage(
    forward: Callable[[Mapping[str, Tensor]], Any],
    batches: Iterable[tuple[int, Mapping[str, Tensor]]],
    done: int,
    after: Callable[[int], None],
) -> None:
    """Feed `batches` to `forward`, with `after(done)` behind each; `done` inputs of the stage were done before."""
    for number, batch in batches:
        forward(batch)
        done += number
        after(done)


@dataclass
class Checkpoints:
    """Where a run stands, on disk: a state file, and `progress.json` that names it and is written last.

    Two state files take turns, so that the one before is whole until the next one is. A state is written at most every
    `seconds`, and writing takes at most a twentieth of the time.
    """

    folder: Path
    seconds: float = 30.0
    _last: float = field(default_factory=time.monotonic)
    _cost: float = 0.0
    _turn: int = 0

    @property
    def path(self) -> Path:
        return self.folder / "progress.json"

    def due(self) -> bool:
        return time.monotonic() - self._last > max(self.seconds, 20 * self._cost)

    def save(self, stage: str, done: int, state: State) -> None:
        begin = time.monotonic()
        self._turn ^= 1
        name = f"state-{self._turn}.safetensors"
        write_tensors(self.folder / name, state)
        write_json(self.path, {"stage": stage, "done": done, "state": name})
        self._last = time.monotonic()
        self._cost = self._last - begin

    def load(self) -> tuple[str, int, State] | None:
        """The stage, the inputs done in it and the state; None where nothing has been saved yet."""
        if not self.path.is_file():
            return None
        standing = read_json(self.path)
        self._turn = int(standing["state"] == "state-1.safetensors")
        return standing["stage"], int(standing["done"]), read_tensors(self.folder / standing["state"])


def pack_states(statistics: Mapping[str, Statistic]) -> State:
    return {f"{name}:{key}": x for name, statistic in statistics.items() for key, x in statistic.state().items()}


def unpack_states(state: State, names: Sequence[str]) -> dict[str, State]:
    parts: dict[str, State] = {name: {} for name in names}
    for key, tensor in state.items():
        name, _, rest = key.partition(":")
        if name in parts:
            parts[name][rest] = tensor
    return parts

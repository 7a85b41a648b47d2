"""Checkpoints: the progress of a run, on disk."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import EigenlensError, EigenlensWarning
from ..stats import State, Statistic
from .arrays import aligned
from .files import read_json, read_tensors, seal, sha256, write_json, write_tensors

TURNS = 2
WRITTEN_PER_SECOND = 200e6
"""Bytes that are written and digested in a second, until a checkpoint has shown it."""


@dataclass
class Checkpoints:
    """Two checkpoints that are written in turn, so that one of them is always complete.

    Each is a file of tensors and a JSON file. The JSON file is written last and holds digests of
    the tensors, of the files that the checkpoint builds on, and of itself. If a checkpoint was cut
    short or changed, the older one is used. A checkpoint is written at most every `seconds`, and
    writing takes at most a twentieth of the time: the first one is expected to take as long as its
    size says (`expect`).
    """

    folder: Path
    seconds: float = 30.0
    _last: float = field(default_factory=time.monotonic)
    _cost: float = 0.0
    _number: int = 0
    _built_on: dict[str, str] = field(default_factory=dict)

    def due(self) -> bool:
        return time.monotonic() - self._last > max(self.seconds, 20 * self._cost)

    @property
    def any(self) -> bool:
        """Whether a checkpoint has been written."""
        return self._number > 0

    def expect(self, size: int) -> None:
        """Say how many bytes the first checkpoint would write; later ones are timed."""
        if not self.any:
            self._cost = size / WRITTEN_PER_SECOND

    def save(
        self, standing: Mapping[str, Any], state: State, builds_on: Sequence[str] = ()
    ) -> None:
        """Write the progress of the run, as JSON, and its state.

        `builds_on` are further files of the folder that the checkpoint needs.
        """
        begin = time.monotonic()
        turn = self._number % TURNS
        tensors, mark = (
            self.folder / f"checkpoint-{turn}.safetensors",
            self.folder / f"checkpoint-{turn}.json",
        )
        mark.unlink(missing_ok=True)  # what it says is over
        write_tensors(tensors, state)
        for name in builds_on:
            self._built_on.setdefault(name, sha256(self.folder / name))
        files = {
            tensors.name: sha256(tensors),
            **{name: self._built_on[name] for name in builds_on},
        }
        content = {"number": self._number + 1, "standing": dict(standing), "files": files}
        write_json(mark, {**content, "digest": seal(content)})
        self._number += 1
        self._last = time.monotonic()
        self._cost = self._last - begin

    def load(self) -> tuple[dict[str, Any], State] | None:
        """Return the progress of the run and its state.

        None if no complete checkpoint was saved.
        """
        found, damaged = [], []
        for turn in range(TURNS):
            mark = self.folder / f"checkpoint-{turn}.json"
            if mark.exists():
                try:
                    found.append((self._read(mark), turn))
                except EigenlensError as error:
                    damaged.append(str(error))
        for content, turn in sorted(found, key=lambda pair: -pair[0]["number"]):
            try:
                for name, digest in content["files"].items():
                    if not (self.folder / name).is_file() or sha256(self.folder / name) != digest:
                        raise EigenlensError(
                            f"{self.folder / name} has changed since it was written"
                        )
                state = aligned(read_tensors(self.folder / f"checkpoint-{turn}.safetensors"))
            except EigenlensError as error:
                damaged.append(str(error))
                continue
            self._number = content["number"]
            self._built_on = {
                name: digest
                for name, digest in content["files"].items()
                if not name.startswith("checkpoint-")
            }
            self._tell(damaged, "going on from the older checkpoint")
            return content["standing"], state
        self._tell(damaged, "starting again from the beginning")
        return None

    @staticmethod
    def _read(mark: Path) -> dict[str, Any]:
        content = read_json(mark)
        digest = content.pop("digest", None) if isinstance(content, dict) else None
        if digest is None or digest != seal(content):
            raise EigenlensError(f"{mark} has changed since it was written")
        return content

    @staticmethod
    def _tell(damaged: Sequence[str], then: str) -> None:
        if damaged:
            warnings.warn(
                f"a checkpoint is damaged ({'; '.join(damaged)}); {then}",
                EigenlensWarning,
                stacklevel=3,
            )


def pack_states(statistics: Mapping[str, Statistic]) -> State:
    return {
        f"{name}:{key}": x
        for name, statistic in statistics.items()
        for key, x in statistic.state().items()
    }


def unpack_states(state: State, names: Sequence[str]) -> dict[str, State]:
    parts: dict[str, State] = {name: {} for name in names}
    for key, tensor in state.items():
        name, _, rest = key.partition(":")
        if name in parts:
            parts[name][rest] = tensor
    return parts

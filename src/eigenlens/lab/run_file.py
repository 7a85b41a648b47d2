"""One file per training run.

The task, the model and the training, read from TOML and checked key by key.
"""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, get_type_hints

from ..errors import EigenlensError
from ..hints import describe_type, fits_type
from ..names import unknown_name
from .composition import Composition
from .config import Config
from .digits import Digits
from .nearest import NearestNeighbour
from .tasks import LearningTask, MaskedBytes, NextBytes, NextTokens, Text
from .toys import Circle, ConvexHull, Memorise, Repeated, Sort
from .training_loop import TrainingSettings

TASKS: dict[str, type[Any]] = {
    "next-bytes": NextBytes,
    "next-tokens": NextTokens,
    "masked-bytes": MaskedBytes,
    "composition": Composition,
    "nearest-neighbour": NearestNeighbour,
    "sort": Sort,
    "repeated": Repeated,
    "convex-hull": ConvexHull,
    "memorise": Memorise,
    "circle": Circle,
    "digits": Digits,
}
BY_TASK = ("vocabulary", "features", "classes", "length", "pooled")
"""Settings of the model that the task decides."""
LARGEST = 2**31 - 1
SHARES = ("held_out", "masked")
FROM = {"seed": 0, "jitter": 0, "points": 2}
"""The least value of a task's numbers, where that is not 1."""


@dataclass(frozen=True)
class RunFile:
    """A training run as a file gives it: sections `[task]`, `[model]`, `[training]`.

    >>> RunFile.read("run.toml")
    >>> RunFile.of({"task": {"name": "sort"}, "model": {"layers": 2}, "training": {"steps": 300}})
    """

    task: str
    options: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)
    training: TrainingSettings = field(default_factory=lambda: TrainingSettings(500))
    seeds: tuple[int, ...] = (0,)
    device: str = "auto"

    @classmethod
    def read(cls, path: str | Path) -> RunFile:
        """A run from a TOML file.

        If something is wrong with it, the error names the key.
        """
        try:
            content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise EigenlensError(
                f"{path} cannot be read: {error.strerror}; `eigenlens train --example` prints one"
            ) from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise EigenlensError(f"{path} is not TOML: {error}") from error
        try:
            return cls.of(content)
        except EigenlensError as error:
            raise EigenlensError(f"{path}: {error}") from error

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> RunFile:
        """A run from what the file holds."""
        if not isinstance(content, Mapping):
            raise EigenlensError(
                f"a run is a table with task, model and training, not a {type(content).__name__}"
            )
        _check("the file", content, dict.fromkeys(("task", "model", "training"), Mapping))
        task, model, training = (
            dict(content.get(name, {})) for name in ("task", "model", "training")
        )
        if "name" not in task:
            raise EigenlensError(f"[task] has no name; there are {', '.join(TASKS)}")
        if (name := task.pop("name")) not in TASKS:
            raise unknown_name("task", name, TASKS)
        _check("[task]", task, task_keys(name))
        _check_ranges(task)
        if fixed := [key for key in BY_TASK if key in model]:
            raise EigenlensError(
                f"[model] {fixed[0]} is set by the task {name}; what a task lets you choose goes in"
                " [task]"
            )
        _check("[model]", model, model_keys())
        if "steps" not in training:
            raise EigenlensError("[training] has no steps, such as steps = 500")
        _check("[training]", training, training_keys())
        seeds, device = tuple(training.pop("seeds", (0,))), training.pop("device", "auto")
        # the largest is checked with all numbers
        if not seeds or len(set(seeds)) != len(seeds) or min(seeds) < 0:
            raise EigenlensError(
                f"[training] seeds is a list of different numbers from 0 on, not {list(seeds)}"
            )
        try:
            settings = TrainingSettings(**training)
        except EigenlensError as error:
            raise EigenlensError(f"[training] {error}") from error
        return cls(name, task, model, settings, seeds, device)

    def with_steps(self, steps: int | None) -> RunFile:
        """The same run for another number of steps; None changes nothing."""
        return (
            self if steps is None else replace(self, training=replace(self.training, steps=steps))
        )

    def build(self) -> LearningTask:
        """The task, with its data read."""
        kind: Any = TASKS[self.task]
        try:
            made: LearningTask = (
                kind.from_data(**self.options) if issubclass(kind, Text) else kind(**self.options)
            )
        except EigenlensError as error:
            raise EigenlensError(f"[task] {error}") from error
        return made

    def config(self, task: Any) -> Config:
        """The model of the task."""
        try:
            config: Config = task.config(**self.model)
        except EigenlensError as error:
            raise EigenlensError(f"[model] {error}") from error
        if getattr(task, "causal", False) and not config.causal:
            raise EigenlensError(
                f"[model] causal: the task {self.task} asks for what comes next, and needs a causal"
                " model"
            )
        return config

    def record(self) -> dict[str, Any]:
        """As JSON, and as `of` reads it."""
        settings = {
            key: value
            for key, value in asdict(self.training).items()
            if key != "seed" and value is not None
        }
        return {
            "task": {"name": self.task, **as_lists(self.options)},
            "model": as_lists(self.model),
            "training": {**settings, "seeds": list(self.seeds), "device": self.device},
        }


def task_keys(name: str) -> dict[str, Any]:
    """What can be chosen of a task, with its type.

    These are the arguments of its class, and for text where it comes from.
    """
    kind: Any = TASKS[name]
    makers: list[Callable[..., Any]] = [
        kind.__init__,
        *([kind.from_data.__func__] if issubclass(kind, Text) else []),
    ]
    found: dict[str, Any] = {}
    for maker in makers:
        hints = get_type_hints(maker)
        for parameter in list(inspect.signature(maker).parameters.values())[1:]:
            if parameter.kind is parameter.POSITIONAL_OR_KEYWORD and parameter.name not in (
                "train",
                "held",
            ):
                found[parameter.name] = hints[parameter.name]
            elif parameter.name == "train" and hints["train"] is int:
                # how many, where it is not the documents themselves
                found["train"] = int
    return found


def model_keys() -> dict[str, Any]:
    return {key: hint for key, hint in get_type_hints(Config).items() if key not in BY_TASK}


def training_keys() -> dict[str, Any]:
    hints = {key: hint for key, hint in get_type_hints(TrainingSettings).items() if key != "seed"}
    return {**hints, "seeds": Sequence[int], "device": str}


def _check(where: str, content: Mapping[str, Any], keys: Mapping[str, Any]) -> None:
    for key, value in content.items():
        if key not in keys:
            has = ", ".join(keys) or "none"
            raise EigenlensError(f"{where} has no key {key!r}; there are {has}")
        if not fits_type(value, keys[key]):
            raise EigenlensError(f"{where} {key} is {describe_type(keys[key])}, not {value!r}")
        for number in _numbers(value):
            if not -LARGEST <= number <= LARGEST:  # nan is not, either
                raise EigenlensError(
                    f"{where} {key} is a number of at most {LARGEST:,}, not {number}"
                )


def _check_ranges(task: Mapping[str, Any]) -> None:
    """Sizes of a task are at least 1, shares between 0 and 1."""
    for key, value in task.items():
        for number in _numbers(value):
            if key in SHARES and not 0 < number < 1:
                raise EigenlensError(f"[task] {key} is a share between 0 and 1, not {number}")
            if key not in SHARES and number < (least := FROM.get(key, 1)):
                raise EigenlensError(f"[task] {key} is at least {least}, not {number}")


def _numbers(value: Any) -> list[float]:
    each = value if isinstance(value, list | tuple) else [value]
    return [
        number
        for number in each
        if isinstance(number, int | float) and not isinstance(number, bool)
    ]


def as_lists(value: Any) -> Any:
    """As JSON holds it: lists for tuples, all the way down."""
    if isinstance(value, Mapping):
        return {key: as_lists(item) for key, item in value.items()}
    return [as_lists(item) for item in value] if isinstance(value, list | tuple) else value

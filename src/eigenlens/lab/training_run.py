"""A training run in a folder: every seed trained, its weights kept, all as one result."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from ..attention.registry import RENAMED
from ..display import numbered, percent
from ..errors import EigenlensError, first_line
from ..models.device import device_named
from ..passes.versions import versions
from ..run.files import disk_errors, locked, read_json, read_tensors, write_json, write_tensors
from ..run.parts import Parts
from ..run.progress import Progress, silent
from ..run.result import ResultViews, TitledTable, copy_files
from ..shell import command
from .config import Config
from .model import Transformer
from .run_file import RunFile, as_lists
from .tasks import LearningTask
from .training_loop import train

FACTS = {"run", "config", "versions", "weights", "multiply_adds", "seeds"}


class TrainingRun(ResultViews):
    """What a training run came to.

    The held-out loss along training, for every seed, and the trained models.

    >>> done = TrainingRun.open("run")
    >>> done.rows()                       # seed, step, loss, accuracy, seconds
    >>> done.model(seed=0)(ids)           # a Transformer with the trained weights
    >>> print(done.sentence)
    """

    def __init__(self, facts: Mapping[str, Any], folder: Path) -> None:
        self.stored, self.folder = dict(facts), folder

    @classmethod
    def open(cls, folder: str | Path) -> TrainingRun:
        """Open the folder of a finished run."""
        path = Path(folder) / "run.json"
        if not path.is_file():
            how = command("train", "run.toml", "-o", Path(folder))
            raise EigenlensError(
                f"{folder} holds no finished training run (no run.json); make one with: {how}"
            )
        facts = read_json(path)
        if not isinstance(facts, dict) or (missing := FACTS - set(facts)):
            what = (
                f"it lacks {', '.join(sorted(missing))}"
                if isinstance(facts, dict)
                else "it has no facts"
            )
            raise EigenlensError(f"{path} is damaged or of another version: {what}; train anew")
        if not isinstance(facts["seeds"], list) or not facts["seeds"]:
            raise EigenlensError(
                f"{path} is damaged or of another version: it has no seeds; train anew"
            )
        return cls(_with_names_of_today(facts), Path(folder))

    @property
    def run(self) -> RunFile:
        """What was asked for."""
        return RunFile.of(self.stored["run"])

    @property
    def config(self) -> Config:
        try:
            return Config(**self.stored["config"])
        except TypeError as error:
            raise EigenlensError(
                f"{self.folder / 'run.json'} is damaged or of another version: {error}; train anew"
            ) from error

    @property
    def name(self) -> str:
        """What was trained on what: `markov: 3,210 weights`."""
        return f"{self.stored['run']['task']['name']}: {self.stored['weights']:,} weights"

    @property
    def title(self) -> str:
        return f"Training run, {self.name}"

    @property
    def notes(self) -> tuple[str, ...]:
        return ()

    def model(self, seed: int | None = None) -> Transformer:
        """The trained model of a seed, the first one by default; ready to be asked, on the CPU."""
        seeds = [one["seed"] for one in self.stored["seeds"]]
        seed = seeds[0] if seed is None else seed
        if seed not in seeds:
            raise EigenlensError(f"no model of seed {seed}; there are {', '.join(map(str, seeds))}")
        model = _fresh(self.config, seed)
        path = self.folder / f"seed-{seed}" / "model.safetensors"
        try:
            model.load_state_dict(read_tensors(path))
        except RuntimeError as error:
            raise EigenlensError(
                f"{path} does not fit the model of {self.folder / 'run.json'}; train anew"
            ) from error
        return model.eval()

    def rows(self) -> list[dict[str, Any]]:
        """Every measurement: seed, step, held-out loss and accuracy, seconds so far.

        Vectors have no accuracy.
        """
        return [
            {"seed": one["seed"], **point} for one in self.stored["seeds"] for point in one["curve"]
        ]

    def ends(self) -> list[dict[str, Any]]:
        """The last measurement of every seed."""
        return [{"seed": one["seed"], **one["curve"][-1]} for one in self.stored["seeds"]]

    def printed(self) -> list[TitledTable]:
        """What a terminal prints: the end of every seed."""
        return [TitledTable("Held-out loss at the end", self.ends())]

    def save(self, folder: str | Path) -> Path:
        """Copy the run to another folder, with the weights of every seed."""
        weights = [f"seed-{one['seed']}/model.safetensors" for one in self.stored["seeds"]]
        return copy_files(self.folder, [*weights, "run.json"], folder)

    def record(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {**self.stored, "sentence": self.sentence}

    @property
    def sentence(self) -> str:
        """The held-out loss and what it took, in words."""
        ends = self.ends()
        if bad := [end["seed"] for end in ends if end["loss"] is None]:
            return (
                f"Training diverged: no loss of seed {', '.join(map(str, bad))} is a number; lower"
                " the rate."
            )
        losses, right = (
            [end["loss"] for end in ends],
            [end["accuracy"] for end in ends if end["accuracy"] is not None],
        )
        spread = (
            f" ({min(losses):.4g} … {max(losses):.4g} over {numbered(len(ends), 'seed')})"
            if len(ends) > 1
            else ""
        )
        share = f", {percent(mean(right), 1)} right" if right else ""
        return (
            f"{self.stored['run']['task']['name']}: held-out loss {mean(losses):.4g}{spread}{share}"
            f" after {ends[-1]['step']} steps of a model of {self.stored['weights']:,} weights,"
            f" {sum(end['seconds'] for end in ends):.0f} s of training."
        )

    def plot(self) -> Any:
        """Held-out loss against steps, one line per seed (an altair chart)."""
        import altair as alt

        data = alt.Data(values=[row for row in self.rows() if row["loss"] is not None])
        chart = (
            alt.Chart(data)
            .mark_line(point=True)
            .encode(
                x=alt.X("step:Q", title="training steps"),
                y=alt.Y("loss:Q", title="held-out loss", scale=alt.Scale(zero=False)),
                color=alt.Color("seed:N", title="seed"),
                tooltip=[
                    "seed:N",
                    "step:Q",
                    alt.Tooltip("loss:Q", format=".4g"),
                    alt.Tooltip("accuracy:Q", format=".3f"),
                ],
            )
        )
        return chart.properties(title=self.stored["run"]["task"]["name"], width=360, height=240)

    def __repr__(self) -> str:
        return f"<training run in {self.folder}: {self.sentence}>"


def run(
    config: RunFile | Mapping[str, Any] | str | Path,
    output_dir: str | Path,
    *,
    steps: int | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress = silent,
    every: float = 20.0,
) -> TrainingRun:
    """Train every seed of a run and keep all in a folder.

    The folder holds `run.json`, and `seed-0/model.safetensors` for each seed.

    Parameters
    ----------
    config : RunFile, mapping, str or Path
        What is trained: a `RunFile`, the content of its file, or the file (TOML).
    output_dir : str or Path
        The folder of the run.
    steps : int, optional
        Training steps. Default: those of `config`.
    resume : bool, default False
        Go on with an interrupted run, to the identical end.
    overwrite : bool, default False
        Overwrite an existing run.
    progress : callable, optional
        Called with `(what, done, total)` while it trains. Default: silent.
    every : float, default 20.0
        Seconds between two checkpoints, at least.

    Returns
    -------
    TrainingRun
        The held-out loss along training for every seed, and the trained models.

    Raises
    ------
    EigenlensError
        If the config is wrong, the folder is taken, or the run does not fit into memory.

    Examples
    --------
    >>> run("run.toml", "first-run").sentence
    """
    asked = (
        config
        if isinstance(config, RunFile)
        else RunFile.of(config)
        if isinstance(config, Mapping)
        else RunFile.read(config)
    ).with_steps(steps)
    task = asked.build()
    shape = asked.config(task)
    device_named(asked.device)  # refused before anything is written
    if overwrite and Path(output_dir).is_dir():
        # a run that is still going on is not to be deleted under its feet
        with locked(Path(output_dir)):
            pass
    parts = Parts.begin(Path(output_dir), asked.record(), resume, overwrite, what="training run")
    with locked(parts.folder):
        seeds = [
            _one_seed(asked, task, shape, seed, parts, progress, every) for seed in asked.seeds
        ]
        model = _fresh(shape, asked.seeds[0])
        facts = {
            "run": asked.record(),
            "config": as_lists(asdict(shape)),
            "versions": versions(),
            "weights": sum(p.numel() for p in model.parameters()),
            "multiply_adds": model.cost(task.length),
            "seeds": seeds,
        }
        write_json(parts.folder / "run.json", facts)
    return TrainingRun(facts, parts.folder)


def _one_seed(
    asked: RunFile,
    task: LearningTask,
    config: Config,
    seed: int,
    parts: Parts,
    progress: Progress,
    every: float,
) -> dict[str, Any]:
    """A seed trained, or found trained: its curve, its weights on disk."""
    name = f"seed-{seed}/trained"
    if not parts.has(name):
        folder = parts.folder / f"seed-{seed}"
        checkpoint = folder / "checkpoint.safetensors"
        with disk_errors(folder):
            folder.mkdir(exist_ok=True)
        model = _fresh(config, seed).to(device_named(asked.device))
        settings = replace(asked.training, seed=seed)
        try:
            done = train(
                model,
                task,
                settings,
                progress=progress,
                label=f"training seed {seed}",
                checkpoint=checkpoint,
                every=every,
            )
        except RuntimeError as error:
            if "memory" not in str(error) and "allocate" not in str(error):
                raise
            raise EigenlensError(
                f"the run does not fit into memory: {first_line(error)}; choose a smaller batch"
            ) from error
        write_tensors(folder / "model.safetensors", model.state_dict())
        points = [{key: _number(value) for key, value in point.items()} for point in done.rows()]
        parts.write(
            name,
            {
                "seed": seed,
                "steps": done.steps,
                "seconds": done.seconds,
                "flops": done.flops,
                "curve": points,
            },
        )
        with disk_errors(checkpoint):
            checkpoint.unlink(missing_ok=True)
    found: dict[str, Any] = parts.read(name)
    return found


def _fresh(config: Config, seed: int) -> Transformer:
    """A model at its start, which depends on the seed alone.

    The caller's random numbers stay as they are.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Transformer(config)


def _with_names_of_today(value: Any) -> Any:
    """A record in which mechanisms have the names that this version knows them by."""
    if isinstance(value, dict):
        return {_with_names_of_today(key): _with_names_of_today(x) for key, x in value.items()}
    if isinstance(value, list):
        return [_with_names_of_today(x) for x in value]
    return RENAMED.get(value, value) if isinstance(value, str) else value


def _number(value: float) -> float | None:
    """What JSON can hold: None for nan and ∞."""
    return value if math.isfinite(value) else None

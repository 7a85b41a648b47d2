"""The authors' own trainings of sort, convex hull and memorise, with the settings of their scripts.

Batches come in a fixed order and the rate is constant, or falls in the way a script has it.
Accuracies of path lengths are those of a few random paths whose streams are added up, see
`AuthorsModel.along_paths`.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...collapses.sampling import draw_paths
from ...display import numbered
from ...lab import ConvexHull, Sort, TaskBatch, Toy
from ...models.load import load
from ...run.parts import Parts
from ...run.progress import Progress, silent
from ..inputs import token_ids
from .authors_model import SKIPPED, AuthorsModel, AuthorsShape
from .authors_settings import FACTOR, MILESTONES, AuthorsTrial

KEYS = ("task", "mode", "reading", "length")
"""What the rows of a table are told apart by."""


class Labelled(Toy):
    """Sequences of real text, every token with a random one of two labels; no order is told.

    They are measured on themselves. Equal tokens of a sequence cannot be told apart, so that
    `ceiling` is the most that can be right.
    """

    classes = 2
    ordered = False

    def __init__(self, ids: Tensor, seed: int = 0) -> None:
        # tokens by their order of appearance: the embedding needs only those that occur
        known, tokens = ids.unique(return_inverse=True)
        self.vocabulary, self.length = len(known), ids.shape[1]
        generator = torch.Generator().manual_seed(seed)
        whole = TaskBatch(tokens, torch.randint(2, ids.shape, generator=generator))
        super().__init__(whole, whole)

    @property
    def ceiling(self) -> float:
        """The accuracy of the commoner label of each token in each sequence."""
        ones = torch.zeros(len(self.train.inputs), self.vocabulary or 0)
        ones.scatter_add_(1, self.train.inputs, self.train.targets.float())
        all_of_them = torch.zeros_like(ones)
        all_of_them.scatter_add_(1, self.train.inputs, torch.ones_like(self.train.inputs).float())
        right = torch.maximum(ones, all_of_them - ones).sum()
        return float(right / self.train.inputs.numel())


def make_task(trial: AuthorsTrial, seed: int) -> Toy:
    """The task of a trial with its data."""
    if trial.task == "sort":
        return Sort(seed=seed, **trial.data)
    if trial.task == "convex hull":
        return ConvexHull(seed=seed, **trial.data)
    return Labelled(_text(**trial.data), seed)


def _text(text: str, number: int, length: int) -> Tensor:
    return token_ids(load("minilm"), text, length, number, 0)


def make_model(trial: AuthorsTrial, toy: Toy) -> AuthorsModel:
    """The model of a trial; the size of its vocabulary is the task's."""
    sizes = {"vocabulary": toy.vocabulary, "features": toy.features, "classes": toy.classes}
    return AuthorsModel(AuthorsShape(**{**vars(trial.shape), **sizes}))


def train_as_authors(
    model: AuthorsModel,
    toy: Toy,
    trial: AuthorsTrial,
    seed: int = 0,
    progress: Progress = silent,
    label: str = "training",
) -> float:
    """Train in place; returns the loss of the last batch."""
    inputs, targets = toy.train.inputs, toy.train.targets
    optimiser = torch.optim.Adam(model.parameters(), lr=trial.rate, weight_decay=trial.decay)
    linear, steps = trial.schedule == "linear", trial.epochs * -(-len(inputs) // trial.batch)
    generator, step, loss = torch.Generator().manual_seed(seed), 0, torch.tensor(0.0)
    model.train()
    for epoch in range(trial.epochs):
        order = torch.arange(len(inputs))
        if linear:
            order = torch.randperm(len(inputs), generator=generator)
        for chosen in order.split(trial.batch):
            optimiser.param_groups[0]["lr"] = rate_at(trial, epoch, step / steps)
            loss = F.cross_entropy(model(inputs[chosen]).flatten(0, 1), targets[chosen].flatten())
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            if linear:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            step += 1
        progress(label, epoch + 1, trial.epochs)
    model.eval()
    return float(loss.detach())


def rate_at(trial: AuthorsTrial, epoch: int, share: float) -> float:
    """The rate in an epoch, after a share of all steps."""
    if trial.schedule == "linear":
        return trial.rate * (1 - share)
    falls = sum(epoch >= at for at in MILESTONES) if trial.schedule == "steps" else 0
    return trial.rate * FACTOR**falls


def random_path(layers: int, heads: int, hops: int, number: int, seed: int) -> list[list[int]]:
    """`number` random paths of that many hops: a head for every layer, or `SKIPPED`."""
    sample = draw_paths(torch.ones(layers, heads), hops, number, seed)
    every = torch.stack([sample.head_at(layer) for layer in range(layers)], 1)
    return torch.where(every < 0, SKIPPED, every).tolist()


@torch.no_grad()
def accuracy_rows(
    model: AuthorsModel, toy: Toy, trial: AuthorsTrial, seed: int
) -> Iterator[dict[str, Any]]:
    """The whole model's accuracy, what can be guessed, and that of paths of every length."""
    asked = toy.test.inputs[: trial.test], toy.test.targets[: trial.test]

    def share(answer: Any) -> float:
        pieces = zip(*(part.split(50) for part in asked))
        right = [(answer(x).argmax(2) == y).double() for x, y in pieces]
        return float(torch.cat(right).mean())

    def row(reading: str, length: int | None, accuracy: float) -> dict[str, Any]:
        mode = "authors" if length is not None else "baseline"
        return {"mode": mode, "reading": reading, "length": length, "accuracy": accuracy}

    yield {**row("whole", None, share(model)), "mode": "model"}
    commonest = toy.train.targets.flatten().mode().values
    yield row("majority", None, float((asked[1] == commonest).double().mean()))
    if isinstance(toy, Labelled):
        yield row("ceiling", None, toy.ceiling)
    shape = trial.shape
    for number in trial.numbers:
        for hops in range(shape.layers + 1):
            draws = [
                share(
                    partial(
                        model.along_paths,
                        paths=random_path(shape.layers, shape.heads, hops, number, draw),
                    )
                )
                for draw in range(1000 * seed, 1000 * seed + trial.repeats)
            ]
            yield row(numbered(number, "path"), hops, sum(draws) / len(draws))


def one_seed(trial: AuthorsTrial, seed: int, progress: Progress = silent) -> list[dict[str, Any]]:
    """Train one model, and read it out along paths."""
    torch.manual_seed(seed)
    toy = make_task(trial, seed)
    model = make_model(trial, toy)
    label = f"training on the task {trial.task} as the authors do"
    loss = train_as_authors(model, toy, trial, seed, progress, label)
    facts = {"task": trial.task, "seed": seed, "loss": loss}
    return [{**facts, **row} for row in accuracy_rows(model, toy, trial, seed)]


def authors_table(
    trials: Sequence[AuthorsTrial], parts: Parts, progress: Progress = silent
) -> list[dict[str, Any]]:
    """A row for every task, mode, reading and length; `accuracy` is the mean over seeds."""
    makes = {
        f"authors/{trial.task.replace(' ', '-')}/seed-{seed}": partial(
            one_seed, trial, seed, progress
        )
        for trial in trials
        for seed in range(trial.seeds)
    }
    stage = f"training {numbered(len(makes), 'model')} as the authors do"
    found: dict[tuple[Any, ...], list[float]] = {}
    for rows in parts.each(makes, progress, stage):
        for row in rows:
            key = tuple(row[name] for name in KEYS)
            found.setdefault(key, []).append(row["accuracy"])
    return [
        {
            **dict(zip(KEYS, key)),
            "accuracy": statistics.mean(each),
            "spread": statistics.stdev(each) if len(each) > 1 else 0.0,
            "each": each,
        }
        for key, each in found.items()
    ]

"""Attention is not all you need: pure attention loses rank doubly exponentially with depth (arXiv
2103.03404).

The published curves are means over 32 texts. Models at their random start are built here from their
configs, with several seeds: where a curve starts depends on the seed more than on the text.
Pretrained BERT, ALBERT and XLNet cannot be had from the package registries; the catalogue's
pretrained models stand in for them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ...collapses.paths import full_length_share
from ...data import datasets
from ...data.needs import check_named, read_by
from ...errors import EigenlensError
from ...models.load import Model, load
from ...run.parts import Parts
from ...run.progress import Here, Progress, silent
from ...run.run_all import Refused
from ...stats.rounding import in_words
from ..claims import Reproduction
from . import training
from .claims import CURVES, DEPTHS, FLOOR, claims_of
from .models import NO_NORM, OTHER_TEXT, catalogue_run, orders, other_run, random_run

PAPER = "rank-collapse"
TITLE = (
    "Attention is not all you need: pure attention loses rank doubly exponentially with depth"
    " (arXiv 2103.03404)"
)
SHARES = {
    "BERT-base": (12, 12, 0.383),
    "DistilBERT": (6, 12, 0.619),
    "BERT-large": (24, 16, 0.233),
    "ViT-H": (32, 16, 0.144),
    "GPT-3": (96, 96, 0.370),
    "DeiT-T": (12, 3, 0.032),
}
"""Layers, heads, and the published share of paths that go through every layer."""
SHOWN = (
    (
        "Relative residual at random start by depth, mean of the seeds, and as published",
        "random by depth",
    ),
    ("Relative residual of pretrained models: the model, and pure attention", "models to read"),
    (
        "Products of patterns along single paths: relative residual by length",
        "single paths to read",
    ),
    (
        (
            "Bounds: share of the heads in which the cubic bound's condition holds; bounds that"
            " were exceeded"
        ),
        "bounds",
    ),
    (
        (
            "Accuracy of what paths of a length add, read out alone (whole: the model; majority:"
            " the commonest answer)"
        ),
        "accuracy by length",
    ),
    ("Two points on a circle, fed back", "circle"),
)


@dataclass(frozen=True)
class Scale:
    """Which random starts and pretrained models, how many texts and seeds, and which training."""

    random: tuple[str, ...]
    layers: int
    width: int
    seeds: int
    models: tuple[str, ...]
    text: str
    length: int
    inputs: int
    paths: int
    training: training.Scale

    def record(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "random": list(self.random),
            "models": list(self.models),
            "training": self.training.record(),
        }


FULL = Scale(
    ("bert", "albert"),
    12,
    768,
    6,
    (
        "minilm",
        "distilbert-gec",
        "flan-t5-small",
        "stories15m",
        "smollm2",
        "dinov2-small",
        "whisper-tiny-en",
    ),
    "wikipedia",
    128,
    32,
    100,
    training.FULL,
)
QUICK = Scale(("bert", "albert"), 3, 48, 1, ("minilm",), "python-docs", 32, 4, 10, training.QUICK)


def check(quick: bool) -> None:
    """Refuse a run whose models and data need libraries that are not here."""
    check_named(read_by(QUICK if quick else FULL), f"the paper {PAPER}")


def reproduce(
    quick: bool = False,
    out: Path = Path(PAPER),
    seed: int = 0,
    progress: Progress = silent,
    *,
    resume: bool = False,
    force: bool = False,
    scale: Scale | None = None,
) -> Reproduction:
    """Measure every claim; what is finished is kept in `out`, and a run with `resume` goes on from
    there.
    """
    scale = scale or (QUICK if quick else FULL)
    check_named(read_by(scale), f"the paper {PAPER}")
    request = {"paper": PAPER, "seed": seed, **scale.record()}
    notes = ["this is a miniature; verdicts of the full run can differ"] if quick else []
    with Parts.held(out, request, resume=resume, force=force) as parts:
        return _measured(scale, parts, request, seed, Here(progress), notes)


def _measured(
    scale: Scale,
    parts: Parts,
    request: dict[str, Any],
    seed: int,
    progress: Progress,
    notes: list[str],
) -> Reproduction:
    starts = [(family, start) for family in scale.random for start in range(scale.seeds)]
    own = {
        f"random/{family}-{start}": partial(random_run, family, start, scale, seed, progress)
        for family, start in starts
    }
    runs = parts.each(own, progress, "random models")
    changed = {
        f"random/{family}-{start}-{what.replace(' ', '-')}": partial(
            other_run, what, family, start, scale, seed
        )
        for family, start in starts
        for what in (NO_NORM, OTHER_TEXT)
    }
    others = parts.each(changed, progress, "random models, otherwise")
    models = _models(scale, parts, seed, progress, notes)
    circles = training.circle_table(scale.training, parts, progress)
    tables = {
        "random curves": (curves := _random_curves([*runs, *others])),
        "random by depth": _by_depth(curves),
        "models": (pretrained := [row for model in models for row in model["curves"]]),
        "models to read": in_words(pretrained, {name for row in pretrained for name in row}, FLOOR),
        "single paths": (single := _single(runs, models)),
        "single paths to read": in_words(single, ("residual",), FLOOR),
        "path shares": [
            {
                "model": name,
                "layers": layers,
                "heads": heads,
                "published": share,
                "measured": full_length_share(layers, heads),
            }
            for name, (layers, heads, share) in SHARES.items()
        ],
        "orders": parts.part("orders", partial(orders, seed)),
        "bounds": [row for model in [*runs, *models] for row in model["bounds"]],
        "path accuracy": (accuracy := training.path_table(scale.training, parts, progress)),
        "accuracy by length": _by_length(accuracy),
        "circle": [_circle_row(row) for row in circles],
        "trajectories": circles,
        "sentences": [{"model": model["model"], "sentence": model["sentence"]} for model in models],
    }
    done = Reproduction(
        PAPER,
        TITLE,
        claims_of(tables, miniature=scale.layers != 12 or scale.width != 768),
        tables,
        tuple(notes),
        request,
        SHOWN,
    )
    parts.write("reproduction", done.record())
    return done


def _models(
    scale: Scale, parts: Parts, seed: int, progress: Progress, notes: list[str]
) -> list[dict[str, Any]]:
    """The catalogue's models; one that is not to be had is left out, but a cluster that is lost
    ends the run.
    """
    found = []
    for name in scale.models:
        part = f"pretrained/{name}"
        if not parts.has(part):
            try:
                model = _at_hand(name, scale.text)
                parts.write(part, catalogue_run(model, scale, seed, parts.folder, progress))
            except Refused as error:
                notes.append(f"{name} was left out: {error.reason}")
                continue
        found.append(parts.read(part))
        notes += [f"{name}: {note}" for note in found[-1]["notes"]]
    return found


def _at_hand(name: str, text: str) -> Model:
    try:
        model = load(name)
        if model.kind not in {"vision", "audio"}:
            next(iter(datasets.text(text)))
    except EigenlensError as error:
        raise Refused(str(error)) from error
    return model


def _random_curves(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row a family, variant and depth: the mean over seeds, the least and the largest."""
    found: dict[tuple[str, str, int], list[float]] = {}
    for run in runs:
        for row in run["curves"]:
            found.setdefault((row["family"], row["variant"], row["depth"]), []).append(
                row["residual"]
            )
    return [
        {
            "family": family,
            "variant": variant,
            "depth": depth,
            "residual": sum(v) / len(v),
            "low": min(v),
            "high": max(v),
            "seeds": len(v),
        }
        for (family, variant, depth), v in found.items()
    ]


def _by_depth(curves: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row a family and variant, measured and published side by side at the published depths."""
    rows = []
    for (family, variant), published in CURVES.items():
        found = {
            row["depth"]: row["residual"]
            for row in curves
            if (row["family"], row["variant"]) == (family, variant)
        }
        if found:
            depths = {f"depth {depth}": found.get(depth) for depth in DEPTHS}
            measured = {"family": family, "variant": variant, "what": "measured", **depths}
            rows += in_words([measured], depths, FLOOR)
            rows.append(
                {
                    "family": family,
                    "variant": variant,
                    "what": "published",
                    **dict(zip(depths, map(float, published))),
                }
            )
    return rows


def _by_length(accuracy: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row a task and mode: the whole model, the commonest answer, and every length alone, with
    the spread over seeds.
    """
    rows = []
    for task in dict.fromkeys(row["task"] for row in accuracy):
        mine = [row for row in accuracy if row["task"] == task]
        whole = next(row["accuracy"] for row in mine if row["mode"] == "model")
        majority = next(row["accuracy"] for row in mine if row["reading"] == "majority")
        for mode in ("frozen", "rerun"):
            lengths = [
                row
                for row in mine
                if (row["mode"], row["reading"]) == (mode, "alone") and row["length"]
            ]
            message = {
                f"length {row['length']}": f"{row['accuracy']:.3f} ± {row['spread']:.3f}"
                for row in lengths
            }
            rows.append(
                {"task": task, "paths": mode, "whole": whole, "majority": majority, **message}
            )
    return rows


def _single(runs: list[dict[str, Any]], models: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The residual of single paths by length: of random starts the mean over seeds, of pretrained
    models their own.
    """
    found: dict[tuple[str, int], list[float]] = {}
    for run in runs:
        for row in run["single"]:
            found.setdefault((f"{run['family']} random", row["attention_hops"]), []).append(
                row["residual"]
            )
    rows = [
        {"model": model, "stack": "encoder", "hops": hops, "residual": sum(v) / len(v)}
        for (model, hops), v in found.items()
    ]
    return rows + [
        {
            "model": model["model"],
            "stack": row["stack"],
            "hops": row["attention_hops"],
            "residual": row["residual"],
        }
        for model in models
        for row in model["single"]
    ]


def _circle_row(row: dict[str, Any]) -> dict[str, Any]:
    """A trajectory in numbers: the distance at the start, the least and the last, steps and turn
    until the end.
    """
    return {
        "variant": row["variant"],
        "jitter": row["jitter"],
        "seed": row["seed"],
        "steps": len(row["distance"]) - 1,
        "stretch": row["stretch"],
        "left": row["left"],
        "distance at start": row["distance"][0],
        "least": min(row["distance"]),
        "at the end": row["distance"][-1],
        "turn": row["turn"][-1],
        "merged": row["merged"],
    }

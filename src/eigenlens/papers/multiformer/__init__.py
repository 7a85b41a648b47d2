"""Multiformer: a mechanism for each head (arXiv 2205.07100).

The paper translates speech; its scores are out of reach here. Its layer configurations are built
and run, its head relevance is mapped for loaded models, and its question (does a mix of cheap heads
do what full attention does, and do the heads then count alike?) is asked of a task with the
redundancy of speech: letters that are each repeated four times.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from ...attention.relevance import evenness, head_relevance, head_terms
from ...lab import Config, Repeated, Settings, Transformer, train
from ...run.parts import Parts
from ...run.progress import Progress
from ..claims import Tables
from ..paper import Paper
from .claims import claims_of
from .relevance import catalogue_map, lab_relevance


def heads(local: int, conv: int) -> tuple[tuple[str, int], ...]:
    return ("local", local), ("conv", conv)


CONFIGURATIONS: dict[str, tuple[Any, ...]] = {
    "lc": (heads(2, 2),) * 12,
    "v1": (heads(1, 3),) * 6 + (heads(2, 2),) * 6,
    "v2": (heads(1, 3),) * 3 + (heads(3, 1),) * 5 + (heads(2, 2),) * 4,
}
"""The paper's encoders: the heads of each of 12 layers of 4."""
SETTINGS = {"local": {"window": 33}, "conv": {"kernel": 5, "stride": 2}}
"""A window of 64 tokens: 32 to either side."""
KINDS: dict[str, Any] = {
    "all full": "full",
    "all local": "local",
    "all conv": "conv",
    "1 local, 3 conv": heads(1, 3),
    "2 local, 2 conv": heads(2, 2),
    "3 local, 1 conv": heads(3, 1),
}
"""The heads of every layer in the miniature."""


@dataclass(frozen=True)
class Scale:
    """`inputs` texts of `length` tokens for the maps of `models`; the rest is the miniature's."""

    text: str = "wikipedia"
    length: int = 128
    inputs: int = 16
    models: tuple[str, ...] = ("minilm", "distilbert-gec", "stories15m")
    letters: int = 12
    alphabet: int = 26
    layers: int = 2
    width: int = 64
    steps: int = 200
    seeds: int = 3


FULL = Scale()
QUICK = Scale(
    text="python-docs",
    length=32,
    inputs=4,
    models=("minilm",),
    letters=6,
    alphabet=10,
    width=32,
    steps=25,
    seeds=1,
)


def measure(scale: Scale, parts: Parts, seed: int, progress: Progress) -> Tables:
    facts = parts.part("checks", partial(checks, seed))
    built = parts.part("configurations", partial(configurations, seed))
    maps: list[dict[str, Any]] = []
    for done, name in enumerate(scale.models):
        progress("relevance of loaded models", done, len(scale.models))
        maps += parts.part(
            f"map-{name}",
            partial(catalogue_map, name, scale.text, scale.length, scale.inputs, seed),
        )
    makes = {}
    for start in range(seed, seed + scale.seeds):
        for kind in KINDS:
            slug = kind.replace(",", "").replace(" ", "-")
            makes[f"run-{slug}-{start}"] = partial(miniature, kind, scale, start, progress)
    runs = parts.each(makes, progress, "training")
    return {
        "checks": facts,
        "configurations": built,
        "maps": maps,
        "layers": layer_rows(maps),
        "runs": runs,
        "kinds": kind_rows(runs),
    }


def encoder(name: str, seed: int, width: int = 64) -> Transformer:
    """An encoder of 80 filter banks a frame with the heads of a configuration of the paper."""
    torch.manual_seed(seed)
    return Transformer(
        Config(
            features=80,
            classes=width,
            length=1024,
            width=width,
            layers=12,
            heads=4,
            neighbourly=False,
            mechanism=CONFIGURATIONS[name],
            mechanism_settings=SETTINGS,
        )
    )


@torch.no_grad()
def configurations(seed: int) -> list[dict[str, Any]]:
    """What each configuration costs beside full attention, and whether it gives numbers at 1, 2 and
    100 frames.
    """
    rows = []
    for name in CONFIGURATIONS:
        model = encoder(name, seed)
        whole = [bool(torch.isfinite(model(torch.randn(1, T, 80))).all()) for T in (1, 2, 100)]
        counts = {
            kind: sum(dict(layer).get(kind, 0) for layer in CONFIGURATIONS[name])
            for kind in ("local", "conv")
        }
        full = Transformer(
            Config(features=80, classes=64, length=1024, width=64, layers=12, heads=4)
        )
        shares = {
            f"cost at {n}": model.attention_cost(n) / full.attention_cost(n) for n in (256, 1024)
        }
        rows.append({"configuration": name, **counts, **shares, "runs": all(whole)})
    return rows


@torch.no_grad()
def checks(seed: int) -> list[dict[str, Any]]:
    """What must hold of heads that differ in their mechanism: the size of what should be zero, or
    the number itself.
    """
    torch.manual_seed(seed)
    width, T = 32, 100
    theirs = nn.MultiheadAttention(width, 4, batch_first=True)
    nn.init.normal_(theirs.in_proj_bias)
    nn.init.normal_(theirs.out_proj.bias)
    x = torch.randn(2, T, width)
    full = _layer(width, (("full", 1), ("full", 3)))
    full.project.load_state_dict({"weight": theirs.in_proj_weight, "bias": theirs.in_proj_bias})
    full.out.load_state_dict(theirs.out_proj.state_dict())
    apart = (full(x) - theirs(x, x, x)[0]).abs().max()
    mixed = _layer(width, heads(2, 2))
    z = mixed.head_outputs(x)
    terms = (head_terms(z, mixed.w_o).sum(1) + mixed.out.bias - mixed(x)).abs().max()
    sums = (head_relevance(z, mixed.w_o).sum(1) - 1).abs().max()
    place = torch.arange(T)
    far = (place[:, None] - place).abs() > 32
    outside = mixed.pattern(x)[:, :2, far].abs().max()
    keys = torch.linalg.matrix_rank(
        _layer(4 * 64, heads(2, 2)).double().pattern(torch.randn(1, T, 256).double())[0, 2]
    )
    numbers = all(bool(torch.isfinite(mixed(x[:, :t])).all()) for t in (1, 2, T))
    return [
        {
            "check": "all full heads: farthest from torch's MultiheadAttention",
            "value": float(apart),
        },
        {"check": "terms of the heads and bias: farthest from the output", "value": float(terms)},
        {
            "check": "relevance of the heads of a token: farthest from a sum of 1",
            "value": float(sums),
        },
        {"check": "local heads: largest weight outside the window", "value": float(outside)},
        {"check": "keys of 100 tokens under kernel 5, stride 2", "value": float(keys)},
        {"check": "finite without a mask, also for one token", "value": float(numbers)},
    ]


def _layer(width: int, chosen: Any) -> Any:
    """The attention of a lab layer of four heads."""
    settings = {name: SETTINGS[name] for name in SETTINGS}
    config = Config(
        features=1,
        classes=1,
        width=width,
        layers=1,
        heads=4,
        mechanism=(chosen,),
        mechanism_settings=settings,
    )
    return Transformer(config).attentions[0]


def miniature(kind: str, scale: Scale, seed: int, progress: Progress) -> dict[str, Any]:
    """One training on repeated letters: how much is right, how alike the heads count, what the
    attention costs.
    """
    task = Repeated(letters=scale.letters, alphabet=scale.alphabet)
    torch.manual_seed(seed)
    chosen = {"local": {"window": 6}, "conv": {"kernel": 5, "stride": 2}}
    config = task.config(
        layers=scale.layers,
        width=scale.width,
        heads=4,
        mechanism=KINDS[kind],
        mechanism_settings=chosen,
    )
    model = Transformer(config)
    settings = Settings(scale.steps, batch=32, rate=1e-3, measure=scale.steps, seed=seed)
    done = train(model, task, settings, progress=progress, label=f"{kind}, seed {seed}")
    relevance = lab_relevance(model, next(iter(task.held_out())).inputs)
    full = Transformer(task.config(layers=scale.layers, width=scale.width, heads=4))
    return {
        "heads": kind,
        "seed": seed,
        "accuracy": done.accuracy,
        "loss": done.loss,
        "evenness": float(evenness(relevance).mean()),
        "cost": model.attention_cost(task.length) / full.attention_cost(task.length),
        "relevance": relevance.tolist(),
    }


def layer_rows(maps: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Evenness of each layer of the loaded models, with the least and the most relevant head."""
    found: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for row in maps:
        found[row["model"], row["layer"]].append(row)
    return [
        {
            "model": model,
            "layer": layer,
            "heads": len(some),
            "evenness": some[0]["evenness"],
            "least": min(row["relevance"] for row in some),
            "most": max(row["relevance"] for row in some),
        }
        for (model, layer), some in found.items()
    ]


def kind_rows(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each kind of layer: means over the seeds, the least and the largest accuracy."""
    rows = []
    for kind in KINDS:
        some = [row for row in runs if row["heads"] == kind]
        each = [row["accuracy"] for row in some]
        mean = {
            key: float(np.mean([row[key] for row in some]))
            for key in ("accuracy", "loss", "evenness", "cost")
        }
        rows.append(
            {"heads": kind, **mean, "low": min(each), "high": max(each), "seeds": len(each)}
        )
    return rows


def charts(tables: Tables) -> dict[str, Any]:
    import altair as alt

    from ...spectra.plots import labelled_map

    maps = {}
    for model in dict.fromkeys(row["model"] for row in tables["maps"]):
        rows = [
            {**row, "label": f"{100 * row['relevance']:.0f}"}
            for row in tables["maps"]
            if row["model"] == model
        ]
        title = (
            f"Relevance of the heads of {model}, in hundredths"
            f" ({100 / len({r['head'] for r in rows}):.1f}: all alike)"
        )
        maps[f"map-{model}"] = labelled_map(rows, "relevance", "relevance", title)
    runs = [
        {key: row[key] for key in ("heads", "seed", "accuracy", "evenness")}
        for row in tables["runs"]
    ]
    wide = alt.Scale(zero=False, padding=12)
    points = (
        alt.Chart(alt.Data(values=runs))
        .mark_point(filled=True, size=90, opacity=0.9)
        .encode(
            x=alt.X(
                "evenness:Q",
                title="evenness of head relevance (1: all alike)",
                scale=wide,
                axis=alt.Axis(tickCount=6),
            ),
            y=alt.Y("accuracy:Q", scale=wide),
            color=alt.Color(
                "heads:N",
                sort=list(KINDS),
                scale=alt.Scale(scheme="tableau10"),
                title="heads of each layer",
            ),
            shape=alt.Shape("seed:N", title="seed"),
        )
        .properties(
            width=380, height=280, title="Repeated letters: do heads that count alike do better?"
        )
    )
    return {**maps, "miniature": points}


SHOWN = (
    ("Checks", "checks"),
    ("Layer configurations", "configurations"),
    ("Loaded models", "layers"),
    ("Miniature", "kinds"),
)
NOTES = (
    (
        "a window of 64 is taken as 32 tokens to either side; speech translation itself is out of"
        " reach"
    ),
)
paper = Paper(
    "multiformer",
    "Multiformer: a mechanism for each head (arXiv 2205.07100)",
    FULL,
    QUICK,
    measure,
    claims_of,
    charts,
    SHOWN,
    NOTES,
)

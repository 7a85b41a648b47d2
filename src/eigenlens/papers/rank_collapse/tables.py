"""The rows of the paper's tables, put together from runs."""

from __future__ import annotations

from typing import Any

from ...collapses.paths import full_length_share
from ...stats.rounding import rows_in_words
from .claims import CURVES, DEPTHS, FLOOR

SHARES = {
    "BERT-base": (12, 12, 0.383),
    "DistilBERT": (6, 12, 0.619),
    "BERT-large": (24, 16, 0.233),
    "ViT-H": (32, 16, 0.144),
    "GPT-3": (96, 96, 0.370),
    "DeiT-T": (12, 3, 0.032),
}
"""Layers, heads, and the published share of paths that go through every layer."""


def share_rows() -> list[dict[str, Any]]:
    """The share of paths that go through every layer, published and by the formula."""
    return [
        {
            "model": name,
            "layers": layers,
            "heads": heads,
            "published": share,
            "measured": full_length_share(layers, heads),
        }
        for name, (layers, heads, share) in SHARES.items()
    ]


def random_curves(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per family, variant and depth: the mean over seeds, the least and the largest."""
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


def rows_by_depth(curves: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row per family and variant, measured and published side by side at the published depths."""
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
            rows += rows_in_words([measured], depths, FLOOR)
            rows.append(
                {
                    "family": family,
                    "variant": variant,
                    "what": "published",
                    **dict(zip(depths, map(float, published))),
                }
            )
    return rows


def rows_by_length(accuracy: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row per task and mode.

    It has the accuracy of the whole model, of the commonest answer, and of every length alone, with
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


def single_path_rows(
    runs: list[dict[str, Any]], models: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The residual of single paths by length.

    Random starts have their mean over seeds.
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


def circle_row(row: dict[str, Any]) -> dict[str, Any]:
    """A trajectory in numbers: distances at the start, least and last; steps and turn."""
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

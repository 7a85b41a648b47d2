"""The rows of the paper's tables, put together from runs."""

from __future__ import annotations

from statistics import mean
from typing import Any

from ...collapses.paths import full_length_share
from ...stats.rounding import rows_in_words
from .claims import CURVES, DEPTHS, FLOOR
from .random_starts import NO_NORM, OTHER_TEXT
from .surgery import SURGERIES

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
            "each": v,
        }
        for (family, variant, depth), v in found.items()
    ]


def rows_by_depth(curves: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows per family and variant at the published depths: measured, least and largest, published.

    The authors' form of a variant stands below ours, and what else moves it; the published row is
    that of all.
    """
    rows = []
    depths = [f"depth {depth}" for depth in DEPTHS]
    found: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
    for row in curves:
        found.setdefault((row["family"], row["variant"]), {})[row["depth"]] = row
    for (family, variant), published in CURVES.items():
        if (family, variant) not in found:
            continue
        forms = dict.fromkeys((variant, SURGERIES.get((family, variant), variant)))
        changed = [f"{form} {other}" for form in forms for other in (NO_NORM, OTHER_TEXT)]
        for form in [*forms, *changed]:
            mine = found.get((family, form), {})
            for what, key in WHAT.items() if mine else ():
                values = dict(zip(depths, (mine.get(depth, {}).get(key) for depth in DEPTHS)))
                row = {"family": family, "variant": form, "what": what, **values}
                rows += rows_in_words([row], depths, FLOOR)
        stated = dict(zip(depths, map(float, published)))
        rows.append({"family": family, "variant": variant, "what": "published", **stated})
    return rows


WHAT = {"measured": "residual", "least seed": "low", "largest seed": "high"}


def rows_by_length(
    accuracy: list[dict[str, Any]], theirs: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """A row per task and way of reading paths.

    It has the accuracy of the whole model, of the commonest answer, and of every length, with the
    spread over seeds. Ours are read out alone; the authors' are some paths added up.
    """
    rows = []
    ways = [("frozen", "alone"), ("rerun", "alone")]
    ways += dict.fromkeys(("authors", row["reading"]) for row in theirs if row["mode"] == "authors")
    for task in dict.fromkeys(row["task"] for row in accuracy):
        for mode, reading in ways:
            of = theirs if mode == "authors" else accuracy
            mine = [row for row in of if row["task"] == task]
            lengths = [
                row
                for row in mine
                if (row["mode"], row["reading"]) == (mode, reading) and row["length"]
            ]
            if not lengths:
                continue
            name = mode if mode != "authors" else f"authors' settings, {reading}"
            rows.append(
                {
                    "task": task,
                    "paths": name,
                    "whole": _accuracy(mine, "whole"),
                    "majority": _accuracy(mine, "majority"),
                    "ceiling": _accuracy(mine, "ceiling"),
                    **{
                        f"length {row['length']}": f"{row['accuracy']:.3f} ± {row['spread']:.3f}"
                        for row in lengths
                    },
                }
            )
    return rows


def _accuracy(rows: list[dict[str, Any]], reading: str) -> float | None:
    return next((row["accuracy"] for row in rows if row["reading"] == reading), None)


def single_path_rows(
    runs: list[dict[str, Any]], models: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The residual of single paths by length, about the mean row and about rank one.

    Random starts have their mean over seeds, and `each` seed's residual about rank one.
    """
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for run in runs:
        for row in run["single"]:
            found.setdefault((f"{run['family']} random", row["attention_hops"]), []).append(row)
    rows = [
        {
            "model": model,
            "stack": "encoder",
            "hops": hops,
            "residual": mean(row["residual"] for row in some),
            "rank one": mean(row["rank one"] for row in some),
            "each": [row["rank one"] for row in some],
        }
        for (model, hops), some in found.items()
    ]
    return rows + [
        {
            "model": model["model"],
            "stack": row["stack"],
            "hops": row["attention_hops"],
            "residual": row["residual"],
            "rank one": row["rank one"],
        }
        for model in models
        for row in model["single"]
    ]


def circle_row(row: dict[str, Any]) -> dict[str, Any]:
    """A trajectory in numbers: distances at the start, least and last; steps and turn."""
    return {
        "settings": row["settings"],
        "variant": row["variant"],
        "jitter": row.get("jitter"),
        "seed": row["seed"],
        "steps": len(row["distance"]) - 1,
        "error": row.get("error"),
        "stretch": row.get("stretch"),
        "left": row["left"],
        "distance at start": row["distance"][0],
        "least": min(row["distance"]),
        "at the end": row["distance"][-1],
        "turn": row["turn"][-1],
        "merged": row["merged"],
    }

"""Check a model's folder before any of it is used: its files may come from anyone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from ..errors import EigenlensError, first_line


def check_folder(folder: Path) -> None:
    """Refuse a folder that is not a model's, or whose files lead out of it or are impossible."""
    if not (folder / "config.json").is_file():
        raise EigenlensError(f"{folder} has no config.json, so it is not the folder of a model")
    if (folder / "adapter_config.json").exists():
        raise EigenlensError(
            f"{folder} holds an adapter, and the weights it adapts are elsewhere; merge it into its"
            " model first"
        )
    names = ["*.safetensors", "pytorch_model*.bin"]
    weights = [path for pattern in names for path in sorted(folder.glob(pattern))]
    if not weights:
        raise EigenlensError(
            f"{folder} has a config but no weights (no .safetensors and no pytorch_model.bin)"
        )
    for path in weights:
        if path.suffix == ".safetensors":
            try:
                with safe_open(path, "pt"):
                    pass
            except (SafetensorError, OSError) as error:
                raise EigenlensError(
                    f"{path} is damaged or cut short: {first_line(error)}"
                ) from error
    for path in sorted(folder.glob("*.index.json")):
        _check_index(path)
    _check_numbers(folder / "config.json")


def _check_index(path: Path) -> None:
    """Check that an index names only weight files of this folder."""
    try:
        files = set(json.loads(path.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise EigenlensError(f"{path} cannot be read: {first_line(error)}") from error
    for name in files:
        if (
            not isinstance(name, str)
            or Path(name).name != name
            or not (path.parent / name).is_file()
        ):
            raise EigenlensError(
                f"{path} names the weight file {str(name)[:80]!r}, which is not a file of that"
                " folder"
            )


def _check_numbers(path: Path) -> None:
    """Refuse a config with a size that no model has.

    The library would build lists and layers with that many entries.
    """
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise EigenlensError(f"{path} cannot be read: {first_line(error)}") from error
    for key, number in _integers(tree):
        most = MOST_LAYERS if "layer" in key else MOST_SIZE
        if number > most and not any(word in key for word in NO_SIZES):
            raise EigenlensError(
                f"{path} has {key[:80]} = {str(number)[:40]}; the most that is allowed is {most:,}"
            )


MOST_LAYERS, MOST_SIZE = 10_000, 1 << 21
NO_SIZES = (
    "theta",
    "max",
    "seq",
    "window",
    "token_id",
    "seed",
    "length",
    "bytes",
    "pretraining",
    "parameters",
)
"""Numbers of a config that are not the size of any tensor."""


def _integers(tree: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Yield every whole number of a config with its name; 1e12 counts as one."""
    items = (
        tree.items()
        if isinstance(tree, dict)
        else enumerate(tree)
        if isinstance(tree, list | tuple)
        else ()
    )
    for key, value in items:
        yield from _integers(value, f"{path}.{key}".lstrip("."))
    if isinstance(tree, int | float) and not isinstance(tree, bool) and tree == tree // 1:
        yield path, tree

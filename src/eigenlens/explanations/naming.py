"""Finding tokens and classes by the names that a user gives, and naming them for a reader."""

from __future__ import annotations

import re
from typing import Any

from ..errors import EigenlensError
from ..models.load import Model

BY_ID = "an id as id:1234"


def parse_integer(text: str) -> int | None:
    """The integer that a text spells in plain digits, or None."""
    return int(text) if re.fullmatch(r"-?\d{1,18}", text.strip(), re.ASCII) else None


def token_id(model: Model, target: Any, vocabulary: int) -> int:
    """The id of a target token, given as an id, as text "id:1234", or as the text of one token."""
    if (
        isinstance(target, str)
        and target.startswith("id:")
        and (given := parse_integer(target[3:])) is not None
    ):
        target = given
    if isinstance(target, int):
        if not 0 <= target < vocabulary:
            raise EigenlensError(
                f"there is no token {target}; {model.name} has {vocabulary:,} tokens, counted from"
                " 0"
            )
        return target
    if not isinstance(target, str) or not target:
        raise EigenlensError(f"the target {target!r} is no token: give its id or its text")
    if model.tokenizer is None:
        raise EigenlensError(
            f"{model.no_tokenizer}, so the target {target!r} cannot be found; give {BY_ID}"
        )
    split: list[str] = []
    # some tokenizers put a space before every text themselves
    for text in dict.fromkeys((target, target.strip())):
        ids = (
            model.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
            if text
            else []
        )
        if len(ids) == 1 and ids[0] != getattr(model.tokenizer, "unk_token_id", None):
            return int(ids[0])
        split = split or model.tokenizer.convert_ids_to_tokens(ids)
    if not split:
        raise EigenlensError(
            f"the tokenizer of {model.name} has no token for the target {target!r}; give {BY_ID}"
        )
    raise EigenlensError(
        f"the target {target!r} is not one token of {model.name} but {len(split)}"
        f" ({', '.join(map(repr, split[:5]))}); give one of them, or {BY_ID}"
    )


def class_index(model: Model, target: Any, classes: int) -> int:
    """The index of a target class, given as an index or as its label."""
    names = labels(model)
    if isinstance(target, str):
        found = [i for i, name in names.items() if name == target] or [
            i for i, n in names.items() if n.lower() == target.lower()
        ]
        if found:
            return found[0]
        if (number := parse_integer(target)) is None:
            known = ", ".join(list(names.values())[:8]) + (", …" if len(names) > 8 else "")
            raise EigenlensError(
                f"{model.name} has no class {target!r}; it has"
                f" {known or f'{classes} without names'}"
            )
        target = number
    if not isinstance(target, int) or not 0 <= target < classes:
        raise EigenlensError(
            f"there is no class {target!r}; {model.name} has {classes} classes, counted from 0"
        )
    return target


def labels(model: Model) -> dict[int, str]:
    names = getattr(model.config, "id2label", None) if model.kind != "module" else None
    return {int(i): str(name) for i, name in (names or {}).items()}


def class_text(model: Model, index: int) -> str:
    name = labels(model).get(index, f"LABEL_{index}")
    return f"class {index}" if name == f"LABEL_{index}" else f"class {index}, {name}"


def token_text(model: Model, index: int) -> str:
    """A token in quotes, or its number if the tokenizer does not know it."""
    if model.tokenizer is None or index >= len(model.tokenizer):
        return str(index)
    text = model.tokenizer.decode([index])
    return repr(text) if text else str(index)

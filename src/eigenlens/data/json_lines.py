"""Read text from `.jsonl` files: one object per line, of which one field is read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, BinaryIO

from ..errors import EigenlensError
from ..names import did_you_mean

DEFAULT = "text"


def json_texts(stream: BinaryIO, label: str, field: str | None = None) -> Iterator[tuple[int, str]]:
    """Yield number and text of every line that is not blank.

    Without a `field` the first line decides: its `text`, or its only string. All other lines must
    have that field too.
    """
    for number, line in enumerate(stream, 1):
        if not line.strip():
            continue
        where = f"{label}, line {number}"
        record = _object(line, where)
        if field is None:
            field = _chosen(record, where, label)
        if field not in record:
            fields = ", ".join(record) or "none"
            raise EigenlensError(
                f"{where}: no field {field!r}{did_you_mean(field, record)}; its fields are {fields}"
            )
        if not isinstance(record[field], str):
            raise EigenlensError(
                f"{where}: the field {field!r} is not a string but {str(record[field])[:40]!r}"
            )
        yield number, record[field]


def _object(line: bytes, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise EigenlensError(f"{where}: this is not JSON: {str(error)[:100]}") from error
    if not isinstance(record, dict):
        raise EigenlensError(
            f'{where}: this is not a JSON object with a text, such as {{"text": "…"}}'
        )
    return record


def _chosen(record: dict[str, Any], where: str, label: str) -> str:
    texts = [name for name, value in record.items() if isinstance(value, str)]
    if DEFAULT in record or len(texts) == 1:
        return DEFAULT if DEFAULT in record else texts[0]
    if not texts:
        raise EigenlensError(
            f"{where}: none of its fields holds a string: {', '.join(record) or 'there are none'}"
        )
    how = f"name one after the file name, such as {label}:{texts[0]}"
    raise EigenlensError(f"{where}: no field {DEFAULT!r}, but strings in {', '.join(texts)}; {how}")

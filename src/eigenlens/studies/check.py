"""The checks of `study.json`."""

from __future__ import annotations

from typing import Any

from ..captures import Site
from ..run.schema import COUNT, LAYER, NUMBER, PLAIN, SHARE, NumberSchema, TableSchema, check_schema
from ..stats.rounding import Precision

LENGTH = NumberSchema(1, 2**31, integer=True)
SITE = {
    "kind": str,
    "name": str,
    "heads": NumberSchema(1, 99_999, integer=True),
    "kv_heads": NumberSchema(1, 99_999, integer=True),
    "queries": LENGTH,
    "keys": LENGTH,
    "head_dimension": LENGTH,
    "mask": str,
    "pairs": COUNT,
}
REQUEST = {
    "data": [str],
    "length": (LENGTH, None),
    "inputs": COUNT,
    "held_out": NUMBER,
    "seed": int,
    "pad": bool,
}
RECORD = {
    "model": {
        "name": str,
        "kind": str,
        "source": str,
        "architecture": str,
        "parameters": COUNT,
        "fingerprint": str,
        "place?": str,
        "note?": str,
    },
    "data": {
        "name": str,
        "documents": COUNT,
        "documents_held_out": COUNT,
        "inputs_fit": COUNT,
        "inputs_held_out": COUNT,
        "padded": bool,
        "fingerprint?": (str, None),
    },
    "length": LENGTH,
    "inputs": COUNT,
    "seconds": SHARE,
    "versions": TableSchema(str),
    "notes": [str],
    "created?": str,
    "precision?": Precision,
    "options": {
        "request": REQUEST,
        "of": str,
        "before_rope": bool,
        "float64": bool,
        "diagnosed": TableSchema(TableSchema((*PLAIN, list))),
    },
    "sites": TableSchema(SITE),
    "diagnostics": {"every?": COUNT, "notes?": TableSchema(str), "tokens?": TableSchema(str)},
    "files": TableSchema({"bytes": COUNT, "sha256": str}),
}


def check_record(facts: dict[str, Any], files: set[str]) -> None:
    """Raise a `ValueError` if a study's record is not as this version writes it.

    `files` are the file names that it may list.
    """
    check_schema(facts, RECORD, "it")
    if facts["options"]["of"] not in ("scores", "pattern"):
        raise ValueError(f"it is of {facts['options']['of'][:40]!r}")
    if other := facts["files"].keys() - files:
        raise ValueError(f"it lists a file {min(other)[:80]!r}")
    for name in facts["sites"]:
        check_schema(Site.parse(name).layer, LAYER, f"the layer of {name[:80]}")
    for number in facts["diagnostics"].get("tokens", {}):
        int(number)

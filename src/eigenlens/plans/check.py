"""The checks of `plan.json`."""

from __future__ import annotations

from typing import Any

from ..run.schema import COUNT, LAYER, MEASURED, NUMBER, PLAIN, TableSchema, check_schema

SETTINGS = TableSchema((*PLAIN, list))
HEAD = {
    "stack": str,
    "layer": LAYER,
    "head": LAYER,
    "estimator": str,
    "settings": SETTINGS,
    "work": MEASURED,
    "pairs": MEASURED,
    "total_variation": (MEASURED, None),
    "score_error": (MEASURED, None),
    "why": str,
}
POINT = {
    "estimator": str,
    "budget": (NUMBER, None),
    "work": MEASURED,
    "pairs": MEASURED,
    "total_variation": MEASURED,
    "score_error": MEASURED,
}
SHAPE = {"keys": COUNT, "head_dimension": COUNT, "pairs": COUNT}
SCHEMA = {
    "model": {
        "name": str,
        "fingerprint": (str, None),
        "architecture?": (str, None),
        "source?": (str, None),
        "place?": (str, None),
    },
    "length": COUNT,
    "study": {"name": str, "request": {"data": [str]}, "data": {"name": str}},
    "target": TableSchema((*PLAIN, list)),
    "groups": [int],
    "curve": [POINT],
    "shapes": TableSchema(TableSchema(COUNT)),
    "heads": [HEAD],
    "parts": TableSchema([{"heads": [LAYER], "estimator": str, "settings": SETTINGS}]),
    "blocks?": (dict, None),
    "sparse?": (dict, None),
    "weights?": ({"dtype": str, "values": TableSchema([NUMBER])}, None),
    "search?": (dict, None),
    "examples?": (
        {
            "tokens": [TableSchema([str])],
            "places": [list],
            "candidates": [list],
            "chosen": [(LAYER, None)],
            "sha256": str,
        },
        None,
    ),
    "chosen_on?": ([str], None),
    "seconds?": NUMBER,
    "created?": str,
    "notes?": [str],
    "versions?": TableSchema(str),
    "inputs?": COUNT,
}


def check_plan(record: dict[str, Any]) -> None:
    """Raise a `ValueError` if a plan's record is not as this version writes it."""
    check_schema(record, SCHEMA, "it")
    if not record["heads"]:
        raise ValueError("it has no heads")
    if not record.get("blocks") and not record.get("sparse"):
        for i, head in enumerate(record["heads"]):
            check_schema(head["total_variation"], MEASURED, f"it.heads[{i}].total_variation")
        for site in record["parts"]:
            check_schema(
                record["shapes"].get(site),
                {"keys": COUNT, "head_dimension": COUNT, "pairs": COUNT},
                f"the shape of {site[:80]}",
            )


def with_new_names(record: dict[str, Any]) -> dict[str, Any]:
    """A record of any version with the names of this one.

    Version 0.1.0 called the threshold of a head in a plan of blocks "bar".
    """
    if not record.get("blocks"):
        return record
    new = {"bar": "threshold"}
    heads = [
        {**head, "settings": {new.get(name, name): x for name, x in head["settings"].items()}}
        for head in record["heads"]
    ]
    return {**record, "heads": heads}

"""The command `models`: what the catalogue has."""

from __future__ import annotations

import json

from .app import app
from .options import Command, Full, Json, example
from .terminal import print_table


@app.command(cls=Command, epilog=example("eigenlens models"))
def models(
    full: Full = False,
    as_json: Json = False,
) -> None:
    """List the models and data sets of the catalogue.

    The models have real weights; models and data install from the package registries.
    """
    from ..data.datasets import DATASETS
    from ..models.catalogue import MODELS, is_converted

    listed = [
        {
            "name": entry.name,
            "kind": entry.kind,
            "layers": entry.layers,
            "heads": entry.heads,
            "kv_heads": entry.kv_heads,
            "width": entry.width,
            "package": f"{entry.source.name}=={entry.source.version} ({entry.source.registry})",
            "megabytes": entry.megabytes,
            "licence": entry.licence,
            "here": is_converted(entry.name),
            "note": entry.note,
        }
        for entry in MODELS.values()
    ]
    data = [
        {"name": d.name, "kind": d.kind, "megabytes": d.megabytes, "note": d.note}
        for d in DATASETS.values()
    ]
    if as_json:
        print(json.dumps({"models": listed, "data": data}))
        return
    rows = [
        {
            "name": m["name"],
            "kind": m["kind"],
            "size": f"{m['layers']} × {m['heads']} × {m['width']}",
            "MB": m["megabytes"],
            "here": "yes" if m["here"] else "no",
            "what it is": m["note"],
        }
        for m in listed
    ]
    sources = [
        {"name": m["name"], "package": m["package"], "licence": m["licence"]} for m in listed
    ]
    print_table("Models with real weights (size: layers × heads × width)", rows, full)
    print_table(
        "Data sets",
        [
            {"name": d["name"], "kind": d["kind"], "MB": d["megabytes"], "what it is": d["note"]}
            for d in data
        ],
        full,
    )
    if full:
        print_table("Where the models come from", sources, full)
    print("A model that is not here yet is installed at its first use.")

"""A paper that takes no time: entropies of random rows, and models by name."""

from dataclasses import dataclass
from functools import partial

import altair as alt
import torch

from eigenlens.models.load import load
from eigenlens.papers.paper import Paper, parts_by_model
from eigenlens.papers.verdicts import judged, out_of_reach


@dataclass(frozen=True)
class Scale:
    keys: tuple[int, ...] = (16, 64)
    models: tuple[str, ...] = ()


def entropies(keys, seed):
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.randn(20, n, generator=generator).softmax(1) for n in keys]
    return [
        {"keys": len(p[0]), "entropy": float(torch.special.entr(p).sum(1).mean())} for p in rows
    ]


def model_row(name):
    facts = load(name).facts
    return {
        "model": name,
        "loaded as": facts.name,
        "kind": facts.kind,
        "fingerprint": facts.fingerprint,
    }


def measure(scale, parts, seed, progress):
    rows = parts.part("entropies", partial(entropies, scale.keys, seed))
    if not scale.models:
        return {"entropies": rows, "models": []}
    makes = {name: partial(model_row, name) for name in scale.models}
    found, missing = parts_by_model(parts, makes, progress)
    return {"entropies": rows, "models": list(found.values()), "missing": missing}


def claims_of(tables, quick):
    least = min(row["entropy"] for row in tables["entropies"])
    return (
        judged(
            "rows are spread",
            "stated",
            least,
            None,
            "reproduced if at least 1",
            "least of all",
            at_least=1.0,
            reason="the claim: they are not",
        ),
        judged(
            "rows are sharp",
            "stated",
            least,
            None,
            "reproduced if at most 1",
            "least of all",
            at_most=1.0,
            reason=f"the claim: the least entropy is {least:.2f}",
        ),
        out_of_reach("so they are in large models", "46 %", "a model of 7 billion parameters"),
    )


def charts(tables):
    rows = alt.Data(values=tables["entropies"])
    return {"entropy": alt.Chart(rows).mark_line().encode(x="keys:Q", y="entropy:Q")}


def small_paper(name="small", **options):
    """With `models=("models",)` it measures models that are given by name."""
    return Paper(
        name,
        "A small paper",
        Scale(),
        Scale((16,)),
        measure,
        claims_of,
        charts,
        (("Entropies", "entropies"),),
        ("something was left out",),
        **options,
    )

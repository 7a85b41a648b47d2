"""Frozen graphs of small models, beside their forward by hand."""

import torch

from captures.families import CAUSAL, inputs
from collapses.by_hand import frozen, in_dtype, model_of
from eigenlens.anatomy import freeze
from eigenlens.captures.precision import stays_double


def batch(name, padding="none"):
    given = in_dtype(inputs(name, padding, batch=2, **({} if name == "vit" else {"length": 7})))
    return {**given, "use_cache": False} if name in CAUSAL | {"t5"} else given


@torch.no_grad()
def graphs(kind, padding="none", model=None):
    """The first graph of a small model and its forward by hand: (graph, stream, by_hand)."""
    name = kind.partition("-")[0]
    model, given = model or model_of(kind), batch(name, padding)
    with stays_double():
        graph = freeze(model, given)[0]
    return graph, *frozen(kind, model, given)

"""Real attention scores of catalogue models, kept whole, as the oracle of everything that
streams.
"""

import functools
import tempfile
from pathlib import Path

import torch

from eigenlens.captures import capture
from eigenlens.data.inputs import Request, prepare
from eigenlens.data.split import FIT
from eigenlens.models.forward import forward_of
from eigenlens.models.load import load
from eigenlens.stats import MatrixGram, MatrixProjection, MatrixSketch, RowMoments


@functools.cache
def recorded(name: str, number: int = 60, length: int = 32):
    """Fit calls, and held-out calls by group, of one layer of a catalogue model.

    Every call with its q, k and mask.
    """
    model = load(name)
    inputs = prepare(model, Request(("python-docs",), length, number), Path(tempfile.mkdtemp()))
    found = {}
    for bucket in inputs.groups:
        calls = []

        def sink(call, calls=calls):
            if call.site.layer == 1:
                calls.append(call)

        with torch.no_grad(), capture(model.backbone, sink):
            for _, batch in inputs.batches(bucket, 16):
                forward_of(model)(batch)
        found[bucket] = calls
    return found.pop(FIT), list(found.values())


def seen(statistic, calls):
    for call in calls:
        statistic.update(call)
    return statistic


def scores(calls, site: str):
    """All scores (inputs, H, T, S) in float64, zero where masked, and the mask (T, S)."""
    chosen = [call for call in calls if str(call.site) == site]
    return torch.cat([call.scores(fill=0.0) for call in chosen]).double(), chosen[0].valid()[0, 0]


__all__ = [
    "MatrixGram",
    "MatrixProjection",
    "MatrixSketch",
    "RowMoments",
    "recorded",
    "scores",
    "seen",
]

"""Inputs made of any data."""

import numpy as np

from eigenlens.data.inputs import Request, prepare


def make(model, data, folder, **options):
    folder.mkdir(exist_ok=True)
    names = tuple(map(str, data)) if isinstance(data, list | tuple) else (str(data),)
    return prepare(model, Request(names, **options), folder)


def everything(inputs):
    """All inputs in their order, as one batch."""
    return inputs.make(np.arange(len(inputs.buckets)))

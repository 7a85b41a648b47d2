"""Capture: every attention call of a model, and to the blocks they are made in."""

from .call import AttentionCall, MaskShape, MaskShapes
from .labels import Labels, labelled
from .layers import Layer, attention_names, block_paths, capture_layers
from .session import AttentionNotSeen, capture, replace_attention
from .sites import Head, Site, location, location_of

__all__ = [
    "AttentionCall",
    "AttentionNotSeen",
    "Head",
    "Labels",
    "Layer",
    "MaskShape",
    "MaskShapes",
    "Site",
    "attention_names",
    "block_paths",
    "capture",
    "capture_layers",
    "labelled",
    "location",
    "location_of",
    "replace_attention",
]

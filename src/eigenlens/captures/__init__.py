"""Capture every attention call of a model, and the blocks that make the calls."""

from .call import AttentionCall
from .labels import BySite, Labels, labelled, unknown_location
from .layers import Layer, attention_names, block_paths, capture_layers
from .masks import MaskShape, MaskShapes
from .session import AttentionNotSeen, capture, replace_attention
from .sites import Head, Site, SiteInfo, attention_kinds, location, location_of

__all__ = [
    "AttentionCall",
    "AttentionNotSeen",
    "BySite",
    "Head",
    "Labels",
    "Layer",
    "MaskShape",
    "MaskShapes",
    "Site",
    "SiteInfo",
    "attention_kinds",
    "attention_names",
    "block_paths",
    "capture",
    "capture_layers",
    "labelled",
    "location",
    "location_of",
    "replace_attention",
    "unknown_location",
]

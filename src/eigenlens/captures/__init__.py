"""Capture: every attention call of a model, and the blocks that make them."""

from .call import AttentionCall, Site
from .layers import Layer, attention_names, block_paths, capture_layers
from .masks import MaskShape, MaskShapes
from .session import AttentionNotSeen, capture, replace_attention
from .sites import SiteInfo, attention_kinds

__all__ = [
    "AttentionCall",
    "AttentionNotSeen",
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
    "replace_attention",
]

"""Attention mechanisms: a short dense reference and a fast form that must equal it, and the registry that models use."""

from .block_selection import BlockSettings
from .blocks import block_attention
from .registry import register, registered

__all__ = ["BlockSettings", "block_attention", "register", "registered"]

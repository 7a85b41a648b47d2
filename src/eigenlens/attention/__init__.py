"""Attention mechanisms: a short dense reference and a fast form that must equal it, and the registry that models use."""

from .block_selection import BlockSettings
from .blocks import block_attention
from .given import Given
from .mechanism import Mechanism, Settings, Shape
from .registry import find, interface, make, mechanism, mechanisms, register, registered
from .softmax import Softmax

__all__ = [
    "BlockSettings", "Given", "Mechanism", "Settings", "Shape", "Softmax", "block_attention", "find", "interface", "make",
    "mechanism", "mechanisms", "register", "registered",
]  # fmt: skip

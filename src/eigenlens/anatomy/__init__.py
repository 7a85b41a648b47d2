"""What blocks and heads are made of: families, the frozen linear graph, head weights, switches."""

from .blocks import Block, Branch, Stack, Stage, anatomy
from .frozen import FrozenStack, freeze
from .head_weights import HeadWeights, head_weights
from .switches import Switches

__all__ = [
    "Block",
    "Branch",
    "FrozenStack",
    "HeadWeights",
    "Stack",
    "Stage",
    "Switches",
    "anatomy",
    "freeze",
    "head_weights",
]

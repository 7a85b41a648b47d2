"""What blocks and heads consist of: families, the frozen linear graph, head weights, switches."""

from .blocks import Block, Branch, Stack, Stage, read_stacks
from .frozen import FrozenStack, freeze
from .head_weights import HeadWeights, read_head_weights
from .switches import Switches

__all__ = [
    "Block",
    "Branch",
    "FrozenStack",
    "HeadWeights",
    "Stack",
    "Stage",
    "Switches",
    "freeze",
    "read_head_weights",
    "read_stacks",
]

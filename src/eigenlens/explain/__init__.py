"""The parts of a transformer, and the whole of it as a linear map once its patterns, norms and gates are frozen."""

from ..switches import Switches
from .anatomy import Block, Branch, Stack, Stage, anatomy
from .frozen import FrozenStack, freeze
from .head_weights import HeadWeights, head_weights

__all__ = [
    "Block", "Branch", "FrozenStack", "HeadWeights", "Stack", "Stage", "Switches", "anatomy", "freeze", "head_weights",
]  # fmt: skip

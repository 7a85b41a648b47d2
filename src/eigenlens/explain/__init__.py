"""The parts of a transformer, and the whole of it as a linear map once its patterns, norms and
gates are frozen.
"""

from ..switches import Switches
from .anatomy import Block, Branch, Stack, Stage, anatomy
from .deletion import Deletion, deletion_curves
from .encode import encode
from .explanation import Explanation
from .frozen import FrozenStack, freeze
from .head_weights import HeadWeights, head_weights
from .make import explain
from .methods import METHODS, attribute
from .observe import Observed, observe
from .operator import (
    Operator,
    in_out,
    in_out_of,
    norms,
    norms_of,
    norms_with_error,
    operator,
    toward,
)
from .relevance import relevance, relevance_by_stream
from .target import Target, target_of

__all__ = [
    "METHODS",
    "Block",
    "Branch",
    "Deletion",
    "Explanation",
    "FrozenStack",
    "HeadWeights",
    "Observed",
    "Operator",
    "Stack",
    "Stage",
    "Switches",
    "Target",
    "anatomy",
    "attribute",
    "deletion_curves",
    "encode",
    "explain",
    "freeze",
    "head_weights",
    "in_out",
    "in_out_of",
    "norms",
    "norms_of",
    "norms_with_error",
    "observe",
    "operator",
    "relevance",
    "relevance_by_stream",
    "target_of",
    "toward",
]

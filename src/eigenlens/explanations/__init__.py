"""Which tokens decide: relevance and other methods, and a whole model as one linear operator."""

from .deletion import Deletion, deletion_curves
from .linear_operator import (
    Operator,
    in_out,
    in_out_of,
    linearize,
    norms,
    norms_of,
    norms_with_error,
    toward,
)
from .make_explanation import explain
from .methods import METHODS, attribute
from .observed import Observed, observe
from .propagation import relevance, relevance_by_stream
from .result import Explanation
from .target import Target, target_of

__all__ = [
    "METHODS",
    "Deletion",
    "Explanation",
    "Observed",
    "Operator",
    "Target",
    "attribute",
    "deletion_curves",
    "explain",
    "in_out",
    "in_out_of",
    "linearize",
    "norms",
    "norms_of",
    "norms_with_error",
    "observe",
    "relevance",
    "relevance_by_stream",
    "target_of",
    "toward",
]

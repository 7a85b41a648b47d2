"""Mergeable streaming statistics of attention calls and of the blocks that make them."""

from .depth import DepthMetrics, DepthNumber
from .matrices import MatrixGram, MatrixSketch, MatrixSums
from .pairs import Pairs
from .projection import MatrixProjection, ProjectionSums
from .queries_keys import QueryKeyMoments, VectorSums
from .row_products import RowSums
from .rows import RowMoments
from .statistic import State, Statistic
from .within import WithinSpectra

__all__ = [
    "DepthMetrics",
    "DepthNumber",
    "MatrixGram",
    "MatrixProjection",
    "MatrixSketch",
    "MatrixSums",
    "Pairs",
    "ProjectionSums",
    "QueryKeyMoments",
    "RowMoments",
    "RowSums",
    "State",
    "Statistic",
    "VectorSums",
    "WithinSpectra",
]

"""Attention blocks whose training is a convex problem with a certified optimum.

See arXiv 2205.08078.
"""

from .clusters import Clusters, contributions, directions, k_means, nearest, purity, token_clusters
from .heads import ConvexHeads, TrainedHeads, heads_from_matrix, matrix_of, train_heads
from .losses import Logistic, Loss, Squared
from .problem import (
    ConvexBlock,
    FourierOperator,
    GatedAttention,
    LinearAttention,
    LinearMixer,
    Problem,
    convex_memory,
)
from .solution import Solution
from .solver import certificate, solve

__all__ = [
    "Clusters",
    "ConvexBlock",
    "ConvexHeads",
    "FourierOperator",
    "GatedAttention",
    "LinearAttention",
    "LinearMixer",
    "Logistic",
    "Loss",
    "Problem",
    "Solution",
    "Squared",
    "TrainedHeads",
    "certificate",
    "contributions",
    "convex_memory",
    "directions",
    "heads_from_matrix",
    "k_means",
    "matrix_of",
    "nearest",
    "purity",
    "solve",
    "token_clusters",
    "train_heads",
]

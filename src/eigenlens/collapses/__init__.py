"""Why attention does not collapse: residual and rank along depth, ablations, paths, bounds."""

from .ablation import VARIANTS, ablate
from .enumeration import enumerate_paths
from .marginals import head_marginals
from .paths import PathLengths, decompose_paths
from .result import Collapse
from .run_collapse import ABLATIONS, collapse
from .sampling import draw_paths, estimated_term, frozen_terms, head_sizes, rerun_paths

__all__ = [
    "ABLATIONS",
    "VARIANTS",
    "Collapse",
    "PathLengths",
    "ablate",
    "collapse",
    "decompose_paths",
    "draw_paths",
    "enumerate_paths",
    "estimated_term",
    "frozen_terms",
    "head_marginals",
    "head_sizes",
    "rerun_paths",
]

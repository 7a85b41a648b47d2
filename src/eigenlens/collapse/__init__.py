"""Why attention does not collapse: residual and rank along depth, ablations, paths, bounds."""

from .ablation import VARIANTS, ablated
from .make import ABLATIONS, collapse
from .paths import PathLengths, path_lengths
from .result import Collapse

__all__ = ["ABLATIONS", "VARIANTS", "Collapse", "PathLengths", "ablated", "collapse", "path_lengths"]

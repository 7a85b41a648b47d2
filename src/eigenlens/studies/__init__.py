"""A study of a model's attention: made, kept in a folder, read, compared."""

from .comparison import Comparison
from .make_comparison import compare
from .result import Study
from .run_study import study

__all__ = ["Comparison", "Study", "compare", "study"]

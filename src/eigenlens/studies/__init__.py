"""A study of a model's attention: how it is made, kept in a folder, read and compared."""

from .comparison import Comparison
from .make_comparison import compare
from .result import Study
from .run_study import study

__all__ = ["Comparison", "Study", "compare", "study"]

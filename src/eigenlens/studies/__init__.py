"""A study of a model's attention: made, kept in a folder, read, compared."""

from .compare import compare
from .comparison import Comparison
from .result import Study
from .run_study import study

__all__ = ["Comparison", "Study", "compare", "study"]

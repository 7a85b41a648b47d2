"""A study of a model's attention: made, kept in a folder, read, compared."""

from .compare import Comparison, compare
from .make import study
from .study import Study

__all__ = ["Comparison", "Study", "compare", "study"]

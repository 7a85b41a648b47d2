"""How low-dimensional is the attention of a transformer?

>>> import eigenlens as el
>>> study = el.study("minilm", "book.txt", inputs=200)
>>> study.spectra.plot()
"""

__version__ = "0.1.0"

from .capture import AttentionCall, AttentionNotSeen, capture
from .errors import EigenlensError
from .sources.models import Model, load
from .study import Comparison, Study, compare, study

__all__ = [
    "AttentionCall",
    "AttentionNotSeen",
    "Comparison",
    "EigenlensError",
    "Model",
    "Study",
    "capture",
    "compare",
    "load",
    "study",
]

"""How low-dimensional is the attention of a transformer?

>>> import eigenlens as el
>>> study = el.study("minilm", "book.txt", inputs=200)
>>> study.spectra.plot()
"""

__version__ = "0.1.0"

from . import attention
from .capture import AttentionCall, AttentionNotSeen, capture, replaced
from .errors import EigenlensError
from .reconstruct import Evaluation, Plan, evaluate, plan, plan_blocks
from .sources.models import Model, load
from .study import Comparison, Study, compare, study

__all__ = [
    "AttentionCall",
    "AttentionNotSeen",
    "Comparison",
    "EigenlensError",
    "Evaluation",
    "Model",
    "Plan",
    "Study",
    "attention",
    "capture",
    "compare",
    "evaluate",
    "load",
    "plan",
    "plan_blocks",
    "replaced",
    "study",
]

"""How low-dimensional is the attention of a transformer?

>>> import eigenlens as el
>>> study = el.study("minilm", "book.txt", inputs=200)
>>> study.spectra.plot()
"""

__version__ = "0.1.0"

from .threads import wait_quietly

wait_quietly()

from . import attention
from .capture import AttentionCall, AttentionNotSeen, capture, replaced
from .collapse import Collapse, ablated, collapse, path_lengths
from .errors import EigenlensError
from .explain import Explanation, Operator, explain, freeze, operator
from .reconstruct import Evaluation, Plan, attending, evaluate, plan, plan_blocks
from .report import report
from .run.cluster import Dask
from .run.engine import Local
from .sources.models import Model, load
from .study import Comparison, Study, compare, study

__all__ = [
    "AttentionCall",
    "AttentionNotSeen",
    "Collapse",
    "Comparison",
    "Dask",
    "EigenlensError",
    "Evaluation",
    "Explanation",
    "Local",
    "Model",
    "Operator",
    "Plan",
    "Study",
    "ablated",
    "attending",
    "attention",
    "capture",
    "collapse",
    "compare",
    "evaluate",
    "explain",
    "freeze",
    "load",
    "operator",
    "path_lengths",
    "plan",
    "plan_blocks",
    "replaced",
    "report",
    "study",
]

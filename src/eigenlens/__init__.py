"""How low-dimensional is the attention of a transformer?

>>> import eigenlens as el
>>> study = el.study("minilm", "book.txt", max_inputs=200)
>>> study.spectra.plot()
"""

from ._version import __version__
from .threads import wait_without_spinning

wait_without_spinning()

from . import attention
from .anatomy import freeze
from .captures import AttentionCall, AttentionNotSeen, Head, Site, capture, replace_attention
from .collapses import Collapse, ablate, collapse, decompose_paths
from .errors import EigenlensError
from .explanations import Explanation, Operator, explain, linearize
from .models.load import Model, load
from .plans import Evaluation, Plan, evaluate, plan, use_attention
from .reports import report
from .run.cluster import Dask
from .run.engine import Local
from .studies import Comparison, Study, compare, study

__all__ = [
    "AttentionCall",
    "AttentionNotSeen",
    "Collapse",
    "Comparison",
    "Dask",
    "EigenlensError",
    "Evaluation",
    "Explanation",
    "Head",
    "Local",
    "Model",
    "Operator",
    "Plan",
    "Site",
    "Study",
    "__version__",
    "ablate",
    "attention",
    "capture",
    "collapse",
    "compare",
    "decompose_paths",
    "evaluate",
    "explain",
    "freeze",
    "linearize",
    "load",
    "plan",
    "replace_attention",
    "report",
    "study",
    "use_attention",
]

"""How low-dimensional is the attention of a transformer?

>>> import eigenlens as el
>>> study = el.study("minilm", "book.txt", max_inputs=200)
>>> study.spectra.plot()
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._version import __version__
from .errors import EigenlensError

if TYPE_CHECKING:
    from . import attention
    from .anatomy import freeze
    from .captures import AttentionCall, AttentionNotSeen, Head, Site, capture, replace_attention
    from .collapses import Collapse, ablate, collapse, decompose_paths
    from .explanations import Explanation, Operator, explain, linearize
    from .models.load import Model, load
    from .plans import Evaluation, Plan, evaluate, plan, use_attention
    from .reports import report
    from .run.cluster import Dask
    from .run.engine import Local
    from .studies import Comparison, Study, compare, study

_MODULES = {
    "anatomy": ("freeze",),
    "captures": (
        "AttentionCall",
        "AttentionNotSeen",
        "Head",
        "Site",
        "capture",
        "replace_attention",
    ),
    "collapses": ("Collapse", "ablate", "collapse", "decompose_paths"),
    "explanations": ("Explanation", "Operator", "explain", "linearize"),
    "models.load": ("Model", "load"),
    "plans": ("Evaluation", "Plan", "evaluate", "plan", "use_attention"),
    "reports": ("report",),
    "run.cluster": ("Dask",),
    "run.engine": ("Local",),
    "studies": ("Comparison", "Study", "compare", "study"),
}
"""Module → what is imported from it at its first use, so that `import eigenlens` takes no time."""
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

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


def __getattr__(name: str) -> Any:
    if name == "attention":
        return import_module(".attention", __name__)
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""Which pairs to compute, how to estimate the rest, the plan, and its evaluation."""

from .drop_in import use_attention
from .evaluation import Evaluation
from .examples import Examples
from .make_evaluation import evaluate
from .make_plan import plan
from .result import Choice, Plan

__all__ = [
    "Choice",
    "Evaluation",
    "Examples",
    "Plan",
    "evaluate",
    "plan",
    "use_attention",
]

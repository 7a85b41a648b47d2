"""Which pairs to compute, how to estimate the rest, the plan, and its evaluation."""

from .evaluate import Evaluation, evaluate
from .long import plan_blocks
from .make import plan
from .plan import Choice, Plan

__all__ = ["Choice", "Evaluation", "Plan", "evaluate", "plan", "plan_blocks"]

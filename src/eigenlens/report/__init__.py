"""Studies, plans, evaluations, collapse runs and explanations as one page that needs nothing but a
browser.
"""

from .make import report

__all__ = ["report"]

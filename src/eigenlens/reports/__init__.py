"""Studies, plans, evaluations, collapse runs and explanations as one page that needs nothing but a
browser.
"""

from .make_report import report

__all__ = ["report"]

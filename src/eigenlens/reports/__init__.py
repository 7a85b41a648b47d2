"""Reports: results as one page that needs only a browser.

A page shows studies, plans, evaluations, collapse runs and explanations.
"""

from .make_report import report

__all__ = ["report"]

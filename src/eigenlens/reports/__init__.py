"""Results as one page that needs nothing but a browser.

Studies, plans, evaluations, collapse runs and explanations.
"""

from .make_report import report

__all__ = ["report"]

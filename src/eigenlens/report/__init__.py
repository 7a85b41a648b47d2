"""Studies, plans, evaluations and collapse runs as one page that needs nothing but a browser."""

from .make import report

__all__ = ["report"]

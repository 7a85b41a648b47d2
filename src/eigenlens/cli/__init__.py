"""The command line: one thin function a command."""

from . import studies, plans, papers, reports  # noqa: I001  each adds its commands to the app, in the order of the help
from .app import app, main

__all__ = ["app", "main", "papers", "plans", "reports", "studies"]

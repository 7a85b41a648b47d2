"""The command line: one thin function a command."""

from . import studies, plans, papers, training, benches, reports  # noqa: I001  each adds its commands, in the order of the help
from .app import app, main

__all__ = ["app", "benches", "main", "papers", "plans", "reports", "studies", "training"]

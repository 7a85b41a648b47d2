"""The command line: one thin function a command."""

from . import studies, plans, papers, explaining, training, benches, reports  # noqa: I001  each adds its commands, in the order of the help
from .app import app, main

__all__ = ["app", "benches", "explaining", "main", "papers", "plans", "reports", "studies", "training"]

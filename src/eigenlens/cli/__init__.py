"""The command line: one thin function per command."""

from . import benches, explaining, papers, plans, reports, studies, training
from .app import app, main

__all__ = [
    "app",
    "benches",
    "explaining",
    "main",
    "papers",
    "plans",
    "reports",
    "studies",
    "training",
]

"""The command line: one thin function per command."""

from . import benches, collapses, explanations, papers, plans, reports, studies, training
from .app import app, main

__all__ = [
    "app",
    "benches",
    "collapses",
    "explanations",
    "main",
    "papers",
    "plans",
    "reports",
    "studies",
    "training",
]

"""The command line: one thin function per command."""

from . import (
    benches,
    catalogue,
    collapses,
    demo,
    explanations,
    papers,
    plans,
    reports,
    studies,
    training,
)
from .app import app, main

__all__ = [
    "app",
    "benches",
    "catalogue",
    "collapses",
    "demo",
    "explanations",
    "main",
    "papers",
    "plans",
    "reports",
    "studies",
    "training",
]

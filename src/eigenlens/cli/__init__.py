"""The command line: one thin function per command."""

from . import (
    benches,
    catalogue,
    collapses,
    demo,
    doctor,
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
    "doctor",
    "explanations",
    "main",
    "papers",
    "plans",
    "reports",
    "studies",
    "training",
]

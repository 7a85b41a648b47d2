"""The summary of the page, and how its results were made."""

from __future__ import annotations

from typing import Any

from ..passes.facts import ModelResult
from .names import Names, all_data_of
from .views import Page


def summary_of(page: Page) -> list[tuple[str, str]]:
    """The lines of the summary: heading and text."""
    ranked = sorted(page.results.views, key=lambda each: each[0].summary_rank)
    return [
        line for view, results in ranked for result in results for line in view.lines(page, result)
    ]


def facts_of(result: ModelResult, names: Names) -> dict[str, Any]:
    """How a result was made: one row of the last table, with every name of its data."""
    facts = result.facts
    return {
        "result": type(result).__name__.lower(),
        "model": names.model(result),
        "data": all_data_of(result),
        "length": facts.length,
        "inputs": facts.inputs,
        "seconds": facts.seconds,
        "created": facts.created,
        "versions": (
            ", ".join(f"{name} {version}" for name, version in facts.versions.items()) or None
        ),
        "notes": "; ".join(facts.notes) or None,
    }

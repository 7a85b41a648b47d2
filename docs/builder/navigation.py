"""The order of the pages. A page that is not here, or stands here twice, is an error."""

import json
from collections.abc import Iterable
from typing import TypeAlias

Navigation: TypeAlias = "dict[str, list[str | Navigation]]"

NAVIGATION: Navigation = {
    "Start": [
        "index.md",
        "start/install.md",
        "start/first-study.md",
        "start/notebooks.md",
    ],
    "Guides": [
        "guides/my-own-model.md",
        "guides/compare-fine-tunes.md",
        "guides/leave-scores-out.md",
        "guides/faster.md",
        "guides/explain-a-decision.md",
        "guides/why-tokens-stay-apart.md",
        "guides/swap-the-attention.md",
        "guides/train-a-small-model.md",
        "guides/read-the-report.md",
        "guides/cluster.md",
        {
            "On a cluster": [
                "guides/cluster/laptop.md",
                "guides/cluster/machine.md",
                "guides/cluster/slurm.md",
                "guides/cluster/kubernetes.md",
            ]
        },
    ],
    "Concepts": [
        "concepts/index.md",
        "concepts/what-is-low-dimensional.md",
        "concepts/bounds.md",
    ],
    "Reference": [
        "reference/commands.md",
        "reference/models.md",
        "reference/mechanisms.md",
        "reference/diagnostics.md",
        "reference/files.md",
        {
            "Python": [
                "reference/python/index.md",
                "reference/python/capture.md",
                "reference/python/study.md",
                "reference/python/engine.md",
                "reference/python/diagnostics.md",
                "reference/python/plan.md",
                "reference/python/collapse.md",
                "reference/python/freeze.md",
                "reference/python/attention.md",
                "reference/python/explain.md",
                "reference/python/report.md",
                "reference/python/bench.md",
            ]
        },
    ],
    "Papers": [
        "papers/index.md",
        "papers/eigen-analysis.md",
        "papers/rank-collapse.md",
        "papers/sinks.md",
        "papers/tensorlens.md",
        "papers/induction.md",
        "papers/convex-duality.md",
        "papers/explainability.md",
        "papers/hybrid.md",
        "papers/gated.md",
        "papers/universal-approximation.md",
        "papers/mind-the-gap.md",
        "papers/rank-versus-heads.md",
        "papers/fast.md",
        "papers/qk-eigenspectrum.md",
        "papers/multiformer.md",
        "papers/over-smoothing.md",
        "papers/doubly-normalised.md",
        "papers/within-one-input.md",
    ],
    "Measurements": [
        "measurements/index.md",
        "measurements/start.md",
        "measurements/study.md",
        "measurements/diagnostics.md",
        "measurements/reconstruct.md",
        "measurements/attention.md",
        "measurements/plans.md",
        "measurements/collapse.md",
        "measurements/explain.md",
        "measurements/mechanisms.md",
        "measurements/load.md",
        "measurements/scale.md",
        "measurements/together.md",
        "measurements/fuzz.md",
    ],
    "Developing": [
        "developing/index.md",
        "developing/way-of-a-batch.md",
        "developing/add-a-mechanism.md",
        "developing/add-a-statistic.md",
        "developing/add-a-diagnostic.md",
        "developing/add-a-model-family.md",
        "developing/add-a-paper.md",
        "developing/results.md",
        "developing/testing.md",
        "contributing.md",
        "releasing.md",
        "security.md",
        "changelog.md",
    ],
}
MAY_BE_MISSING = {"contributing.md", "releasing.md"}


def navigation(pages: Iterable[str]) -> Navigation:
    """The navigation, without pages of the repository's root that are not there."""
    absent = sorted(MAY_BE_MISSING - set(pages))
    return {
        title: [entry for entry in entries if entry not in absent]
        for title, entries in NAVIGATION.items()
    }


def listed(nav: Navigation) -> list[str]:
    """Every page of a navigation, in its order."""
    return [
        page
        for entries in nav.values()
        for entry in entries
        for page in (listed(entry) if isinstance(entry, dict) else [entry])
    ]


def as_toml(nav: Navigation) -> str:
    """A navigation as Zensical reads it: a list of pages and of sections by title."""
    return f"[{', '.join(_section(*section) for section in nav.items())}]"


def _section(title: str, entries: "list[str | Navigation]") -> str:
    parts = [
        as_toml(entry)[1:-1] if isinstance(entry, dict) else json.dumps(entry) for entry in entries
    ]
    return f"{{{json.dumps(title)} = [{', '.join(parts)}]}}"

"""The operator's maps beside other methods by deletion.

The task is the sentiment of reviews, read from a frozen encoder by a linear probe.
"""

from __future__ import annotations

from typing import Any

from ...models.load import load
from ...run.progress import Progress
from ..explainability.deletion import RANDOM, compare_methods
from ..explainability.labelled import SENTIMENT, labelled_reviews
from ..explainability.probe import probe_logits, probe_of, share_right

IN_OUT, NORM = "TensorLens In+Out", "TensorLens norm"
METHODS = (
    IN_OUT,
    NORM,
    "TensorLens toward the target",
    "attention",
    "rollout",
    "gradient × input",
    "relevance",
)
ORDER = (*METHODS, RANDOM)


def deletion_run(
    name: str, learned: int, asked: int, length: int, draws: int, seed: int, progress: Progress
) -> dict[str, Any]:
    """Areas under the deletion curves of every method, one number per input.

    Also how often the probe is right.
    """
    model = load(name)
    learn, ask = labelled_reviews(model, learned, asked, length=length, seed=seed)
    probe = probe_of(model, learn, SENTIMENT, "mean")
    right = int((probe_logits(probe, ask).argmax(1) == ask.labels).sum())
    share, low, high = share_right(right, len(ask))
    found = compare_methods(
        probe, ask, draws=draws, seed=seed, methods=METHODS, progress=progress, name="reviews"
    )
    return {
        **found,
        "facts": {
            **found["facts"],
            "probe right": share,
            "low": low,
            "high": high,
            "learned from": len(learn),
        },
    }

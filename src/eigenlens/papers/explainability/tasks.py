"""The three models with their labelled inputs, and their answers while tokens are taken away."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...models.load import Model, load
from ...run.progress import Progress
from ..inputs import CLOTHING
from .checks import checks
from .deletion import compare_methods
from .labelled import SENTIMENT, Labelled, labelled_pictures, labelled_reviews
from .probe import probe_logits, probe_of, share_right
from .stories import own_stories

if TYPE_CHECKING:
    from . import Scale


def reviews(scale: Scale, seed: int, progress: Progress) -> dict[str, Any]:
    """The sentiment of reviews by minilm with a probe of the mean of its tokens.

    The checks of relevance are made on it too.
    """
    progress("training a probe on reviews", 0, 1)
    base = load("minilm")
    learn, held = labelled_reviews(base, scale.learned_texts, scale.held_texts, seed=seed)
    model = probe_of(base, learn, SENTIMENT, "mean")
    asked = next(held.parts(scale.texts))
    found = compare_methods(
        model, asked, draws=scale.draws, seed=seed, progress=progress, name="reviews"
    )
    return _with_accuracy(found, model, held) | {"checks": checks(model, next(asked.parts(8)))}


def clothing(scale: Scale, seed: int, progress: Progress) -> dict[str, Any]:
    """The kind of clothing in a picture by dinov2-small with a probe of its class token.

    The picture has 7 × 7 patches.
    """
    progress("training a probe on pictures of clothing", 0, 1)
    base = load("dinov2-small")
    learn, held = labelled_pictures(base, scale.learned_pictures, scale.held_pictures, seed=seed)
    model = probe_of(base, learn, CLOTHING, "first")
    asked = next(held.parts(scale.pictures))
    return _with_accuracy(
        compare_methods(
            model,
            asked,
            draws=scale.draws,
            seed=seed,
            progress=progress,
            name="pictures of clothing",
        ),
        model,
        held,
    )


def stories(scale: Scale, seed: int, progress: Progress) -> dict[str, Any]:
    """The next token of stories15m's own stories.

    The right token is the one that it finds likeliest when nothing is gone.
    """
    progress("writing stories", 0, 1)
    model = load("stories15m")
    asked = own_stories(model, scale.stories, scale.tokens, seed)
    return compare_methods(
        model, asked, draws=scale.draws, seed=seed, progress=progress, name="stories"
    )


def _with_accuracy(found: dict[str, Any], model: Model, held: Labelled) -> dict[str, Any]:
    right = int((probe_logits(model, held).argmax(1) == held.labels).sum())
    share, low, high = share_right(right, len(held))
    facts = {
        **found["facts"],
        "accuracy": share,
        "low": low,
        "high": high,
        "held-out inputs": len(held),
    }
    return {**found, "facts": facts}

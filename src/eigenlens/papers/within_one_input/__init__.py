"""Low rank within one input (arXiv 2604.04384).

The scores of one input, without the mean of each row, hold most of their energy in few singular
components, while the query-key matrices of the heads do not. The paper's five decoders are in no
package registry; the statement is judged on the catalogue's models, at four shares of the energy
and along the length of inputs. Inputs of shuffled and of random tokens show what is due to the
text, and what to the weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...run.parts import Parts
from ...run.progress import Progress
from ..claims import Tables
from ..paper import Paper, parts_by_model
from .claims import claims_of
from .inputs import KINDS
from .models import SHARES, growth_rows, model_rows
from .pictures import charts


@dataclass(frozen=True)
class Scale:
    """Models, their text, `length` and `inputs`; one decoder and its text for growth with length.

    `growth_inputs` texts of `longest` tokens are read, and `growth_controls` of each control.
    """

    models: tuple[str, ...] = (
        "minilm",
        "stories15m",
        "smollm2",
        "distilbert-gec",
        "dinov2-small",
        "flan-t5-small",
    )
    text: str = "wikipedia"
    length: int = 128
    inputs: int = 32
    growing: str = "smollm2"
    longest: int = 8192
    growth_inputs: int = 4
    growth_controls: int = 2


FULL = Scale()
QUICK = Scale(models=("minilm",), inputs=8, longest=512, growth_inputs=3, growth_controls=1)


def measure(scale: Scale, parts: Parts, seed: int, progress: Progress) -> Tables:
    """Measure every model at one length, and one decoder along the length."""
    sizes = (scale.text, scale.length, scale.inputs, seed)
    makes = {name: partial(model_rows, name, *sizes) for name in scale.models}
    found, missing = parts_by_model(parts, makes, progress)
    numbers = dict(zip(KINDS, (scale.growth_inputs, *[scale.growth_controls] * 2)))
    grown = parts.each(
        {
            f"growth/{kind}": partial(
                growth_rows, scale.growing, scale.text, scale.longest, number, kind, seed
            )
            for kind, number in numbers.items()
        },
        progress,
        f"measuring {scale.growing} on up to {scale.longest:,} tokens",
    )
    parts.notes += [why for name in found if (why := found[name]["no weights"])]
    return {
        "spectra": [row for each in found.values() for row in each["spectra"]],
        "heads": [row for each in found.values() for row in each["heads"]],
        "growth": [row for rows in grown for row in rows],
        "missing": missing,
    }


def _columns(*names: str) -> Sequence[str]:
    return (*names, *(f"{round(100 * share)} %" for share in SHARES), "low", "high")


SHOWN = (
    ("Components that hold a share of the energy of one matrix, median head", "spectra"),
    ("Row-centred scores by the number of tokens, median head", "growth"),
)
MAIN_COLUMNS = {
    "spectra": _columns("model", "inputs", "of", "d"),
    "growth": _columns("inputs", "tokens", "d"),
}
NOTES: tuple[Any, ...] = (
    "the text of the paper was not at hand: its claims are as others cite them, and how it counts"
    " query heads that share a key-value head is not known; here every query head counts",
    "scores are of all pairs, before the mask, without a position bias (flan-t5-small has one)",
    "low and high are the 10 and 90 % of heads with the fewest and the most components at 90 %",
)
paper = Paper(
    "within-one-input",
    "Low rank within one input (arXiv 2604.04384)",
    FULL,
    QUICK,
    measure,
    claims_of,
    charts,
    SHOWN,
    NOTES,
    columns=MAIN_COLUMNS,
    models=("models",),
    kinds=("encoder", "decoder", "encoder-decoder", "vision"),
)

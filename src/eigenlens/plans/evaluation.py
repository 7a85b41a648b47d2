"""The result of an evaluation, which can be read without the model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..display import numbered, percent
from ..names import unknown_name
from ..passes.facts import Facts, ModelResultViews
from ..run.result import TitledTable
from ..run.result_folder import read_result, report_damage, write_result
from ..run.schema import COUNT, LAYER, MEASURED, NUMBER, PLAIN, TableSchema, check_schema
from .target import target_label

FORMAT = 1
MEASURES = {
    "score_error": "score error (squared, of the variance)",
    "total_variation": "total variation of the patterns",
    "kl": "KL of the patterns",
    "top_1": "top-1 agreement of the patterns",
    "output_error": "relative error of the attention output",
    "pairs": "share of the pairs computed exactly",
    "work": "share of the multiply-adds for pairs",
}
SPARSE_MEASURES = {
    "output_error": "relative error of the attention output",
    "work": "share of the work of full attention",
    "work_planned": "share of the work of full attention, at fitting",
}
OLD_SPARSE_MEASURES = {
    name: label.replace("full attention", "causal attention")
    for name, label in SPARSE_MEASURES.items()
}
"""Their names in evaluations of version 0.1.0."""
DROP_IN_MEASURES = {
    "total_variation": "total variation of the patterns",
    "top_1": "top-1 agreement of the patterns",
    "output_error": "relative error of the attention output",
    "work": "share of the multiply-adds of full attention",
}
SECONDS = "seconds of the whole passes"
FIRST_TOKEN = "seconds to the first token, per input"
PER_SECOND = "inputs per second"
MEMORY = "most memory of a pass, MB beyond the model"
ATTENTION = "seconds of attention, per input"
SIMULATED = (
    "The plan is simulated: it computes densely and counts what a kernel would save, so no seconds"
    " are shown"
)
TASKS = ("perplexity", "top-1 agreement", "cosine of the embeddings")
"""The measure a model is judged by; it has one of them."""
AGREEMENT = {
    "top-1 agreement": "the top-1 agreement with the plain model is {:.4f}",
    "cosine of the embeddings": "the embeddings keep a cosine of {:.4f} with the plain model's",
}
"""Measures that compare the changed model with the plain one, in words."""
SAME = 0.02
"""Passes count as equally fast if their seconds differ by no more than this share."""


SCHEMA = {
    "facts": {
        "model": str,
        "data": str,
        "length": COUNT,
        "inputs": COUNT,
        "notes": [str],
        "versions?": TableSchema(str),
        "seconds?": NUMBER,
        "created?": str,
        "plan": {
            "work": MEASURED,
            "target": TableSchema((*PLAIN, list, dict)),
            "model": {"name": str, "fingerprint": (str, None)},
            "study?": (str, None),
            "simulated?": bool,
        },
    },
    "summary": [
        {
            "measure": str,
            "plain": MEASURED,
            "planned": MEASURED,
            "change?": (MEASURED, None),
            "low?": (MEASURED, None),
            "high?": (MEASURED, None),
        }
    ],
    "heads": [
        {
            "stack": str,
            "layer": LAYER,
            "head": LAYER,
            "work": MEASURED,
            "total_variation?": MEASURED,
            "output_error?": MEASURED,
        }
    ],
}
"""The form of `evaluation.json`."""


@dataclass(frozen=True, repr=False)
class Evaluation(ModelResultViews):
    """What a plan or another mechanism changes in a model.

    `summary` has one row per measure, with the plain and the planned model; `heads` has one row per
    head.

    >>> found = Evaluation.open("EVALUATION")
    >>> found.value("perplexity")
    >>> print(found.sentence)
    """

    stored: dict[str, Any]
    """The facts about its model, data and plan, as JSON keeps them."""
    summary: list[dict[str, Any]]
    heads: list[dict[str, Any]]

    @property
    def facts(self) -> Facts:
        """The facts about model and data; the weights are those that the plan was made for."""
        model = {**self.stored["plan"]["model"], "name": self.stored["model"]}
        return Facts.from_record(self.stored, model=model)

    @property
    def title(self) -> str:
        """Model and data, and the number and length of the inputs."""
        inputs = numbered(self.facts.inputs or 0, "input")
        return f"{self.name}: {inputs} of {self.facts.length} tokens"

    @property
    def target(self) -> dict[str, Any]:
        """What the plan was made for, or the mechanism that took its place.

        `{"budget": 0.25}`, `{"attention": "window", "window": 64}`.
        """
        return self.stored.get("plan", {}).get("target", {})

    @property
    def simulated(self) -> bool:
        """Whether its plan is simulated: seconds then say nothing.

        Evaluations of old versions do not know; theirs are if they have patterns of a plan.
        """
        known = self.stored.get("plan", {}).get("simulated")
        patterns = any(row["measure"] == MEASURES["total_variation"] for row in self.summary)
        return (patterns and "attention" not in self.target) if known is None else known

    @property
    def sentence(self) -> str:
        """What the changed model loses, for which share of the work, and whether it got faster."""
        rows = {row["measure"]: row for row in self.summary}
        task = next((rows[measure] for measure in TASKS if measure in rows), None)
        lost = [] if task is None else [_change(task, self.summary)]
        if MEASURES["total_variation"] in rows:
            lost.append(
                "the attention patterns move by"
                f" {rows[MEASURES['total_variation']]['planned']:.3f} in total variation (0: not at"
                " all, 1: completely)"
            )
            label = MEASURES["work"] if MEASURES["work"] in rows else DROP_IN_MEASURES["work"]
            work = (
                f"{percent(rows[label]['planned'], 1)} of the {label.removeprefix('share of the ')}"
            )
        else:
            lost.append(
                "the attention output has a relative error of"
                f" {rows[SPARSE_MEASURES['output_error']]['planned']:.3f}"
            )
            work = _sparse_work(rows)
        dropped = self.target.get("attention")
        what = "the plan" if dropped is None else f"{dropped} attention and no training"
        speed = SIMULATED if self.simulated else _speed(rows)
        return f"With {what} {', and '.join(lost)}. This takes {work}. {speed}."

    def value(self, measure: str) -> float:
        """The figure of the changed model: `evaluation.value("cosine of the embeddings")`."""
        found = {row["measure"]: row["planned"] for row in self.summary}
        if measure not in found:
            raise unknown_name("measure", measure, found)
        return found[measure]

    def rows(self) -> list[dict[str, Any]]:
        """One row per measure: plain, planned and the change."""
        return self.summary

    def printed(self) -> list[TitledTable]:
        """What a terminal prints: every measure."""
        what = target_label(self.target) if "attention" in self.target else "the plan"
        return [TitledTable(f"The model with {what} beside the model without", self.summary)]

    def record(self) -> dict[str, Any]:
        """Everything as plain data, as `--json` prints it."""
        return {
            **self.stored,
            "sentence": self.sentence,
            "summary": self.summary,
            "heads": self.heads,
        }

    def save(self, folder: str | Path) -> Path:
        """Write `evaluation.json` into a folder."""
        content = {
            "format": FORMAT,
            "facts": self.stored,
            "summary": self.summary,
            "heads": self.heads,
        }
        return write_result(folder, "evaluation", content)

    @classmethod
    def open(cls, folder: str | Path) -> Evaluation:
        """Open an evaluation; a damaged or foreign folder is refused with the reason."""
        record = read_result(folder, "evaluation", FORMAT, ("evaluate", "MODEL", "--plan", "PLAN"))
        with report_damage(folder, "evaluation"):
            found = cls(record["facts"], record["summary"], record["heads"])
            _check(found)
        return found

    def plot(self) -> Any:
        """A map of the total variation, or output error, of every head (an altair chart)."""
        from .plots import head_map

        return head_map(
            self.heads, "total_variation" if "total_variation" in self.heads[0] else "output_error"
        )

    def __repr__(self) -> str:
        return f"<evaluation of {self.name}>"


def _check(found: Evaluation) -> None:
    """Raise an error if a record lacks what an evaluation needs."""
    check_schema(
        {"facts": found.stored, "summary": found.summary, "heads": found.heads}, SCHEMA, "it"
    )
    if not found.heads or any(head.keys() != found.heads[0].keys() for head in found.heads):
        raise ValueError("not every head has the same numbers")
    if not {"total_variation", "output_error"} & found.heads[0].keys():
        raise ValueError("the heads have neither total_variation nor output_error")
    _ = found.sentence


def _sparse_work(rows: dict[str, dict[str, Any]]) -> str:
    """The share of the work that was counted here, beside the planned one.

    Evaluations of old versions name causal attention, and may know only the planned share.
    """
    names = SPARSE_MEASURES
    if names["work_planned"] not in rows:
        names = OLD_SPARSE_MEASURES
    whole = names["work"].removeprefix("share of ")
    planned = rows[names["work_planned"]]["planned"]
    if names["work"] not in rows:
        return f"a planned {percent(planned, 1)} of {whole} (not counted here)"
    return (
        f"{percent(rows[names['work']]['planned'], 1)} of {whole}"
        f" ({percent(planned, 1)} were planned)"
    )


def _interval(summary: list[dict[str, Any]]) -> tuple[float, float, float] | None:
    """The mean rise over inputs and the ends of its interval; None if it is not known."""
    for row in summary:
        low, high = row.get("low"), row.get("high")
        if low is not None and high is not None:
            return row["planned"], low, high
    return None


def _change(row: dict[str, Any], summary: list[dict[str, Any]]) -> str:
    """A measure before and after: `the perplexity goes from 12.1 to 12.5 (+3.1 %)`.

    A measure that is 1 by definition in the plain model has one number. The interval is that of the
    mean over inputs.
    """
    plain, planned, found = row["plain"], row["planned"], _interval(summary)
    if plain == 1:
        words = AGREEMENT.get(row["measure"], f"the {row['measure']} is {{:.4f}}").format(planned)
        if found is None:
            return f"{words} (1: identical)"
        return f"{words} (1: identical; 95 % interval {1 - found[2]:.4f} to {1 - found[1]:.4f})"
    change = f"{100 * (planned / plain - 1):+.1f} %"
    if found is not None:
        mean, low, high = (f"{100 * x:.2f}" for x in found)
        change += f"; per input {mean} %, 95 % interval {low} to {high} %"
    return f"the {row['measure']} goes from {plain:.4g} to {planned:.4g} ({change})"


def _speed(rows: dict[str, dict[str, Any]]) -> str:
    """How much faster the model got, end to end, and its attention where that was timed."""
    row = rows[SECONDS]
    plain, planned = row["plain"], row["planned"]
    seconds = f"{planned:.3g} s instead of {plain:.3g} s for all passes"
    if abs(planned - plain) <= SAME * plain:
        found = f"The model is about as fast as before ({seconds})"
    elif planned < plain:
        found = f"The model got {plain / max(planned, 1e-9):.2f} times faster ({seconds})"
    else:
        found = f"The model got {planned / max(plain, 1e-9):.2f} times slower ({seconds})"
    if ATTENTION in rows:
        attention = rows[ATTENTION]["plain"] / max(rows[ATTENTION]["planned"], 1e-9)
        found += f", its attention alone {attention:.2f} times"
        found += " as fast" if attention < 1 else " faster"
    return found

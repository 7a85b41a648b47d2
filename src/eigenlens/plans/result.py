"""A plan: the estimator of every head, which can be read without the model."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ..captures import AttentionCall, Head, Labels, Site, replace_attention
from ..captures.transformers_backend import attention_function, supports
from ..data.inputs import Request
from ..display import numbered
from ..errors import EigenlensError
from ..estimators.estimator import Estimate
from ..models.load import Model, load
from ..models.weights import same_weights
from ..passes.facts import Facts, ModelResultViews
from ..run.files import made_folder, read_tensors, sha256, write_tensors
from ..run.result import TitledTable
from ..run.result_folder import read_result, report_damage, write_result
from .check import check_plan, with_new_names
from .examples import FILE as EXAMPLES
from .examples import Examples
from .installed import install, uninstall
from .parts import PlanPart, check_finite, estimate_scores, read_part
from .sparse_plan import SparsePlan, Tally
from .target import target_label

FORMAT = 1
KEPT = ("eigenlens", "model", "created", "seconds", "length")
"""The facts that a plan keeps, in their order."""
KEPT_OF_MODEL = ("fingerprint", "architecture", "source", "place", "name")
NO_FACTS = {"format", "parts", "heads", "sha256", "blocks", "sparse", "examples"}


@dataclass(frozen=True)
class Choice:
    """The estimator of one head, its cost and loss on held-out inputs, and why it was chosen."""

    stack: str
    layer: int
    head: int
    estimator: str
    settings: dict[str, Any]
    work: float
    pairs: float
    total_variation: float | None
    score_error: float | None
    why: str

    @property
    def at(self) -> Head:
        return Head(self.stack, self.layer, self.head)


class Plan(ModelResultViews):
    """How every head of a model attends: by a form that leaves keys out, or by an estimator.

    >>> plan = Plan.open("PLAN")
    >>> with plan.applied(model):            # any model the study could capture
    ...     model(**inputs)
    >>> plan.install(model)                  # or for good
    >>> plan.uninstall(model)
    """

    def __init__(
        self,
        stored: dict[str, Any],
        choices: tuple[Choice, ...],
        parts: dict[Site, list[PlanPart]],
        sparse: SparsePlan | None = None,
        examples: Examples | None = None,
    ) -> None:
        self.stored, self.choices, self.parts = stored, choices, parts
        self.sparse = sparse
        """Attention that leaves keys out, in place of estimators of scores."""
        self.examples = examples
        """True and reconstructed patterns of a few inputs; None for a sparse plan."""
        self.tally = Tally() if sparse is None else sparse.tally
        """How many calls were attended by the plan, and how many exactly, by reason."""

    @property
    def simulated(self) -> bool:
        """Whether its arithmetic is dense: it counts what a kernel would save, and saves nothing.

        Plans of estimators are simulated; plans that leave keys out are faster in seconds.
        """
        return self.sparse is None

    @property
    def labels(self) -> Labels:
        """The labels of heads: `L3H4`, with several stacks `encoder L3H4`."""
        return Labels(choice.stack for choice in self.choices)

    @property
    def facts(self) -> Facts:
        """The facts about model, data and making; the data is that of the study."""
        return Facts.from_record(self.stored, data=self.stored["study"]["data"])

    @property
    def title(self) -> str:
        """Model and data, the length of the inputs, and the budget or error."""
        return f"{self.name}: {self.kind} for {self.length} tokens, {target_label(self.target)}"

    @property
    def kind(self) -> str:
        """The plan in two words: whether it is simulated."""
        return "simulated plan" if self.simulated else "plan"

    @property
    def length(self) -> int:
        """Tokens per input that the plan is for."""
        return self.stored["length"]

    @property
    def target(self) -> dict[str, float]:
        """What it was made for: `{"loss": 0.01}`, `{"budget": 0.25}`, `{"error": 0.05}`."""
        return self.stored["target"]

    @property
    def request(self) -> Request:
        """The request for inputs of its study."""
        return Request.from_record(self.stored["study"]["request"])

    @property
    def curve(self) -> list[dict[str, Any]]:
        """One row per estimator and budget, mean over heads; empty for a sparse plan."""
        return self.stored["curve"]

    @property
    def work(self) -> float:
        """The mean share of the multiply-adds of exact scores, on the inputs it was chosen on."""
        return sum(choice.work for choice in self.choices) / len(self.choices)

    @property
    def total_variation(self) -> float:
        """The mean total variation over heads, on the inputs it was chosen on.

        NaN for a sparse plan, which estimates no scores.
        """
        return sum(
            math.nan if c.total_variation is None else c.total_variation for c in self.choices
        ) / len(self.choices)

    def scores(self, call: AttentionCall) -> Estimate:
        """Estimate the scores of all heads of a call, `(B, H, T, S)`."""
        return estimate_scores(self.parts, call)

    def attend(self, call: AttentionCall) -> Tensor | None:
        """The output `(B, H, T, E)` under the plan; None if the plan does not cover the call.

        The model then attends exactly: in the steps of generation after the first, for inputs
        longer than the plan was made for, and for masks it cannot serve. The tally counts them.
        """
        if self.sparse is not None:
            return self.sparse.attend(call)
        why = None
        if call.kind == "self" and call.q.shape[2] != call.k.shape[2]:
            why = "decoding" if call.q.shape[2] == 1 else "cache"
        elif max(call.q.shape[2], call.k.shape[2]) > self._longest(call):
            why = "long"
        if why is not None:
            self.tally.exact[why] += 1
            return None
        self.tally.planned += 1
        return call.pattern_of(self.scores(call).scores) @ call.values

    def _longest(self, call: AttentionCall) -> int:
        """The most keys that the estimators of a call's site were fitted on."""
        return self.stored["shapes"].get(str(call.site), {}).get("keys", self.length)

    @contextlib.contextmanager
    def applied(self, model: nn.Module | Model) -> Iterator[None]:
        """Let the model attend by the plan while the block runs."""
        loaded = self.check(model)
        with replace_attention(loaded.backbone, self.attend):
            yield

    def install(self, model: nn.Module | Model) -> None:
        """Let the model attend by the plan until `uninstall`.

        >>> plan.install(model)
        >>> model.generate(**inputs)        # the prompt by the plan, what follows exactly
        """
        loaded = self.check(model)
        install(loaded, self.attend)

    def uninstall(self, model: nn.Module | Model) -> None:
        """Let the model attend as before `install`."""
        uninstall(load(model, device=None))

    def mechanism(self, model: nn.Module | Model) -> Callable[..., tuple[Tensor, Tensor | None]]:
        """The plan as a function of the attention interface, for `el.attention.register`."""
        loaded = self.check(model)
        if not supports(loaded.backbone):
            raise EigenlensError(
                f"{loaded.name} does not use transformers' attention interface; apply the plan with"
                " `with plan.applied(model):`"
            )
        return attention_function(loaded.backbone, self.attend, loaded.module)

    def check(self, model: nn.Module | Model) -> Model:
        """Load the model; an error if its weights are not those the plan was made for."""
        loaded = load(model, device=None)
        mine, theirs = self.facts.model, loaded.facts
        sample = self.stored.get("weights")
        other = mine.fingerprint != theirs.fingerprint
        if other and not (sample and same_weights(sample, loaded.module)):
            raise EigenlensError(
                f"the plan was made for {mine.name} with weights {mine.fingerprint}, but this"
                f" is {loaded.name} with weights {theirs.fingerprint}; make a study and a plan"
                " of this model"
            )
        return loaded

    def save(self, folder: str | Path) -> Path:
        """Write `plan.json`, `plan.safetensors` and any `examples.safetensors` into a folder."""
        folder = made_folder(folder)
        tensors = {
            f"{site}|{i}|{name}": x
            for site, parts in self.parts.items()
            for i, part in enumerate(parts)
            for name, x in part.estimator.tensors.items()
        }
        if self.sparse is not None:
            tensors |= self.sparse.tensors
        write_tensors(folder / "plan.safetensors", tensors)
        record = {"format": FORMAT, **self.record(), "sha256": sha256(folder / "plan.safetensors")}
        if self.examples is not None:
            record["examples"] = self.examples.save(folder)
        write_result(folder, "plan", record)
        if self.examples is None:
            (folder / EXAMPLES).unlink(missing_ok=True)  # of a plan that was here before
        return folder

    @classmethod
    def open(cls, folder: str | Path) -> Plan:
        """Open a plan; a damaged or foreign folder is refused with the reason."""
        folder = Path(folder)
        record = read_result(folder, "plan", FORMAT, ("plan", "STUDY", "--budget", "0.25"))
        path = folder / "plan.safetensors"
        if not path.is_file() or sha256(path) != record.get("sha256"):
            raise EigenlensError(
                f"the plan in {folder} is damaged: plan.safetensors is missing or has changed;"
                " make it anew"
            )
        tensors = read_tensors(path)
        with report_damage(folder, "plan"):
            check_plan(record)
            record = with_new_names(record)
            parts = {
                Site.parse(key): [
                    read_part(f"{key}|{i}|", entry, tensors) for i, entry in enumerate(entries)
                ]
                for key, entries in record["parts"].items()
            }
            found = record.get("sparse") or record.get("blocks")
            sparse = (
                SparsePlan.from_record(found, check_finite(tensors), record["length"])
                if found
                else None
            )
            examples = Examples.open(folder, record["examples"]) if record.get("examples") else None
            choices = tuple(
                Choice(**{field.name: head[field.name] for field in fields(Choice)})
                for head in record["heads"]
            )
            facts = {key: record[key] for key in record if key not in NO_FACTS}
        return cls(facts, choices, parts, sparse, examples)

    def record(self) -> dict[str, Any]:
        """Everything but the tensors as plain data, as `--json` prints it."""
        parts = {
            str(site): [
                {
                    "heads": list(p.heads),
                    "estimator": p.estimator.name,
                    "settings": p.estimator.settings,
                }
                for p in parts
            ]
            for site, parts in self.parts.items()
        }
        sparse = None if self.sparse is None else self.sparse.record()
        examples = None if self.examples is None else self.examples.record()
        return {
            **self.stored,
            "heads": self.rows(),
            "parts": parts,
            "sparse": sparse,
            "examples": examples,
        }

    @property
    def sentence(self) -> str:
        """What share of the work the plan takes, and how far it moves the patterns."""
        from .tables import plan_sentence

        return plan_sentence(self)

    def printed(self) -> list[TitledTable]:
        """What a terminal prints: layers, estimators at this budget; every head in full."""
        from .tables import plan_tables

        return plan_tables(self)

    def rows_to_read(self) -> list[dict[str, Any]]:
        """One row per head: its estimator, what that costs and loses, and why it was chosen."""
        from .tables import choice_rows

        return choice_rows(self)

    def rows(self) -> list[dict[str, Any]]:
        """One row per head: its estimator and settings, work, pairs, errors, and why."""
        return [dict(vars(choice)) for choice in self.choices]

    def plot(self) -> Any:
        """Draw the error of every estimator against the budget (an altair chart).

        For a sparse plan, draw the share of attention that each head keeps.
        """
        from .plots import budget_curves, head_map

        if self.sparse is not None:
            return head_map(self.rows(), "work", "Share of full attention that each head computes")
        point = {"work": self.work, "total_variation": self.total_variation}
        return budget_curves(self.curve, point)

    def __repr__(self) -> str:
        chosen = Counter(choice.estimator for choice in self.choices)
        heads = ", ".join(
            f"{name} in {numbered(number, 'head')}" for name, number in chosen.most_common()
        )
        lost = "" if self.sparse is not None else f", total variation {self.total_variation:.3g}"
        target = target_label(self.target)
        name = self.facts.model.name
        return (
            f"<{self.kind} for {name}, {self.length} tokens, {target}: work {self.work:.3g}{lost};"
            f" {heads}>"
        )

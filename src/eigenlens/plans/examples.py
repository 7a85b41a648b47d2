"""True and reconstructed patterns of a few held-out inputs, kept with a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..captures import AttentionCall, Head, Labels, Site, SiteInfo
from ..errors import EigenlensError
from ..estimators.exact import Exact
from ..run.files import read_tensors, sha256, write_tensors
from ..run.progress import Progress, silent

if TYPE_CHECKING:
    from ..data.inputs import Batch
    from ..models.load import Model
    from .held_out import HeldOut
    from .trials import Measured, Trials

FILE = "examples.safetensors"
INPUTS, HEADS, TOKENS = 3, 6, 48


@dataclass(frozen=True, eq=False, repr=False)
class Examples:
    """The first n tokens of I inputs in P heads: the true pattern, and each candidate's.

    >>> examples = Plan.open("PLAN").examples
    >>> examples.plot(input=0, head=5, candidate=examples.best(5, budget=0.25))
    """

    tokens: tuple[dict[str, tuple[str, ...]], ...]
    """Per input: stack → the texts of its first n tokens, as the tokenizer gives them."""
    heads: tuple[Head, ...]
    """The heads, from the one that loses least by the plan to the one that loses most.

    Methods take the index of a head as `head`.
    """
    candidates: tuple[tuple[str, float | None], ...]
    """Estimator and nominal budget of each candidate; None if the estimator takes no budget."""
    true: Tensor  # (I, P, n, n) float16
    estimated: Tensor  # (I, P, C, n, n) float16; not a number where a candidate cannot serve
    # (P, C) mean share of multiply-adds on the inputs the plan was chosen on; infinite where it
    # cannot serve
    work: np.ndarray
    total_variation: np.ndarray  # (P, C) likewise
    chosen: tuple[int | None, ...]
    """The candidate that the plan gave each head; None for exact scores."""

    def best(self, head: int, budget: float) -> int | None:
        """The candidate with the least total variation within the budget, or None."""
        self._check(head=head)
        # (C,)
        errors = np.where(self.work[head] <= budget + 1e-9, self.total_variation[head], np.inf)
        errors = np.where(np.isnan(errors), np.inf, errors)
        return int(errors.argmin()) if np.isfinite(errors).any() else None

    def at(self, head: int, estimator: str, budget: float | None) -> int | None:
        """The candidate of this name and nominal budget.

        None if there is none, or if it cannot estimate this head.
        """
        self._check(head=head)
        found = [i for i, known in enumerate(self.candidates) if known == (estimator, budget)]
        return found[0] if found and np.isfinite(self.total_variation[head, found[0]]) else None

    def patterns(
        self, input: int = 0, head: int = 0, candidate: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """The true and the reconstructed pattern, `(n, n)` float32.

        By default as the plan reconstructs this head.
        """
        self._check(input=input, head=head, candidate=candidate)
        true, index = (
            self.true[input, head].float(),
            self.chosen[head] if candidate is None else candidate,
        )
        reconstructed = true if index is None else self.estimated[input, head, index].float()
        if bool(reconstructed.isnan().any()):
            raise EigenlensError(
                f"{self.label(head, candidate)}: this estimator cannot serve this head; choose"
                " another candidate"
            )
        return true, reconstructed

    def label(self, head: int = 0, candidate: int | None = None) -> str:
        """Head and candidate: `L3H7, joint at a budget of 0.25`."""
        self._check(head=head, candidate=candidate)
        called = self._called(self.chosen[head] if candidate is None else candidate)
        return f"{self.labels(self.heads[head])}, {called}"

    @property
    def labels(self) -> Labels:
        return Labels(head.stack for head in self.heads)

    def _called(self, index: int | None) -> str:
        name, budget = (Exact.name, None) if index is None else self.candidates[index]
        return name if budget is None else f"{name} at a budget of {budget:g}"

    def rows(
        self, input: int = 0, head: int = 0, candidate: int | None = None
    ) -> list[dict[str, Any]]:
        """One row per pair: query, key, their tokens, true and reconstructed weight, difference."""
        true, reconstructed = self.patterns(input, head, candidate)
        words = self.tokens[input][self.heads[head].stack]
        kept, made = true.tolist(), reconstructed.tolist()
        return [
            {
                "query": i,
                "key": j,
                "query_token": words[i],
                "key_token": words[j],
                "true": kept[i][j],
                "reconstructed": made[i][j],
                "difference": made[i][j] - kept[i][j],
            }
            for i in range(len(kept))
            for j in range(len(kept))
        ]

    def plot(self, input: int = 0, head: int = 0, candidate: int | None = None) -> Any:
        """Draw the true pattern, the reconstructed one and the difference (an altair chart)."""
        from .plots import pattern_maps

        return pattern_maps(self.rows(input, head, candidate), self.label(head, candidate))

    def __repr__(self) -> str:
        return f"<patterns of {len(self.tokens)} inputs in {len(self.heads)} heads>"

    def _repr_html_(self) -> str:
        from ..display import html_table

        rows, labels = [], self.labels
        for head, c, work, lost in zip(self.heads, self.chosen, self.work, self.total_variation):
            numbers = (
                {"work": 1.0, "total variation": 0.0}
                if c is None
                else {"work": work[c], "total variation": lost[c]}
            )
            rows.append({"head": labels(head), "estimator": self._called(c), **numbers})
        return html_table(rows)

    def _check(self, **indices: int | None) -> None:
        sizes = {
            "input": len(self.tokens),
            "head": len(self.heads),
            "candidate": len(self.candidates),
        }
        for name, index in indices.items():
            if index is not None and not 0 <= index < sizes[name]:
                raise EigenlensError(
                    f"no {name} {index} among the examples; there are {sizes[name]}, counted from 0"
                )

    def record(self) -> dict[str, Any]:
        """Everything but the tensors as plain data."""
        tokens = [{stack: list(words) for stack, words in known.items()} for known in self.tokens]
        heads = [list(astuple(head)) for head in self.heads]
        candidates = [list(known) for known in self.candidates]
        return {
            "tokens": tokens,
            "places": heads,
            "candidates": candidates,
            "chosen": list(self.chosen),
        }

    def save(self, folder: Path) -> dict[str, Any]:
        """Write the tensors into the folder of a plan; returns the entry for `plan.json`."""
        numbers = {
            "work": torch.from_numpy(self.work),
            "total_variation": torch.from_numpy(self.total_variation),
        }
        write_tensors(folder / FILE, {"true": self.true, "estimated": self.estimated, **numbers})
        return {**self.record(), "sha256": sha256(folder / FILE)}

    @classmethod
    def open(cls, folder: Path, record: dict[str, Any]) -> Examples:
        """Read the examples of the plan in a folder, with their entry in `plan.json`."""
        path = folder / FILE
        if not path.is_file() or sha256(path) != record["sha256"]:
            raise EigenlensError(
                f"the plan in {folder} is damaged: {FILE} is missing or has changed; make it anew"
            )
        x = read_tensors(path)
        tokens = tuple(
            {stack: tuple(map(str, words)) for stack, words in known.items()}
            for known in record["tokens"]
        )
        heads = tuple(
            Head(str(stack), int(layer), int(head)) for stack, layer, head in record["places"]
        )
        candidates = tuple(
            (str(name), None if budget is None else float(budget))
            for name, budget in record["candidates"]
        )
        found = cls(
            tokens,
            heads,
            candidates,
            x["true"],
            x["estimated"],
            x["work"].numpy(),
            x["total_variation"].numpy(),
            tuple(record["chosen"]),
        )
        found._check_shapes()
        return found

    def _check_shapes(self) -> None:
        (I, P, C), n = (
            (len(self.tokens), len(self.heads), len(self.candidates)),
            self.true.shape[-1],
        )
        fits = (
            I * P * n > 0
            and self.true.dtype == self.estimated.dtype == torch.float16
            and bool(self.true.isfinite().all())
        )
        fits = fits and self.true.shape == (I, P, n, n) and self.estimated.shape == (I, P, C, n, n)
        fits = (
            fits
            and not bool(self.estimated.isinf().any())
            and self.work.dtype.kind == self.total_variation.dtype.kind == "f"
        )
        fits = fits and all(0 <= at.layer < 100_000 and 0 <= at.head < 100_000 for at in self.heads)
        fits = (
            fits
            and self.work.shape == self.total_variation.shape == (P, C)
            and len(self.chosen) == P
        )
        fits = fits and all(c is None or 0 <= c < C for c in self.chosen)
        if not fits or any(len(known[at.stack]) != n for known in self.tokens for at in self.heads):
            raise ValueError("the examples do not fit their tensors")


def take(
    trials: Trials,
    measured: Measured,
    chosen: np.ndarray,
    held: HeldOut,
    sites: dict[Site, SiteInfo],
    number: int,
    progress: Progress = silent,
) -> Examples | None:
    """Keep the patterns of every candidate for a few inputs, in a few heads.

    The inputs are among the `number` that the plan was chosen on. `chosen (N,)` is the candidate of
    every head of all sites; heads are taken from those that lose least to those that lose most by
    it. None if no site attends over its own tokens.
    """
    work, errors = measured.table("work"), measured.table("total_variation")  # (C, N)
    # (N,)
    heads = [
        Head(site.stack, site.layer, head)
        for site, known in trials.statistics.items()
        for head in range(known.heads)
    ]
    square = {
        site: known
        for site, known in sites.items()
        if known.kind == "self" and known.queries == known.keys
    }
    columns = _spread(
        [j for j, at in enumerate(heads) if at.site in square],
        errors[chosen, np.arange(len(heads))],
    )
    if not columns:
        return None
    kept = [i for i, candidate in enumerate(trials.candidates) if candidate.name != Exact.name]
    n = min(TOKENS, *(known.queries for known in square.values()))
    batch = held.apart(number, INPUTS)
    found: dict[int, tuple[Tensor, Tensor]] = {}

    def sink(call: AttentionCall) -> None:
        for j in columns:
            at = heads[j]
            # windows of an input are no inputs
            if at.site != call.site or len(call.q) != held.size(batch):
                continue
            one = call.of_heads([at.head])
            # (I, C, n, n)
            estimated = torch.full((len(call.q), len(kept), n, n), torch.nan, dtype=torch.float16)
            for c, i in enumerate(kept):
                estimator = trials.fitted[at.site][i]
                if estimator is not None and np.isfinite(errors[i, j]):
                    estimated[:, c] = _crop(
                        one.pattern_of(estimator.of_heads([at.head]).estimate(one).scores), n
                    )
            found[j] = _crop(one.pattern(), n), estimated
            progress("reconstructing example patterns", len(found), len(columns))

    held.run_batch(batch, sink)
    columns = [j for j in columns if j in found]
    if not columns:
        return None
    stacks = {site.stack: known.queries for site, known in square.items()}
    return Examples(
        _tokens(held.model, batch, stacks, n),
        tuple(heads[j] for j in columns),
        tuple((trials.candidates[i].name, trials.candidates[i].budget) for i in kept),
        torch.stack([found[j][0] for j in columns], 1),
        torch.stack([found[j][1] for j in columns], 1),
        work[np.ix_(kept, columns)].T.copy(),
        errors[np.ix_(kept, columns)].T.copy(),
        tuple(kept.index(i) if i in kept else None for i in chosen[columns].tolist()),
    )


def _spread(columns: Sequence[int], lost: np.ndarray) -> list[int]:
    """At most six heads at even quantiles of their loss, from the least to the most."""
    order = sorted(columns, key=lambda j: float(lost[j]))
    return [order[round(i)] for i in np.linspace(0, len(order) - 1, min(HEADS, len(order)))]


def _crop(pattern: Tensor, n: int) -> Tensor:
    """The first n queries and keys of a single head, `(I, 1, T, T)` → `(I, n, n)`."""
    return pattern[:, 0, :n, :n].half().cpu()


def _tokens(
    model: Model, batch: Batch, stacks: dict[str, int], n: int
) -> tuple[dict[str, tuple[str, ...]], ...]:
    from ..data.token_text import token_texts

    texts = {stack: token_texts(model, batch, stack, length) for stack, length in stacks.items()}
    number = len(next(iter(batch.values())))
    return tuple(
        {stack: tuple(words[i][:n]) for stack, words in texts.items()} for i in range(number)
    )

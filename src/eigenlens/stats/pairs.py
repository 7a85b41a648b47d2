"""Whole score matrices as vectors of their valid pairs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..captures import AttentionCall
from ..errors import EigenlensError


@dataclass(eq=False)
class Pairs:
    """The N pairs (query, key) that a mask allows, in row order.

    A matrix (T, S) and its vector (N,) are two views.

    Invalid pairs have no coordinate at all, so a causal head of length n lives in n(n+1)/2
    dimensions.
    """

    valid: Tensor  # (T, S) bool

    @cached_property
    def index(self) -> Tensor:
        """Positions in the flattened matrix, (N,)."""
        return self.valid.flatten().nonzero()[:, 0]

    @property
    def number(self) -> int:
        return len(self.index)

    @cached_property
    def row_counts(self) -> Tensor:
        """Valid keys of each query, (T,)."""
        return self.valid.sum(1)

    def vectors(self, matrices: Tensor) -> Tensor:
        """(…, T, S) → (…, N)."""
        flat = matrices.flatten(-2)
        return flat if self.number == flat.shape[-1] else flat.index_select(-1, self.index)

    def matrices(self, vectors: Tensor, fill: float = 0.0) -> Tensor:
        """(…, N) → (…, T, S), with `fill` where no pair is."""
        T, S = self.valid.shape
        flat = vectors.new_full((*vectors.shape[:-1], T * S), fill)
        flat[..., self.index] = vectors
        return flat.unflatten(-1, (T, S))

    def row_means(self, vectors: Tensor) -> Tensor:
        """(…, N) → (…, T): the mean of each row over its valid keys."""
        T, S = self.valid.shape
        if self.number == T * S:
            return vectors.unflatten(-1, (T, S)).mean(-1)
        rows = torch.div(self.index, S, rounding_mode="floor")
        sums = vectors.new_zeros(*vectors.shape[:-1], T).index_add_(-1, rows, vectors)
        return sums / self.row_counts.clamp_min(1)

    def less_row_means(self, vectors: Tensor) -> Tensor:
        """The projection P that softmax cannot see past, each row less its own mean: (…, N)."""
        T, S = self.valid.shape
        if self.number == T * S:
            rows = vectors.unflatten(-1, (T, S))
            return (rows - rows.mean(-1, keepdim=True)).flatten(-2)
        means = self.row_means(vectors)
        return vectors - means[..., torch.div(self.index, S, rounding_mode="floor")]


def complete_inputs(call: AttentionCall) -> tuple[Tensor | None, Tensor | None]:
    """The mask `(T, S)` of inputs without padding, and which `(B,)` those are.

    The mask is None where there are none, the inputs are None where it is all.

    A matrix over positions has the same pairs in every input; a padded input would leave some of
    them without a value.
    """
    shape = call.mask_shape
    if shape.form in {"full", "causal", "fixed"}:
        return call.valid()[0].all(0), None
    valid = call.valid().all(1).expand(len(call.q), -1, -1)  # (B, T, S)
    complete = valid.any(2).all(1) & valid.any(1).all(1)  # every query and every key takes part
    if not bool(complete.any()):
        return None, complete
    first = valid[int(complete.int().argmax())]
    if not bool((valid[complete] == first).all()):
        raise EigenlensError(
            f"{call.site.full_label} was seen with two different masks; matrix spectra need one"
        )
    return first, complete

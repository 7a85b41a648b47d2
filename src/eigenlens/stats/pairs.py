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

    They convert a matrix (T, S) to its vector (N,) and back.

    Invalid pairs have no coordinate, so a causal head of length n has n(n+1)/2 dimensions.
    """

    valid: Tensor  # (T, S) bool

    @cached_property
    def index(self) -> Tensor:
        """Positions of the pairs in the flattened matrix, (N,)."""
        return self.valid.flatten().nonzero()[:, 0]

    @property
    def number(self) -> int:
        return len(self.index)

    @cached_property
    def row_counts(self) -> Tensor:
        """The number of valid keys of each query, (T,)."""
        return self.valid.sum(1)

    def vectors(self, matrices: Tensor) -> Tensor:
        """Turn matrices (…, T, S) into vectors (…, N)."""
        flat = matrices.flatten(-2)
        return flat if self.number == flat.shape[-1] else flat.index_select(-1, self.index)

    def matrices(self, vectors: Tensor, fill: float = 0.0) -> Tensor:
        """Turn vectors (…, N) into matrices (…, T, S), with `fill` where there is no pair."""
        T, S = self.valid.shape
        flat = vectors.new_full((*vectors.shape[:-1], T * S), fill)
        flat[..., self.index] = vectors
        return flat.unflatten(-1, (T, S))

    def row_means(self, vectors: Tensor) -> Tensor:
        """Return the mean of each row over its valid keys, (…, N) → (…, T)."""
        T, S = self.valid.shape
        if self.number == T * S:
            return vectors.unflatten(-1, (T, S)).mean(-1)
        rows = torch.div(self.index, S, rounding_mode="floor")
        sums = vectors.new_zeros(*vectors.shape[:-1], T).index_add_(-1, rows, vectors)
        return sums / self.row_counts.clamp_min(1)

    def less_row_means(self, vectors: Tensor) -> Tensor:
        """Subtract from each row its own mean, which softmax ignores: (…, N)."""
        T, S = self.valid.shape
        if self.number == T * S:
            rows = vectors.unflatten(-1, (T, S))
            return (rows - rows.mean(-1, keepdim=True)).flatten(-2)
        means = self.row_means(vectors)
        return vectors - means[..., torch.div(self.index, S, rounding_mode="floor")]


def complete_inputs(call: AttentionCall) -> tuple[Tensor | None, Tensor | None]:
    """Return the mask `(T, S)` of inputs without padding, and which inputs `(B,)` these are.

    The mask is None if there are none; the inputs are None if it is all of them.

    A matrix over positions has the same pairs in every input; a padded input would have no value
    for some of them.
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
            f"{call.site.full_label} was seen with two different masks, but matrix spectra need"
            " one mask"
        )
    return first, complete

"""The output of a model by the length of its paths, without enumerating the paths.

In the frozen graph a path takes, in every stage, the skip or one branch. Its length is the number
of attention hops. With A_l a layer's attention, X_k the sum of all paths of length k so far and N_l
its norms (frozen, so linear),

    X_k ← N_l( X_k + A_l(X_{k−1}) )

adds a layer to all of the C(L, k) H^k paths of every length at once. MLPs either go along as a
whole (`by="attention"`: the stream passes skip and MLP together) or count their own hops
(`by="both"`: X_{k,m}). Biases travel in an array of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from ..anatomy.frozen import FrozenStack, FrozenStage
from ..errors import EigenlensError
from ..stats.geometry import relative_residual

By = Literal["attention", "mlp", "both"]


@dataclass(frozen=True, eq=False)
class PathLengths:
    """The output of a stack as a sum over path lengths.

    `terms (K+1, B, T, C)` by number of hops, or `(K+1, M+1, B, T, C)` by attention and MLP hops;
    `bias (B, T, C)`; together they are `output (B, T, C)`, the model's own. `heads` of every
    attention.
    """

    terms: Tensor
    bias: Tensor
    output: Tensor
    by: By
    heads: tuple[int, ...]
    valid: Tensor | None = None
    rest: str = "bias"  # what the bias holds: in a decoder also what it reads of the encoder

    @property
    def error(self) -> float:
        """The relative distance of the sum of all terms from the model's output."""
        total = self.terms.flatten(0, -4).sum(0) + self.bias
        return float(
            self._kept(total - self.output).norm()
            / self._kept(self.output).norm().clamp_min(1e-300)
        )

    @property
    def layers(self) -> int:
        return len(self.heads)

    @property
    def paths(self) -> tuple[int, ...]:
        """The number of paths for each number of attention hops."""
        return path_counts(self.heads)

    def shares(self) -> Tensor:
        """What each length adds to the output: `⟨X_k, Y⟩ / ‖Y‖²`, mean over inputs.

        The bias comes last; all of them sum to one.
        """
        y = self._kept(self.output)
        parts = torch.stack([self._kept(term) for term in self._parts()])
        return self._mean((parts * y).sum((-2, -1)) / y.square().sum((-2, -1)).clamp_min(1e-300))

    def sizes(self) -> Tensor:
        """The size of each length: `‖X_k‖_F / ‖Y‖_F`, mean over inputs, the bias last."""
        y = self._kept(self.output).norm(dim=(-2, -1)).clamp_min(1e-300)
        return self._mean(
            torch.stack([self._kept(term).norm(dim=(-2, -1)) / y for term in self._parts()])
        )

    def residuals(self) -> Tensor:
        """The relative residual `‖res(X_k)‖ / ‖X_k‖`, mean over inputs, the bias last."""
        return self._mean(
            torch.stack([relative_residual(term, self.valid) for term in self._parts()])
        )

    def rows(self) -> list[dict[str, Any]]:
        """One row per length; with `by="both"` one per pair of numbers of hops."""
        counts, total = self.paths, sum(self.paths)
        found = zip(self.shares().tolist(), self.sizes().tolist(), self.residuals().tolist())
        rows = []
        for index, (share, size, residual) in enumerate(found):
            row: dict[str, Any] = {
                "attention_hops": None,
                "mlp_hops": None,
                "paths": None,
                "path_share": None,
            }
            if index == self.terms.flatten(0, -4).shape[0]:
                row["part"] = self.rest
            else:
                row["part"] = "paths"
                k, m = divmod(index, self.terms.shape[1]) if self.by == "both" else (index, index)
                row["attention_hops"] = None if self.by == "mlp" else k
                row["mlp_hops"] = None if self.by == "attention" else m
                if self.by == "attention":
                    row |= {"paths": counts[k], "path_share": counts[k] / total}
            rows.append({**row, "share": share, "size": size, "residual": residual})
        return rows

    def _parts(self) -> list[Tensor]:
        """Every term, and the bias after them, (B, T, C) each."""
        return [*self.terms.flatten(0, -4), self.bias]

    def _mean(self, by_input: Tensor) -> Tensor:
        """The mean over the inputs (…, B) that have a token; 0 if none has."""
        there = torch.ones(by_input.shape[-1]) if self.valid is None else self.valid.any(1)
        there = there.to(by_input)
        return (by_input * there).sum(-1) / there.sum().clamp_min(1)

    def _kept(self, x: Tensor) -> Tensor:
        return x.double() if self.valid is None else x.double() * self.valid[..., None]


def path_counts(heads: Sequence[int]) -> tuple[int, ...]:
    """The number of paths by attention hops, for layers with these numbers of heads.

    They are the coefficients of `Π_l (1 + H_l z)`.
    """
    counts = [1]
    for number in heads:
        counts = [a + number * b for a, b in zip([*counts, 0], [0, *counts])]
    return tuple(counts)


def full_length_share(layers: int, heads: int) -> float:
    """The share of paths that go through every layer, `(H/(H+1))^L`."""
    return math.exp(layers * math.log(heads / (heads + 1)))


def decompose_paths(frozen: FrozenStack, by: By = "attention") -> PathLengths:
    """Decompose the output of a frozen stack by path length.

    Cost: with `by="attention"` layer l passes l+1 streams, about (L+1)/2 forward passes in all;
    with `by="both"` it passes (l+1)² streams.

    Parameters
    ----------
    frozen : FrozenStack
        A stack as `freeze` gives it, for B inputs of T tokens and C channels.
    by : {"attention", "mlp", "both"}, default "attention"
        Which hops count.

    Returns
    -------
    PathLengths
        `terms (hops, B, T, C)`, with `by="both"` `(attention hops, MLP hops, B, T, C)`, and `bias
        (B, T, C)`; together they sum to the output of the model.

    Raises
    ------
    EigenlensError
        If `by` is none of the three.

    Examples
    --------
    >>> lengths = decompose_paths(freeze(model, batch)[0])
    >>> lengths.terms.sum(0) + lengths.bias                     # the model's output
    """
    if by not in ("attention", "mlp", "both"):
        raise EigenlensError(f"paths are counted by attention, mlp or both, not by {by!r}")
    grid = frozen.inputs[None, None]  # (attention hops, MLP hops, B, T, C)
    bias = torch.zeros_like(frozen.inputs)
    for stage in frozen.stages():
        grid, bias = through(stage, grid, bias, by)
    terms = frozen.through_final_norm(grid if by == "both" else grid.flatten(0, 1))
    rest = "bias and encoder" if frozen.branches("cross") else "bias"
    return PathLengths(
        terms,
        frozen.through_final_norm(bias, bias=True),
        frozen.output,
        by,
        frozen.heads,
        frozen.valid,
        rest,
    )


def through(stage: FrozenStage, grid: Tensor, bias: Tensor, by: By) -> tuple[Tensor, Tensor]:
    """Apply one stage to the terms (K, M, B, T, C) and the bias.

    A hop that counts moves a term one up; other hops leave it where it is.
    """
    sums: dict[tuple[int, int], Tensor] = {(0, 0): grid} if stage.keeps else {}
    after = bias if stage.keeps else torch.zeros_like(bias)
    for branch in stage.branches:
        hop = (
            int(branch.kind == "attention" and by != "mlp"),
            int(branch.kind == "mlp" and by != "attention"),
        )
        y = branch.linear(torch.cat([grid.flatten(0, 1), bias[None]]))
        moved = y[:-1].view_as(grid)
        sums[hop] = sums[hop] + moved if hop in sums else moved
        after = after + y[-1] + branch.bias
    if set(sums) == {(0, 0)}:
        total = sums[0, 0]
    else:
        rows, columns = (max(hop[axis] for hop in sums) + grid.shape[axis] for axis in (0, 1))
        total = grid.new_zeros(rows, columns, *grid.shape[2:])
        for (k, m), part in sums.items():
            total[k : k + part.shape[0], m : m + part.shape[1]] += part
    return (
        (total, after) if stage.after is None else (stage.after.linear(total), stage.after(after))
    )

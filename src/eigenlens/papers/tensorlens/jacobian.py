"""The frozen operator T beside the true Jacobian J.

J moves patterns, norms and gates along with the input.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ...anatomy import read_stacks
from ...captures.precision import stays_double
from ...explanations import Operator, linearize
from ...models.load import load
from ..inputs import make_batches
from .small import SPREAD, small_batch, small_model

STEP = 1e-5
"""Step of the central difference for J·X, in float64: its own error is near 1e-9."""


class Derivative:
    """The true F of a one-stack model.

    It leads from the stream X (B, n, d) into the first block to the last hidden state.
    """

    def __init__(self, model: nn.Module, batch: dict[str, Any]) -> None:
        self.model, self.batch = model, batch
        self.first = read_stacks(model)[0].blocks[0].module

    def __call__(self, change: Callable[[Tensor], Tensor]) -> Tensor:
        """The output when the stream is changed before the first block runs for the first time."""
        waiting = [change]

        def swap(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            # ALBERT runs its block again
            return ((waiting.pop()(args[0]), *args[1:]), kwargs) if waiting else None

        hook = self.first.register_forward_pre_hook(swap, with_kwargs=True)
        try:
            with stays_double():
                out: Tensor = self.model(**self.batch).last_hidden_state
        finally:
            hook.remove()
        return out

    def along_input(self) -> Tensor:
        """`J·X = dF(sX)/ds` at s = 1, (B, n, d)."""
        with torch.no_grad():
            return (self(lambda x: x * (1 + STEP)) - self(lambda x: x * (1 - STEP))) / (2 * STEP)

    def adjoint(self, u: Tensor) -> Tensor:
        """`Jᵀu` of directions (K, B, n, d) of the output."""
        kept: list[Tensor] = []

        def leaf(x: Tensor) -> Tensor:
            kept.append(x.detach().requires_grad_())
            return kept[0]

        with torch.enable_grad():
            out = self(leaf)
            return torch.stack(
                [torch.autograd.grad(out, kept[0], each, retain_graph=True)[0] for each in u]
            )


def compare_operator(op: Operator, true: Derivative, units: Tensor) -> list[dict[str, float]]:
    """A row for each input.

    How far T is from J over the directions `units` (K, B, n, d), and what each makes of X.

    With all unit vectors the norms are exact; with normal directions they are estimates, since
    `E‖(T − J)ᵀg‖² = ‖T − J‖²_F`.
    """
    ours = torch.cat([op.adjoint(u) for u in units.split(max(1, op.streams))])
    theirs = true.adjoint(units)
    size = lambda x: x.square().sum((0, 2, 3)).sqrt()  # noqa: E731   (K, B, n, d) → (B,)
    norm = lambda x: x.square().sum((1, 2)).sqrt()  # noqa: E731   (B, n, d) → (B,)
    y, jx, tx = op.output, true.along_input(), op.apply(op.inputs)
    columns = {
        "‖T−J‖/‖J‖": size(ours - theirs) / size(theirs),
        "‖T−J‖/‖T‖": size(ours - theirs) / size(ours),
        "cosine of T and J": (ours * theirs).sum((0, 2, 3)) / (size(ours) * size(theirs)),
        "‖TX+B−Y‖/‖Y‖": norm(tx + op.bias - y) / norm(y),
        "‖JX+B−Y‖/‖Y‖": norm(jx + op.bias - y) / norm(y),
        "‖JX−Y‖/‖Y‖": norm(jx - y) / norm(y),
    }
    return [{name: float(values[b]) for name, values in columns.items()} for b in range(len(y))]


def small_rows(family: str, seeds: int, seed: int, started: bool) -> list[dict[str, Any]]:
    """T beside J over the whole tensor of a small random model; `started` as the library does."""
    rows = []
    for s in range(seeds):
        model = small_model(family, seed + s, None if started else SPREAD)
        batch = small_batch(family, seed + s, 1, 8, padded=False)
        (op,) = linearize(model, batch)
        units = torch.cat([u for _, u in op.units()])
        (row,) = compare_operator(op, Derivative(model, batch), units)
        weights = "as the library starts it" if started else f"N(0, {SPREAD}²)"
        rows.append(
            {"model": family, "weights": weights, "input": s, "directions": len(units), **row}
        )
    return rows


def catalogue_jacobian(
    name: str, text: str, length: int, inputs: int, probes: int, seed: int
) -> list[dict[str, Any]]:
    """T beside J for real weights in float64 on real text, over normal directions."""
    model = load(name)
    model.module.double()
    backbone: Any = model.backbone
    fixed: dict[str, Any] = {"use_cache": False} if model.kind == "decoder" else {}
    generator, rows = torch.Generator().manual_seed(seed), list[dict[str, Any]]()
    for batch in make_batches(model, text, length, inputs, seed, 1)[:inputs]:
        (op,) = linearize(model, batch)
        units = torch.randn(probes, *op.inputs.shape, generator=generator, dtype=torch.float64)
        (row,) = compare_operator(op, Derivative(backbone, {**batch, **fixed}), units)
        rows.append(
            {
                "model": name,
                "weights": "pretrained",
                "input": len(rows),
                "directions": probes,
                **row,
            }
        )
    return rows

"""The whole of a transformer at one input as one linear operator: `F(X) = T(X)·X + B`.

T (n, d, n, d) is the ordered product of every block's frozen parts (attention, norms, MLP, skips),
and `B = F_frozen(0)` what their biases come to. T is never built: columns `T·x` take one pass of
the frozen graph, rows `Tᵀ·u` one pass backwards through the transposes of its parts. An encoder and
a decoder have an operator each; what a decoder reads of the encoder is in its B. T is not the
Jacobian, whose product with X does not give the output back.

Collapsed to maps of tokens, it tells how much of output token i comes from input token j:

    In+Out     a_ij = Σ_cd y_ic T_icjd x_jd          complete: Σ_j a_ij = ⟨y_i, y_i − B_i⟩
    norm       ‖T_i·j·‖_F

Weighted over output tokens, or toward one direction of the output, a map takes a single pass
backwards. Padding asks nothing and gives nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..anatomy.frozen import FrozenStack, freeze
from ..anatomy.frozen_parts import FrozenMlp
from ..captures.precision import stays_double
from ..errors import EigenlensError
from ..models.forward import forward_of
from ..models.load import Model

SIDE_BY_SIDE = 2**20
"""The most numbers that streams side by side may hold in the widest layer: 4 MB in float32.

More are slower on a CPU, because of its cache.
"""


class Operator:
    """`y = T·x + B` of one frozen stack, for a batch of B inputs of n tokens and d channels.

    `inputs x (B, n, d)` is the stream into the first block, `output y (B, n, d)` the model's own
    behind its last norm, and `bias (B, n, d)`. Tokens that are padding have zero in all three.

    >>> (op,) = linearize(model, batch)
    >>> op.apply(op.inputs) + op.bias                           # the model's output
    """

    @torch.no_grad()
    def __init__(self, stack: FrozenStack) -> None:
        self.stack = stack
        self.inputs, self.output = self.real(stack.inputs), self.real(stack.output)
        self.bias = self.real(stack(torch.zeros_like(stack.inputs)))

    @property
    def shape(self) -> tuple[int, int, int]:
        """The numbers of inputs, tokens and channels."""
        B, n, d = self.inputs.shape
        return B, n, d

    @property
    def error(self) -> float:
        """The relative error `‖T·X + B − F(X)‖ / ‖F(X)‖`, without padding."""
        off = self.real(self.apply(self.inputs)) + self.bias - self.output
        return float(off.norm() / self.output.norm().clamp_min(torch.finfo(off.dtype).tiny))

    def real(self, x: Tensor) -> Tensor:
        """The streams (…, B, n, d) with zeros at padding."""
        return x if self.stack.valid is None else x.masked_fill(~self.stack.valid[..., None], 0)

    @torch.no_grad()
    def apply(self, x: Tensor) -> Tensor:
        """Compute `T·x`, (…, B, n, d) → the same; leading axes are streams side by side."""
        return self.stack(self._fits(x), bias=False)

    @torch.no_grad()
    def adjoint(self, u: Tensor) -> Tensor:
        """Compute `Tᵀ·u`, (…, B, n, d) → the same, with `⟨u, T x⟩ = ⟨Tᵀu, x⟩`."""
        return self.stack.adjoint(self._fits(u))

    def full_tensor(self, most: int = 2**22) -> Tensor:
        """The full T, (B, n, d, n, d): output token and channel, input token and channel.

        An error if it has more than `most` numbers.
        """
        B, n, d = self.shape
        size = B * (n * d) ** 2
        if size > most:
            megabytes = size * self.inputs.element_size() / 1e6
            raise EigenlensError(
                f"the full tensor of {B} × ({n} tokens · {d} channels)² has {size:,} numbers"
                f" ({megabytes:,.0f} MB), more than {most:,}; take rows with adjoint and columns"
                f" with apply, or allow it with most={size}"
            )
        rows = [self.adjoint(u) for _, u in self.units()]  # (k, B, n, d) each
        return torch.cat(rows).view(n, d, B, n, d).permute(2, 0, 1, 3, 4).contiguous()

    def units(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield every channel of every token alone, in chunks.

        A chunk has flat indices (k,) of n·d, and directions (k, B, n, d).
        """
        B, n, d = self.shape
        for at in torch.arange(n * d, device=self.inputs.device).split(self.streams):
            u = self.inputs.new_zeros(len(at), B, n * d)
            u[torch.arange(len(at), device=at.device), :, at] = 1
            yield at, u.view(len(at), B, n, d)

    @property
    def streams(self) -> int:
        """How many streams fit side by side into `SIDE_BY_SIDE`."""
        B, n, d = self.shape
        mlps = [
            part
            for branch in self.stack.branches("mlp")
            for part in branch.parts
            if isinstance(part, FrozenMlp)
        ]
        return max(1, SIDE_BY_SIDE // (B * n * max([d, *(part.gate.shape[-1] for part in mlps)])))

    def _fits(self, x: Tensor) -> Tensor:
        if x.shape[-3:] != self.inputs.shape:
            want = ", ".join(map(str, self.shape))
            raise EigenlensError(f"streams must have the shape (…, {want}), not {tuple(x.shape)}")
        return x.to(self.inputs)

    def __repr__(self) -> str:
        B, n, d = self.shape
        return (
            f"Operator({self.stack.name}: {B} inputs, {n} tokens, {d} channels,"
            f" {len(self.stack.blocks)} blocks)"
        )


def linearize(
    model: Model | nn.Module,
    batch: Mapping[str, Any],
    forward: Callable[[Mapping[str, Any]], Any] | None = None,
) -> tuple[Operator, ...]:
    """Linearize a model at one batch: `F(X) = T(X)·X + B` for every stack.

    Parameters
    ----------
    model : Model or nn.Module
        The model; a loaded one is run without its head. A model in float64 is computed in float64
        throughout, also where its own code goes down to float32.
    batch : mapping
        What the model is called with, such as `{"input_ids": ids}`, for B inputs of n tokens.
    forward : callable, optional
        `forward(batch)` runs the model. Default: `model(**batch)`, of a loaded one its backbone.

    Returns
    -------
    tuple of Operator
        One operator for each stack (encoder, decoder), on streams `(B, n, d)`.

    Raises
    ------
    EigenlensError
        If the blocks of the model are not known, or if it is in half precision.

    Examples
    --------
    >>> (op,) = linearize(model, {"input_ids": ids})
    >>> op.apply(op.inputs) + op.bias                           # the model's output
    """
    if isinstance(model, Model):
        module, forward = model.backbone, forward or forward_of(model)
    else:
        module = model
    double = any(p.dtype == torch.float64 for p in module.parameters())
    with stays_double() if double else contextlib.nullcontext():
        return tuple(Operator(stack) for stack in freeze(module, batch, forward))


def in_out(op: Operator) -> Tensor:
    """The map `a_ij = Σ_cd y_ic T_icjd x_jd`, (B, n, n): n streams backwards, in chunks."""
    B, n, d = op.shape
    a = op.inputs.new_zeros(B, n, n)
    for rows in torch.arange(n, device=a.device).split(op.streams):
        u = a.new_zeros(len(rows), B, n, d)
        u[torch.arange(len(rows), device=a.device), :, rows] = op.output[:, rows].transpose(0, 1)
        a[:, rows] = torch.einsum("kbjd,bjd->bkj", op.adjoint(u), op.inputs)
    return a


def in_out_of(op: Operator, weights: Tensor) -> Tensor:
    """The sum `Σ_i w_i a_ij` for weights (B, n) of output tokens, (B, n): one backward pass."""
    return toward(op, _weights(op, weights)[..., None] * op.output)


def toward(op: Operator, u: Tensor) -> Tensor:
    """The products `⟨(Tᵀu)_j, x_j⟩` for a direction u (…, B, n, d) of the output, (…, B, n).

    Over j they sum to `⟨u, y − B⟩`.
    """
    return (op.adjoint(op.real(u.to(op.inputs))) * op.inputs).sum(-1)


def norms(op: Operator) -> Tensor:
    """The exact norms `‖T_i·j·‖_F`, (B, n, n): n·d streams backwards, in chunks.

    This is for small inputs; see `norms_of` for others.
    """
    B, n, d = op.shape
    squares = op.inputs.new_zeros(n, B, n)
    for at, u in op.units():
        squares.index_add_(0, at // d, op.adjoint(op.real(u)).square().sum(-1))
    return squares.sqrt().transpose(0, 1)


def norms_of(op: Operator, weights: Tensor, probes: int = 16, seed: int = 0) -> Tensor:
    """An estimate of `sqrt(Σ_i w_i² ‖T_i·j·‖²_F)` for weights (B, n) of the output tokens, (B, n).

    The square is the mean of `‖(Tᵀ(w ⊙ g))_j‖²` over `probes` normal g (n, d), which is unbiased:
    `E[g gᵀ] = I`. Each input draws only for its own tokens, so that other inputs and padding change
    nothing.
    """
    return norms_with_error(op, weights, probes, seed)[0]


def norms_with_error(
    op: Operator, weights: Tensor, probes: int = 16, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """The estimate of `norms_of` and its standard error, (B, n) each.

    The error is that of the mean square, divided by twice the root.
    """
    if probes < 2:
        raise EigenlensError(f"a standard error needs at least 2 probes, not {probes}")
    w = op.real(_weights(op, weights)[..., None])  # (B, n, 1)
    draws = _draws(op, w.dtype, seed)
    found = []
    for left in range(0, probes, op.streams):
        drawn = [next(draws) for _ in range(min(op.streams, probes - left))]
        found.append(op.adjoint(w * torch.stack(drawn).to(w)).square().sum(-1))
    squares = torch.cat(found)  # (probes, B, n)
    root = squares.mean(0).sqrt()
    return root, squares.std(0) / probes**0.5 / (2 * root).clamp_min(torch.finfo(root.dtype).tiny)


def _draws(op: Operator, dtype: torch.dtype, seed: int) -> Iterator[Tensor]:
    """Yield normal directions (B, n, d) without end, 0 for padding.

    Every input has a generator of its own, with the same seed.
    """
    B, n, d = op.shape
    real = torch.ones(B, n, dtype=torch.bool) if op.stack.valid is None else op.stack.valid.cpu()
    # of the CPU, so that every device draws the same
    generators = [torch.Generator().manual_seed(seed) for _ in range(B)]
    while True:
        g = torch.zeros(op.shape, dtype=dtype)
        for row, generator in enumerate(generators):
            g[row, real[row]] = torch.randn(
                int(real[row].sum()), d, generator=generator, dtype=dtype
            )
        yield g


def _weights(op: Operator, weights: Tensor) -> Tensor:
    B, n, _ = op.shape
    if weights.shape != (B, n):
        raise EigenlensError(
            f"weights of the output tokens must be ({B}, {n}), not {tuple(weights.shape)}"
        )
    return weights.to(op.inputs)

"""Smooth convex losses F of what a block gives, with what a certificate needs of them."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from ...errors import EigenlensError


class Loss(Protocol):
    """A convex F ≥ 0 of the outputs (n, s, c), summed over samples.

    Its gradient is `smoothness`-Lipschitz.
    """

    smoothness: float
    shape: tuple[int, ...]
    """The shape of the outputs that it takes."""

    def value(self, out: Tensor) -> Tensor: ...

    def gradient(self, out: Tensor) -> Tensor: ...

    def conjugate(self, v: Tensor) -> Tensor:
        """`F*(v) = sup_o ⟨v, o⟩ − F(o)`; infinite outside its domain.

        Where F gives v as a gradient it is finite, and at every αv with 0 ≤ α ≤ 1 too.
        """
        ...

    def on(self, x: Tensor) -> Loss:
        """The same loss on the device and in the dtype of x."""
        ...


class Squared:
    """`F(o) = ½‖o − Y‖²`, `F*(v) = ½‖v‖² + ⟨v, Y⟩`.

    >>> float(Squared(torch.ones(4, 3, 2)).value(torch.zeros(4, 3, 2)))
    12.0
    """

    smoothness = 1.0

    def __init__(self, Y: Tensor) -> None:
        if Y.ndim != 3 or not Y.is_floating_point() or not bool(Y.isfinite().all()):
            raise EigenlensError(
                f"targets are finite numbers (n, s, c); got {Y.dtype} of shape {tuple(Y.shape)}"
            )
        self.Y, self.shape = Y, tuple(Y.shape)

    def value(self, out: Tensor) -> Tensor:
        return 0.5 * (out - self.Y).square().sum()

    def gradient(self, out: Tensor) -> Tensor:
        return out - self.Y

    def conjugate(self, v: Tensor) -> Tensor:
        return 0.5 * v.square().sum() + (v * self.Y).sum()

    def on(self, x: Tensor) -> Squared:
        return Squared(self.Y.to(x))


class Logistic:
    """Cross entropy `F(o) = Σ_it log Σ_b exp(o_itb) − o_it,label`.

    For labels (n, s), or (n, 1) of pooled outputs.

    With q = v + one-hot label, `F*(v) = Σ q log q` where each q_it is a distribution, else
    infinite. The Hessian of a log-sum-exp is `diag(p) − ppᵀ`, no larger than ½.

    >>> float(Logistic(torch.tensor([[0], [1]]), 2).value(torch.zeros(2, 1, 2)))  # 2 log 2
    1.386...
    """

    smoothness = 0.5

    def __init__(self, labels: Tensor, classes: int, dtype: torch.dtype = torch.float64) -> None:
        if labels.ndim != 2 or labels.is_floating_point():
            raise EigenlensError(
                f"labels are whole numbers (n, s); got {labels.dtype} of shape"
                f" {tuple(labels.shape)}"
            )
        if (
            classes < 2
            or not labels.numel()
            or int(labels.min()) < 0
            or int(labels.max()) >= classes
        ):
            span = f"{int(labels.min())} to {int(labels.max())}" if labels.numel() else "none"
            raise EigenlensError(
                f"labels are 0 to classes − 1 of 2 classes or more; got {span} of {classes}"
            )
        self.labels, self.classes = labels, classes
        self.hot = one_hot(labels.long(), classes).to(dtype)  # (n, s, c)
        self.shape = (*labels.shape, classes)

    def value(self, out: Tensor) -> Tensor:
        return (out.logsumexp(2) - (out * self.hot).sum(2)).sum()

    def gradient(self, out: Tensor) -> Tensor:
        return out.softmax(2) - self.hot

    def conjugate(self, v: Tensor) -> Tensor:
        q = v + self.hot
        slack = 1e3 * torch.finfo(q.dtype).eps
        if bool((q < -slack).any()) or bool(((q.sum(2) - 1).abs() > slack).any()):
            return q.new_tensor(torch.inf)
        return torch.xlogy(q.clamp(min=0), q.clamp(min=0)).sum()

    def on(self, x: Tensor) -> Logistic:
        return Logistic(self.labels.to(x.device), self.classes, x.dtype)

"""Softmax attention that interpolates a function (arXiv 2504.15956).

This is the construction in the proof that attention alone is universal.

    L_k = a + kΔ, k = 0 … p − 1,  Δ = (b − a)/(p − 1)          anchors
    y = wᵀx + t,  A_k = softmax_k(−(β/Δ)(y − L_k)²)            ≈ clamp(y, a, b) with values L_k, ≈
    f(y) with values f(L_k)

The square is an inner product of a query and a key, except for a term in y alone, which softmax
ignores:

    q = (2β/Δ)(y, −½),  k = (L_k, L_k²),  q·k = (2β/Δ)(y L_k − ½L_k²)

With H heads, each has p anchors on its H-th part of [a, b] and gives the increase of f there; the
increases add up to f. Nothing is trained. The scores are as large as β max(a², b²)/Δ: more than
some hundred anchors need float64.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..errors import EigenlensError
from .softmax import Softmax

Function = Callable[[Tensor], Tensor]
HARD = 1e6
"""A β at which the nearest anchor takes all."""


class Ramp(nn.Module):
    """`clamp(wᵀx + t, a, b)`, or `f` of it, for tokens x (…, C) by softmax attention: (…,).

    `values` is f, which returns a tensor of the shape it gets; None is the identity. `beta=None` is
    `2/Δ`, a Gaussian of width Δ/2. Error for a Lipschitz constant ℓ of f: at most `ℓΔ/2` for large
    β, with `Δ = (b − a)/(H(p − 1))`.

    >>> # close to 0.3 and 1
    >>> Ramp(-1, 1, p=129, w=torch.tensor([1.0]))(torch.tensor([[0.3], [2.0]]))
    """

    anchors: Tensor
    direction: Tensor
    gains: Tensor
    start: Tensor

    def __init__(
        self,
        a: float,
        b: float,
        p: int,
        beta: float | None = None,
        w: Tensor | None = None,
        t: float = 0.0,
        values: Function | None = None,
        heads: int = 1,
    ) -> None:
        super().__init__()
        if not a < b or p < 2 or heads < 1:
            raise EigenlensError(
                f"a ramp needs a < b, at least 2 anchors and at least 1 head, not [{a}, {b}], {p}"
                f" anchors and {heads} heads"
            )
        w = torch.ones(1) if w is None else w
        self.spacing = (b - a) / (heads * (p - 1))
        self.beta, self.t = 2 / self.spacing if beta is None else beta, t
        if not self.beta > 0:
            raise EigenlensError(f"β must be above 0, not {self.beta}")
        edges = torch.linspace(a, b, heads * (p - 1) + 1, dtype=w.dtype, device=w.device)
        parts = edges.unfold(0, p, p - 1)  # (H, p): neighbours share an anchor
        f = values or _identity
        self.attention = Softmax()
        self.register_buffer("direction", w)
        self.register_buffer("anchors", parts)
        self.register_buffer("gains", f(parts) - f(parts[:, :1]))  # (H, p)
        self.register_buffer("start", f(edges[:1]))

    def queries(self, y: Tensor) -> Tensor:
        """Return the queries, (N,) → (1, H, N, 2); they are the same for all heads."""
        q = torch.stack([y, torch.full_like(y, -0.5)], -1) * (2 * self.beta / self.spacing)
        return q.expand(1, len(self.anchors), -1, -1)

    @property
    def keys(self) -> Tensor:
        """Return the keys, (1, H, p, 2)."""
        return torch.stack([self.anchors, self.anchors.square()], -1)[None]

    def forward(self, x: Tensor) -> Tensor:
        y = x @ self.direction + self.t
        # (1, H, N, 1)
        out = self.attention(
            self.queries(y.flatten()), self.keys, self.gains[None, :, :, None], scale=1.0
        )
        return (out.sum(1).flatten() + self.start).view(y.shape)


class SequenceMap(nn.Module):
    """Map a sequence X (B, T, C) to a sequence (B, T, E) by two layers of softmax attention.

    Without skips or MLPs.

        f_s(X) = Σ_m c_{s,m} φ(w_m · X + t_m),   w (M, T, C), t (M,), c (T, E, M)

    The class of targets is that of networks with one hidden layer of M units that read the whole
    sequence, for any Lipschitz φ; with φ = ReLU they approximate every continuous f on the box |x|
    ≤ radius as closely as one likes. The error against the network is at most `Σ_m |c_{s,m}| ℓ
    Δ_m/2` at large β (`bound`), where unit m has p anchors on its range.

    Layer 1: head s of T + 1 finds token s by its position, a one-hot vector beside it, and adds
    `w_m,s · x_s` for every m; one more head passes the position on. Layer 2: M · T heads, a ramp of
    φ each; at every token except s, head (m, s) subtracts so much from y_m that its ramp stays at
    its lower end. Its keys are constants: layer 2 is a softmax of a linear map, so the same numbers
    are one layer of attention, a softmax, and a linear map (`as_softmax`).
    """

    weight: Tensor
    shift: Tensor
    outer: Tensor
    low: Tensor
    spacing: Tensor
    anchors: Tensor
    gains: Tensor
    floor: Tensor

    def __init__(
        self,
        weight: Tensor,
        shift: Tensor,
        outer: Tensor,
        p: int,
        radius: float = 1.0,
        beta: float | None = None,
        activation: Function = torch.relu,
        focus: float = 60.0,
    ) -> None:
        super().__init__()
        (M, T, _), (S, _, N) = weight.shape, outer.shape
        if shift.shape != (M,) or (S, N) != (T, M):
            raise EigenlensError(
                "weight, shift and outer must be (M, T, C), (M,) and (T, E, M), not"
                f" {tuple(weight.shape)}, {tuple(shift.shape)} and {tuple(outer.shape)}"
            )
        if p < 2:
            raise EigenlensError(f"a ramp needs at least 2 anchors, not {p}")
        self.p, self.focus, self.attention = p, focus, Softmax()
        reach = radius * weight.abs().sum((1, 2)).clamp_min(1e-6)  # (M,): |w_m · X| on the box
        steps = torch.linspace(0, 1, p, dtype=weight.dtype, device=weight.device)
        anchors = (shift - reach)[:, None] + 2 * reach[:, None] * steps  # (M, p)
        values = activation(anchors)
        self.beta = beta
        self.register_buffer("weight", weight)
        self.register_buffer("shift", shift)
        self.register_buffer("outer", outer)
        self.register_buffer("low", shift - reach)
        self.register_buffer("spacing", 2 * reach / (p - 1))
        self.register_buffer("anchors", anchors)
        self.register_buffer("gains", values - values[:, :1])  # (M, p)
        self.register_buffer("floor", torch.einsum("tem,m->te", outer, values[:, 0]))

    def forward(self, x: Tensor) -> Tensor:
        return self.ramps(*self.mix(x))

    def mix(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Layer 1: `y_m = w_m · X + t_m` (B, T, M), and the position (B, T, T).

        The first is the same at every token.
        """
        B, T, _ = x.shape
        place = torch.eye(T, dtype=x.dtype, device=x.device)
        # (B, T + 1, T, T)
        q = torch.cat([place[:, None].expand(T, T, T), place[None]])[None].expand(B, -1, -1, -1)
        k = (self.focus * place).expand(B, T + 1, T, T)
        # head s: what token j would add in the place of s
        of_tokens = torch.einsum("bjc,msc->bsjm", x, self.weight)
        values = torch.cat(
            [
                torch.cat([of_tokens, x.new_zeros(B, T, T, T)], 3),
                torch.cat([x.new_zeros(B, 1, T, len(self.shift)), place.expand(B, 1, T, T)], 3),
            ],
            1,
        )
        out = self.attention(q, k, values, scale=1.0).sum(1)  # (B, T, M + T)
        return out[..., : len(self.shift)] + self.shift, out[..., len(self.shift) :]

    def queries(self, y: Tensor, place: Tensor) -> Tensor:
        """Return the queries of layer 2, (B, M·T, T, 2).

        Except at token s, the query of head (m, s) is far below its first anchor.
        """
        B, T, M = y.shape
        far = 2 * (self.p - 1) * self.spacing  # twice the range
        # (B, M, T heads, T)
        asked = (
            y.transpose(1, 2)[:, :, None]
            - far[:, None, None] * (1 - place.transpose(1, 2))[:, None]
        )
        # anchors count from the lower end, which keeps the scores small
        asked = asked - self.low[:, None, None]
        q = (
            torch.stack([asked, torch.full_like(asked, -0.5)], -1)
            * (2 * self.sharpness / self.spacing)[:, None, None, None]
        )
        return q.reshape(B, M * T, T, 2)

    @property
    def sharpness(self) -> Tensor:
        """β of every unit, (M,)."""
        return 2 / self.spacing if self.beta is None else torch.full_like(self.spacing, self.beta)

    @property
    def keys(self) -> Tensor:
        """Return the keys of layer 2, (1, M·T, p, 2)."""
        along = self.anchors - self.low[:, None]
        return torch.stack([along, along.square()], -1).repeat_interleave(self.weight.shape[1], 0)[
            None
        ]

    @property
    def values(self) -> Tensor:
        """Return the values of layer 2, (1, M·T, p, E): the increase of φ, times `c_{s,m}`."""
        return torch.einsum("mp,sem->mspe", self.gains, self.outer).flatten(0, 1)[None]

    def ramps(self, y: Tensor, place: Tensor) -> Tensor:
        """Layer 2: (B, T, E). `floor`, the lower end of every ramp, is the bias of its token."""
        B = len(y)
        k, v = (t.expand(B, -1, -1, -1) for t in (self.keys, self.values))
        return self.attention(self.queries(y, place), k, v, scale=1.0).sum(1) + place @ self.floor

    def as_softmax(self, x: Tensor) -> Tensor:
        """Return the same with layer 2 as `softmax(linear)` and a linear map.

        That is one layer of attention followed by a softmax.
        """
        y, place = self.mix(x)
        logits = torch.einsum("bhti,hpi->bhtp", self.queries(y, place), self.keys[0])
        return (
            torch.einsum("bhtp,hpe->bte", logits.softmax(-1), self.values[0]) + place @ self.floor
        )

    def bound(self, lipschitz: float = 1.0) -> Tensor:
        """Return `Σ_m |c_{s,m}| ℓ Δ_m/2`, (T, E): the largest error of ramps at large β."""
        return lipschitz * torch.einsum("tem,m->te", self.outer.abs(), self.spacing) / 2


def network(
    weight: Tensor, shift: Tensor, outer: Tensor, x: Tensor, activation: Function = torch.relu
) -> Tensor:
    """Return `Σ_m c_{s,m} φ(w_m · X + t_m)` itself: x (B, T, C) → (B, T, E)."""
    return torch.einsum(
        "tem,bm->bte", outer, activation(torch.einsum("mtc,btc->bm", weight, x) + shift)
    )


def fit_network(
    x: Tensor, target: Tensor, units: int, seed: int = 0, pool: int = 1000
) -> tuple[Tensor, Tensor, Tensor]:
    """Return weight, shift and outer of ReLU units for a target (B, T, E), without descent.

    They are fitted on samples x (B, T, C).

    T·C + 1 of the units are linear on the whole range, one for each input and one for the constant.
    The others are chosen one by one from a `pool`, each time the one that explains most of the rest
    (orthogonal matching pursuit); in the pool, directions are uniform on the sphere and shifts
    uniform up to the length of the longest x. The outer weights are least squares.
    """
    (_, T, C), n = x.shape, x[0].numel()
    if units < n + 2:
        raise EigenlensError(f"{units} units are too few for {n} inputs: give at least {n + 2}")
    draw = torch.Generator().manual_seed(seed)
    flat, radius = x.flatten(1), float(x.abs().max())
    bent = torch.randn(max(pool, units), n, generator=draw, dtype=x.dtype)
    kinks = float(flat.norm(dim=1).max()) * (
        2 * torch.rand(len(bent), generator=draw, dtype=x.dtype) - 1
    )
    weight = torch.cat(
        [torch.eye(n + 1, n, dtype=x.dtype), bent / bent.norm(dim=1, keepdim=True)]
    ).to(x.device)
    shift = torch.cat([torch.full((n + 1,), radius, dtype=x.dtype), kinks]).to(x.device)
    hidden = torch.relu(flat @ weight.T + shift)  # (B, n + 1 + pool)
    chosen = _pursuit(hidden, target.flatten(1), units, n + 1)
    taken = hidden[:, chosen]
    # units that nearly agree stay small
    decay = 1e-8 * len(x) * torch.eye(units, dtype=x.dtype, device=x.device)
    outer = torch.linalg.solve(taken.T @ taken + decay, taken.T @ target.flatten(1))  # (M, T·E)
    return weight[chosen].view(units, T, C), shift[chosen], outer.T.reshape(T, -1, units)


def _pursuit(columns: Tensor, target: Tensor, number: int, given: int) -> list[int]:
    """Return indices of `number` columns (B, P).

    The first `given`, then each time the column that explains most of the rest of the target.
    """
    # which column is best does not need more
    rest, left = target.float().clone(), columns.float().clone()
    size = left.norm(dim=0)
    chosen: list[int] = []
    for step in range(number):
        length = left.norm(dim=0)
        known = length > 1e-4 * size  # the others are combinations of what is taken
        gain = torch.where(known, (left.T @ rest).norm(dim=1) / length.clamp_min(1e-30), -1.0)
        at = step if step < given else int(gain.argmax())
        chosen.append(at)
        unit = left[:, at] / length[at].clamp_min(1e-30)
        rest -= unit[:, None] * (unit @ rest)
        left -= unit[:, None] * (unit @ left)
    return chosen


def _identity(y: Tensor) -> Tensor:
    return y

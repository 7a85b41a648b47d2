"""The affine parts of a frozen graph: norm, attention, MLP, scale.

Each is `part(y) = part.linear(y) + part.bias`, and `part.adjoint` is the transpose of
`part.linear`: `⟨g, A y⟩ = ⟨Aᵀg, y⟩`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..captures import AttentionCall
from ..errors import EigenlensError
from .blocks import Mlp
from .head_weights import HeadWeights, linear_map


class FrozenPart(ABC):
    """An affine map `linear(y) + bias` on streams (…, B, T, C).

    Leading axes are streams that are computed side by side.
    """

    bias: Tensor | None

    @abstractmethod
    def linear(self, y: Tensor) -> Tensor: ...

    @abstractmethod
    def adjoint(self, g: Tensor) -> Tensor: ...

    def __call__(self, y: Tensor, bias: bool = True) -> Tensor:
        out = self.linear(y)
        return out if not bias or self.bias is None else out + self.bias


@dataclass(frozen=True, eq=False)
class FrozenNorm(FrozenPart):
    """`(y − ȳ) · gain / σ + bias`, or without the mean.

    `σ` (B, T, 1) is that of the frozen stream.
    """

    factor: Tensor  # (B, T, C): gain / σ
    centred: bool
    bias: Tensor | None  # (C,)

    @classmethod
    def of(cls, norm: nn.Module, x: Tensor) -> FrozenNorm:
        """Freeze `norm` at x (B, T, C); its kind is found from what it does to x."""
        if isinstance(norm, nn.Identity):
            return cls(torch.ones_like(x), False, None)
        gain, sigma, centred, shift = read_norm(norm, x)
        return cls(gain / sigma, centred, shift)

    def linear(self, y: Tensor) -> Tensor:
        return (y - y.mean(-1, keepdim=True) if self.centred else y) * self.factor

    def adjoint(self, g: Tensor) -> Tensor:
        g = g * self.factor
        return g - g.mean(-1, keepdim=True) if self.centred else g


def read_norm(norm: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, bool, Tensor | None]:
    """Return gain (C,), σ (B, T, 1), whether the mean is removed, and bias (C,) of a norm at x.

    They are found from what `norm` does to x (B, T, C), because some families store the gain less
    1.
    """
    want = norm(x).detach()
    weight, bias = getattr(norm, "weight", None), getattr(norm, "bias", None)
    eps = next(
        (
            float(v)
            for name in ("eps", "variance_epsilon")
            if (v := getattr(norm, name, None)) is not None
        ),
        0.0,
    )
    gains = [torch.ones_like(x[0, 0])] if weight is None else [weight.detach(), 1 + weight.detach()]
    shift = None if bias is None else bias.detach()
    rounding = torch.finfo(x.dtype).eps
    rtol, atol = max(1e-4, 8 * rounding), max(1e-5, rounding) * float(want.abs().max())
    for centred in (True, False) if isinstance(norm, nn.LayerNorm) else (False, True):
        spread = x - x.mean(-1, keepdim=True) if centred else x
        sigma = (spread.square().mean(-1, keepdim=True) + eps).sqrt()
        for gain in gains:
            found = FrozenNorm(gain / sigma, centred, shift)
            if torch.allclose(found(x), want, rtol=rtol, atol=atol):
                return gain, sigma, centred, shift
    raise EigenlensError(
        f"the norm {type(norm).__name__} is neither a layer norm nor an RMS norm, so it cannot be"
        " frozen"
    )


@dataclass(frozen=True, eq=False)
class FrozenAttention(FrozenPart):
    """`Σ_h P_h y W_V,h W_O,h` with the patterns (B, H, T, S) of one call.

    The attention reads the stream `reads` (B, S, C).
    """

    pattern: Tensor
    weights: HeadWeights
    call: AttentionCall
    reads: Tensor

    @property
    def heads(self) -> int:
        return self.pattern.shape[1]

    @property
    def bias(self) -> Tensor:  # type: ignore[override]
        """`Σ_h P_h 1 b_V,h W_O,h + b_O`, (B, T, C).

        Rows sum to one unless the model has sink logits.
        """
        w = self.weights
        # (H, C)
        constant = torch.einsum("he,hec->hc", w.value_bias.repeat_interleave(w.group, 0), w.output)
        return self.pattern.sum(-1).transpose(1, 2) @ constant + w.output_bias

    def linear(self, y: Tensor) -> Tensor:
        """(…, B, S, C) → (…, B, T, C)."""
        lead, w = y.shape[:-3], self.weights
        (B, H, T, S), C = self.pattern.shape, y.shape[-1]
        G, _, E = w.value.shape
        v = y.reshape(-1, B, S, C) @ w.value.transpose(0, 1).reshape(C, G * E)  # (K, B, S, G·E)
        K = len(v)
        # streams side by side: one product a head
        v = v.view(K, B, S, G, E).permute(1, 3, 2, 0, 4).reshape(B, G, S, K * E)
        z = self.pattern @ v.repeat_interleave(w.group, 1)  # (B, H, T, K·E)
        z = z.view(B, H, T, K, E).permute(3, 0, 2, 1, 4).reshape(K, B, T, H * E)
        return (z @ w.output.reshape(H * E, -1)).view(*lead, B, T, -1)

    def adjoint(self, g: Tensor) -> Tensor:
        """`Σ_h P_hᵀ g W_O,hᵀ W_V,hᵀ`, (…, B, T, C) → (…, B, S, C)."""
        lead, w = g.shape[:-3], self.weights
        (B, H, T, S), C = self.pattern.shape, g.shape[-1]
        G, _, E = w.value.shape
        z = g.reshape(-1, B, T, C) @ w.output.reshape(H * E, C).T  # (K, B, T, H·E)
        K = len(z)
        z = z.view(K, B, T, H, E).permute(1, 3, 2, 0, 4).reshape(B, G, -1, K * E)
        # (B, G, S, K·E): adds up the heads that share values
        v = self.pattern.reshape(B, G, -1, S).transpose(2, 3) @ z
        v = v.view(B, G, S, K, E).permute(3, 0, 2, 1, 4).reshape(K, B, S, G * E)
        return (v @ w.value.transpose(1, 2).reshape(G * E, -1)).view(*lead, B, S, -1)

    def mixed(self, y: Tensor) -> Tensor:
        """Return what each head takes from the values, `P_h y W_V,h`.

        (K, B, S, C) → (K, B, H, T, E).
        """
        w = self.weights
        v = torch.einsum("kbsc,gce->kbgse", y, w.value).repeat_interleave(w.group, 2)
        return self.pattern @ v

    def read_back(self, g: Tensor) -> Tensor:
        """Return how a direction of the stream reads each head, `g W_O,hᵀ`.

        (M, B, T, C) → (M, B, H, T, E).
        """
        return torch.einsum("mbtc,hec->mbhte", g, self.weights.output)

    def of_heads(self, y: Tensor, heads: Tensor) -> Tensor:
        """Apply one head per stream: y (S, B, T, C), heads (S,) → (S, B, T, C)."""
        w = self.weights
        v = torch.einsum("sbtc,sce->sbte", y, w.value[heads // w.group])
        return torch.einsum(
            "sbtu,sbue,sec->sbtc", self.pattern.transpose(0, 1)[heads], v, w.output[heads]
        )


@dataclass(frozen=True, eq=False)
class FrozenSource(FrozenPart):
    """A part that does not depend on the stream: a cross-attention, which reads another stack."""

    bias: Tensor  # (B, T, C)

    def linear(self, y: Tensor) -> Tensor:
        return torch.zeros_like(y)

    def adjoint(self, g: Tensor) -> Tensor:
        return torch.zeros_like(g)


@dataclass(frozen=True, eq=False)
class FrozenMlp(FrozenPart):
    """`(r ⊙ (y W_1)) W_2` with the gate r (B, T, M) of the frozen stream."""

    wide: Tensor  # (C, M)
    gate: Tensor  # (B, T, M)
    narrow: Tensor  # (M, C)
    bias: Tensor  # (B, T, C)

    @classmethod
    def of(cls, mlp: Mlp, u: Tensor) -> FrozenMlp:
        """Freeze at the MLP's input u (B, T, C)."""
        (wide, b1), (narrow, b2) = linear_map(mlp.wide), linear_map(mlp.narrow)
        if mlp.fused:
            (inner, wide), (b0, b1) = wide.chunk(2), b1.chunk(2)
            gate = mlp.act(u @ inner.T + b0)
        elif mlp.gate is not None:
            inner, b0 = linear_map(mlp.gate)
            gate = mlp.act(u @ inner.T + b0)
        else:
            z = u @ wide.T + b1
            # 0/0: a unit that gives nothing whatever its gate
            gate = mlp.act(z).div_(z).nan_to_num_(nan=0.0)
            if float(mlp.act(z.new_zeros(1))) != 0:
                raise EigenlensError(
                    "the activation of this MLP is not zero at zero, so φ(z) = z · φ(z)/z cannot be"
                    " frozen"
                )
        return cls(wide.T, gate, narrow.T, (gate * b1) @ narrow.T + b2)

    def linear(self, y: Tensor) -> Tensor:
        return ((y @ self.wide) * self.gate) @ self.narrow

    def adjoint(self, g: Tensor) -> Tensor:
        return ((g @ self.narrow.T) * self.gate) @ self.wide.T


@dataclass(frozen=True, eq=False)
class Scaled(FrozenPart):
    """One gain per channel."""

    gain: Tensor  # (C,)
    bias: Tensor | None = None

    @classmethod
    def of(cls, scale: nn.Module, u: Tensor) -> Scaled:
        return cls(scale(torch.ones_like(u[0, 0])))

    def linear(self, y: Tensor) -> Tensor:
        return y * self.gain

    def adjoint(self, g: Tensor) -> Tensor:
        return g * self.gain

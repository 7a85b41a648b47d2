"""Gates on attention: what a head computes is multiplied by a sigmoid of its token.

See arXiv 2505.06708 and arXiv 2602.01468.

    Y' = Y ⊙ σ(X W_θ)

X is the normalised stream. Y is the output of the heads (G1), the values (G2), the keys (G3), the
queries (G4), or the result of the output projection (G5, which belongs to the layer and not to a
mechanism).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import EigenlensError
from .call_terms import CallTerms
from .contract import Mechanism, Shape
from .registry import mechanism
from .softmax import Softmax

POSITIONS = ("G1", "G2", "G3", "G4", "G5")
_CHOICES = {"position": POSITIONS, "per": ("element", "head"), "form": ("sigmoid", "silu")}


@dataclass(frozen=True)
class GateSettings:
    """Where a gate is and what it computes.

    `per` element of Y or per head. `shared`: one gate for all heads. `form` "sigmoid" multiplies,
    `Y ⊙ σ(XW_θ + b)`; "silu" adds, `Y + SiLU(XW_θ + b)`. `bias` is the constant b, which is not
    learned.
    """

    position: str = "G1"
    per: str = "element"
    shared: bool = False
    form: str = "sigmoid"
    bias: float = 0.0

    def __post_init__(self) -> None:
        for field, known in _CHOICES.items():
            if (value := getattr(self, field)) not in known:
                raise EigenlensError(
                    f"{field} of a gate must be one of {', '.join(known)}, not {value!r}"
                )
        if not math.isfinite(self.bias):
            raise EigenlensError(f"bias of a gate must be a finite number, not {self.bias}")
        if self.position == "G5" and (self.per == "head" or self.shared):
            raise EigenlensError(
                "after the output projection (G5) there are no heads: choose per='element' and"
                " shared=False"
            )


class Gate(nn.Module):
    """One gate: `x (B, T, C)` and `y (B, H, T, E)`, or `y (B, T, C)` at G5, give the gated y.

    `W_θ` starts as N(0, 0.01/C), so that the logits of a normalised x have standard deviation 0.1
    in any width: every gate starts near σ(b) (one half if b is 0), not in the flat part of the
    sigmoid.

    >>> # x (B, T, 64) → (B, 4, T, 1)
    >>> Gate(GateSettings(per="head"), width=64, heads=4, head_width=16).values(x).shape
    """

    def __init__(self, settings: GateSettings, width: int, heads: int, head_width: int) -> None:
        super().__init__()
        self.settings = settings
        rows, columns = heads, head_width
        if settings.position == "G5":
            rows, columns = 1, width
        if settings.shared:
            rows = 1
        if settings.per == "head":
            columns = 1
        # W_θ (C, H or 1, E or 1)
        self.weight = nn.Parameter(0.1 * width**-0.5 * torch.randn(width, rows, columns))

    def values(self, x: Tensor) -> Tensor:
        """Return the gate of every token, (B, H or 1, T, E or 1), or (B, T, C) at G5."""
        # (B, T, H, E)
        logits = (x @ self.weight.flatten(1)).unflatten(
            2, self.weight.shape[1:]
        ) + self.settings.bias
        gate = logits.sigmoid() if self.settings.form == "sigmoid" else F.silu(logits)
        return gate.squeeze(2) if self.settings.position == "G5" else gate.transpose(1, 2)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        if x.shape[1] != y.shape[-2]:
            raise EigenlensError(
                f"the gate {self.settings.position} got a stream of {x.shape[1]} tokens for"
                f" {y.shape[-2]} tokens to gate; give x of the same tokens"
            )
        gate = self.values(x)
        return y * gate if self.settings.form == "sigmoid" else y + gate


def mixture(pattern: Tensor, gate: Tensor, v: Tensor, w_o: Tensor) -> Tensor:
    """Return the routes of gated attention, (B, T, H, E, C).

    Linear experts `v_j ↦ v_je W_O[h,e]`, routed by attention and gate.

        out[i,c] = Σ_h Σ_e Σ_j A^h_ij · g^h_ie · v^h_je · W_O[h,e,c]

    `pattern` A (B, H, T, S), `gate` (B, H or 1, T, E or 1) of the multiplicative form at G1, `v`
    (B, H, S, E) and `w_o` (H, E, C). A route is the sum over the tokens j; `mixture(...).sum((2,
    3))` is the output before its bias.
    """
    A, g = pattern, gate.expand(*pattern.shape[:3], v.shape[3])
    return torch.einsum("bhij,bhie,bhje,hec->bihec", A, g, v, w_o)


@mechanism("gated")
class Gated(Mechanism):
    """Attention with a gate at one of four places.

    `(A V) ⊙ σ(X W_θ)` at G1; `A (V ⊙ σ(X W_θ))` at G2; `A(Q, K ⊙ σ(X W_θ)) V` at G3, `A(Q ⊙ σ(X
    W_θ), K) V` at G4.

    A is the pattern of an inner mechanism, which is softmax by default and decides which masks are
    supported. The values have the width of a head unless the shape's `value_width` is another.
    `pattern` is that of the inner mechanism: it does not include what the gate does to values or
    output.

    >>> # (B, 4, T, E)
    >>> Gated(GateSettings("G2"), Shape(heads=4, head_width=16, width=64))(q, k, v, x=x).shape
    """

    Settings = GateSettings
    takes_pairs = True
    own_weights = True
    reads_stream = True

    def __init__(
        self,
        settings: GateSettings | None = None,
        shape: Shape | None = None,
        inner: Mechanism | None = None,
    ) -> None:
        super().__init__(settings, shape)
        if self.settings.position == "G5":
            raise EigenlensError(
                "the gate G5 comes after the output projection and belongs to the layer; choose"
                " G1, G2, G3 or G4"
            )
        self.inner = Softmax() if inner is None else inner
        of_values = self.settings.position in ("G1", "G2") and self.shape.value_width
        width = of_values or self.shape.need(self.name, "head_width")
        self.gate = Gate(
            self.settings, self.shape.need(self.name, "width"), self.shape.heads, width
        )
        # what the class says holds for softmax; this one can do what its inner mechanism can
        self.__dict__.update(
            {flag: getattr(self.inner, flag) for flag in ("directions", "takes_pairs", "linear")}
        )

    def pattern(self, q: Tensor, k: Tensor, given: CallTerms) -> Tensor:
        if self.settings.position in ("G3", "G4"):
            q, k, _ = self._gated(q, k, k, given)
        return self.inner.pattern(q, k, given)

    def dense(self, q: Tensor, k: Tensor, v: Tensor, given: CallTerms) -> Tensor:
        return self._out(self.inner.dense(*self._gated(q, k, v, given), given), given)

    def fast(self, q: Tensor, k: Tensor, v: Tensor, given: CallTerms) -> Tensor:
        return self._out(self.inner.fast(*self._gated(q, k, v, given), given), given)

    def cost(self, n: int, d: int) -> int:
        """The cost of the inner mechanism and of the gate.

        `nCd` for the logits of a gate per element (`nC` per head), `nd` to apply it.
        """
        logits = (
            n * self.shape.need(self.name, "width") * (d if self.settings.per == "element" else 1)
        )
        return (
            self.inner.cost(n, d)
            + (logits // self.shape.heads if self.settings.shared else logits)
            + n * d
        )

    def _gated(
        self, q: Tensor, k: Tensor, v: Tensor, given: CallTerms
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys or values after the gate, wherever it is."""
        x, at = _stream(given), self.settings.position
        if at == "G2":
            v = self.gate(x, v)
        elif at == "G3":
            k = self.gate(x, k)
        elif at == "G4":
            q = self.gate(x, q)
        return q, k, v

    def _out(self, y: Tensor, given: CallTerms) -> Tensor:
        return self.gate(_stream(given), y) if self.settings.position == "G1" else y


def _stream(given: CallTerms) -> Tensor:
    if given.x is None:
        raise EigenlensError("gated attention reads the stream: give x (B, T, C)")
    return given.x

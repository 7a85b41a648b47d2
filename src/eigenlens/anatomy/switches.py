"""The parts of a transformer block that can be switched off."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Switches:
    """Which parts of every block are on, independently of each other.

    A branch that is off passes the stream on unchanged; with `norm` off every norm is the identity.
    """

    attention_skip: bool = True
    mlp_skip: bool = True
    mlp: bool = True
    norm: bool = True
    attention: bool = True

    def skips(self, kind: str) -> bool:
        return self.mlp_skip if kind == "mlp" else self.attention_skip

    def runs(self, kind: str) -> bool:
        return self.mlp if kind == "mlp" else self.attention

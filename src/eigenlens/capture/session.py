"""The one door to the attention of a model, whichever way it attends."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Literal

from torch import Tensor, nn

from ..errors import EigenlensError
from .call import AttentionCall, MaskShape
from .sites import SiteNames


class AttentionNotSeen(EigenlensError):
    """The model attends in a way that neither door can see."""


class Session:
    """Collects the attention calls of one model while a door is open; hands each to `sink` as it happens."""

    def __init__(self, model: nn.Module, sink: Callable[[AttentionCall], None], before_rope: bool) -> None:
        self.model = model
        self.sink = sink
        self.before_rope = before_rope
        self.names = SiteNames(model)
        self.seen = 0
        self.passes = 0
        self._shapes: dict[tuple[int, int], MaskShape] = {}
        self._last_valid: Tensor | None = None

    def start_pass(self, *_: Any) -> None:
        """Called when the model's own forward begins: layers count from zero again."""
        self.passes += 1
        self.names.start_pass()
        self._shapes.clear()
        self._last_valid = None

    def see(self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, scale: float, **extras: Any) -> AttentionCall:
        """Build the call of this module and pass it on."""
        kind = self.names.kind(module)
        call = AttentionCall(
            site=self.names.site(module), kind=kind, name=self.names.path(module),
            q=q, k=k, v=v, scale=scale, shapes=self._shapes, **extras,
        )  # fmt: skip
        call.query_valid = self._query_valid(call)
        self.seen += 1
        self.sink(call)
        return call

    def _query_valid(self, call: AttentionCall) -> Tensor | None:
        """Which queries are tokens and not padding, (B, T), or None where all are.

        In self-attention padding is what may not attend to itself. Cross-attention follows the self-attention of the
        same decoder layer, whose queries it shares.
        """
        B, _, T, _ = call.q.shape
        if call.kind == "cross":
            last = self._last_valid
            return last if last is not None and last.shape == (B, T) else None
        S = call.k.shape[2]
        mask = call._allowed()
        if mask is None or S < T:
            self._last_valid = None
            return None
        cached = self._shapes.get((id(call.mask), -1))
        if cached is None:
            diagonal = mask[:, 0].diagonal(offset=S - T, dim1=1, dim2=2)  # (b, T)
            padded = not bool(diagonal.all()) and bool(diagonal.any())
            cached = MaskShape("full", None, queries=diagonal.expand(B, T) if padded else None)
            self._shapes[(id(call.mask), -1)] = cached
        self._last_valid = cached.queries
        return cached.queries

    def finish(self) -> None:
        if not self.seen:
            raise AttentionNotSeen(
                f"{type(self.model).__name__} made no attention call that can be seen: it uses neither transformers' "
                "attention interface nor torch's scaled_dot_product_attention, so its scores are out of reach; "
                "rewrite its attention with torch.nn.functional.scaled_dot_product_attention to study it"
                if self.passes
                else "the model was not called while its attention was being captured"
            )


@contextlib.contextmanager
def capture(
    model: Any,
    sink: Callable[[AttentionCall], None] | None = None,
    *,
    before_rope: bool = False,
    door: Literal["auto", "interface", "functional"] = "auto",
) -> Iterator[list[AttentionCall]]:
    """Capture every attention call of `model` while the block runs.

    >>> with capture(model) as calls:
    ...     model(**inputs)
    >>> calls[0].scores().shape, calls[0].pattern().shape      # both (B, H, T, S)

    With a `sink`, each call is handed to it during the forward pass and nothing is kept (the list stays empty).
    `before_rope` turns queries and keys back to before the rotary embedding. `door` is chosen by the model: transformers'
    attention interface where the model uses it, else torch's `scaled_dot_product_attention` and `nn.MultiheadAttention`.
    Raises `AttentionNotSeen` when the block ends without a single call.
    """
    from . import functional, interface

    module: nn.Module = getattr(model, "module", model) if not isinstance(model, nn.Module) else model
    calls: list[AttentionCall] = []
    session = Session(module, sink or calls.append, before_rope)
    if door == "auto":
        door = "interface" if interface.reaches(module) else "functional"
    if before_rope and door == "functional":
        raise EigenlensError("scores before the rotary embedding can only be had from models of the transformers library")
    opened = interface.opened(session) if door == "interface" else functional.opened(session)
    hook = module.register_forward_pre_hook(session.start_pass)
    try:
        with opened:
            yield calls
    finally:
        hook.remove()
    session.finish()

"""Capture the attention of a model, however it computes it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, Literal

from torch import Tensor, nn

from ..errors import EigenlensError
from .borrowed import in_one_thread, module_of, uncompiled
from .call import AttentionCall
from .masks import MaskShape, MaskShapes
from .own_thread import OwnThread
from .sites import Site, SiteNames


class AttentionNotSeen(EigenlensError):
    """The model computes attention in a way that no backend can see."""


class _Hidden(threading.local):
    """How many blocks of this thread have disabled capture."""

    depth = 0


_hidden = _Hidden()


@contextlib.contextmanager
def capture_disabled() -> Iterator[None]:
    """Hide the attention calls of this block from all sessions.

    For code that runs a part of a model a second time, to check it.
    """
    _hidden.depth += 1
    try:
        yield
    finally:
        _hidden.depth -= 1


class _MaskPass(threading.local):
    """What is known about the masks in the pass that this thread runs."""

    def __init__(self) -> None:
        self.start()

    def __reduce__(self) -> tuple[type[_MaskPass], tuple[()]]:
        return _MaskPass, ()  # a copy of a model runs passes of its own

    def start(self) -> None:
        self.shapes, self.diagonals = MaskShapes(), MaskShapes()
        self.last_valid: Tensor | None = None


class Session(OwnThread):
    """Sends the attention calls of one model to each of `sinks` while it is captured.

    With `replaces`, the output `(B, H, T, E)` that the last sink returns is used instead of the
    model's own attention; None lets the model attend as before. Only calls of the thread that
    opened it are seen, or of `any_thread`.
    """

    def __init__(
        self,
        model: nn.Module,
        *sinks: Callable[[AttentionCall], Any],
        before_rope: bool = False,
        replaces: bool = False,
        any_thread: bool = False,
    ) -> None:
        super().__init__(any_thread)
        self.model = model
        self.sinks = sinks
        self.replaces = replaces
        self.before_rope = before_rope
        self.names = SiteNames(model)
        self.seen = 0
        self.passes = 0
        self._pass = _MaskPass()

    def start_pass(self, *_: Any) -> None:
        """Called when the model's own forward begins: layers count from zero again."""
        if not self.here:
            return
        self.passes += 1
        self.names.start_pass()
        self._pass.start()

    def see(
        self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, scale: float, **extras: Any
    ) -> tuple[AttentionCall, Tensor | None]:
        """Build the call of this module and pass it on.

        Returns the output to use instead of the model's own, or None.
        """
        kind, hidden = self.names.kind(module), _hidden.depth > 0
        call = AttentionCall(
            site=Site("", 0) if hidden else self.names.site(module),
            kind=kind,
            name=self.names.path(module),
            q=q,
            k=k,
            v=v,
            scale=scale,
            shapes=self._pass.shapes,
            **extras,
        )
        if hidden:
            # it shows that the backend is the right one, but is nobody's result
            self.seen += self.replaces
            return call, None
        call.query_valid = self._query_valid(call)
        self.seen += 1
        output = None
        for sink in self.sinks:
            output = sink(call)
        return call, output if self.replaces else None

    def _query_valid(self, call: AttentionCall) -> Tensor | None:
        """Return which queries are tokens and not padding, (B, T), or None if all are.

        In self-attention a query is padding if it may not attend to itself. Cross-attention follows
        the self-attention of the same decoder layer, whose queries it shares.
        """
        B, _, T, _ = call.q.shape
        if call.kind == "cross":
            last = self._pass.last_valid
            return last if last is not None and last.shape == (B, T) else None
        S = call.k.shape[2]
        mask = call.allowed()
        if mask is None or S < T:
            self._pass.last_valid = None
            return None
        assert call.mask is not None
        found = self._pass.diagonals.get((T, S, call.causal), call.mask)
        if found is None:
            diagonal = mask[:, 0].diagonal(offset=S - T, dim1=1, dim2=2)  # (b, T)
            padded = not bool(diagonal.all()) and bool(diagonal.any())
            shape = MaskShape("full", None, queries=diagonal.expand(B, T) if padded else None)
            found = self._pass.diagonals.put(shape, (T, S, call.causal), call.mask)
        self._pass.last_valid = found.queries
        return found.queries

    def finish(self) -> None:
        if not self.seen and (self.passes or not self.replaces):
            raise AttentionNotSeen(
                f"eigenlens saw no attention call of {type(self.model).__name__}: it uses neither"
                " transformers' attention interface nor torch's scaled_dot_product_attention;"
                " rewrite its attention with torch.nn.functional.scaled_dot_product_attention to"
                " study it"
                if self.passes
                else "the model was not called while its attention was being captured"
            )


@contextlib.contextmanager
def capture(
    model: Any,
    sink: Callable[[AttentionCall], None] | None = None,
    *,
    before_rope: bool = False,
    backend: Literal["auto", "transformers", "torch"] = "auto",
) -> Iterator[list[AttentionCall]]:
    """Capture every attention call of a model while the block runs.

    Parameters
    ----------
    model : nn.Module or Model
        The model; it computes as it does otherwise.
    sink : callable, optional
        `sink(call)` gets each call during the forward pass, and nothing is kept. Default: the calls
        go into the list.
    before_rope : bool, default False
        Turn queries and keys back to before the rotary embedding.
    backend : {"auto", "transformers", "torch"}, default "auto"
        How the calls are seen: by transformers' attention interface, or by torch's
        `scaled_dot_product_attention` and `nn.MultiheadAttention`; `"auto"` is the former if the
        model uses it.

    Yields
    ------
    list of AttentionCall
        The calls in the order in which the model makes them; empty with a `sink`.

    Raises
    ------
    AttentionNotSeen
        If the block ends without a single call.

    Examples
    --------
    >>> with capture(model) as calls:
    ...     model(**inputs)
    >>> calls[0].scores().shape, calls[0].pattern().shape      # both (B, H, T, S)
    """
    calls: list[AttentionCall] = []
    session = Session(module_of(model), sink or calls.append, before_rope=before_rope)
    with installed(session, backend):
        yield calls


@contextlib.contextmanager
def replace_attention(
    model: Any,
    attend: Callable[[AttentionCall], Tensor | None],
    *,
    backend: Literal["auto", "transformers", "torch"] = "auto",
) -> Iterator[None]:
    """Let a function do the attention of a model while the block runs.

    Parameters
    ----------
    model : nn.Module or Model
        The model; when the block ends, it is exactly as it was before.
    attend : callable
        `attend(call)` returns the output `(B, H, T, E)`, or None to let the model attend itself.
    backend : {"auto", "transformers", "torch"}, default "auto"
        How the calls are seen, as for `capture`.

    Yields
    ------
    None

    Raises
    ------
    AttentionNotSeen
        If the model runs without a single call that can be seen.

    Examples
    --------
    >>> with replace_attention(model, lambda call: call.pattern() @ call.values):
    ...     model(**inputs)                                          # as without, to rounding
    """
    with installed(Session(module_of(model), attend, replaces=True), backend):
        yield


@contextlib.contextmanager
def installed(
    session: Session, backend: Literal["auto", "transformers", "torch"]
) -> Iterator[None]:
    """Let a session see the calls of its model while the block runs."""
    from . import torch_backend, transformers_backend

    if backend == "auto":
        backend = "transformers" if transformers_backend.supports(session.model) else "torch"
    if session.before_rope and backend == "torch":
        raise EigenlensError(
            "scores before the rotary embedding (before_rope) are available only for models of the"
            " transformers library"
        )
    install = (
        transformers_backend.install(session)
        if backend == "transformers"
        else torch_backend.install(session)
    )
    with in_one_thread(session.model), uncompiled.on():
        hook = session.model.register_forward_pre_hook(session.start_pass)
        try:
            with install:
                yield
        finally:
            hook.remove()
    session.finish()

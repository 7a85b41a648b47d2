"""The torch backend: torch's own attention functions, for models outside transformers."""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..errors import EigenlensError
from .borrowed import WholeProcess
from .call import AttentionCall
from .session import Session

_SDPA = F.scaled_dot_product_attention
_MULTI_HEAD = inspect.signature(F.multi_head_attention_forward)


class _Attending(threading.local):
    """The functions that this thread attends with while torch's is patched, the latest last."""

    def __init__(self) -> None:
        self.by: list[Callable[..., Tensor]] = []


_attending = _Attending()


@contextlib.contextmanager
def _by_this_thread(function: Callable[..., Tensor]) -> Iterator[None]:
    _attending.by.append(function)
    try:
        yield
    finally:
        _attending.by.pop()


def _dispatch(*args: Any, **kwargs: Any) -> Tensor:
    return (_attending.by[-1] if _attending.by else _SDPA)(*args, **kwargs)


_dispatching = WholeProcess(lambda: mock.patch.object(F, "scaled_dot_product_attention", _dispatch))
"""All threads share torch's function; this sends each thread to its own."""


class _CallWatch(TorchFunctionMode):
    """Sees every call of `scaled_dot_product_attention`, and `nn.MultiheadAttention`."""

    def __init__(self, session: Session, stack: list[nn.Module]) -> None:
        super().__init__()
        self.session = session
        self.stack = stack
        self.last: AttentionCall | None = None

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is _SDPA:
            return self._spy(*args, **kwargs)
        if func is F.multi_head_attention_forward:
            return self._multi_head(args, kwargs)
        return func(*args, **kwargs)

    def _see(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor | None:
        if not self.stack or not self.session.here:
            # called by the user's own code, outside any module, or by another thread while the
            # patch is there
            return None
        q, k, v = (_four(x) for x in (query, key, value))
        mask = attn_mask
        if mask is not None and mask.ndim > 4:
            mask = mask.flatten(0, mask.ndim - 4)
        elif mask is not None and mask.ndim == 3 and query.ndim == 3:
            mask = mask[None]
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        causal = bool(is_causal) and q.shape[2] > 1
        with _by_this_thread(_SDPA):  # what the sink runs is none of the model's
            self.last, output = self.session.see(
                self.stack[-1], q, k, v, scale, mask=mask, causal=causal
            )
        return (
            None
            if output is None
            else output.reshape(*query.shape[:-1], output.shape[-1]).to(query.dtype)
        )

    def _spy(self, *args: Any, **kwargs: Any) -> Tensor:
        output = self._see(*args, **kwargs)
        return _SDPA(*args, **kwargs) if output is None else output

    def _multi_head(self, args: tuple, kwargs: dict) -> Any:
        """Ask for no weights, and compute them from the captured call.

        With `need_weights=True` the module would not call `scaled_dot_product_attention`.
        """
        bound = _MULTI_HEAD.bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        wanted, average = given["need_weights"], given["average_attn_weights"]
        if wanted and given["is_causal"] and given["attn_mask"] is None:
            raise EigenlensError(
                "nn.MultiheadAttention was called with is_causal but without a mask; give it one"
            )
        batched = given["query"].ndim == 3
        given["need_weights"] = False
        self.last = None
        with _dispatching.on(), _by_this_thread(self._spy):  # a mode is off in what it handles
            output, _ = F.multi_head_attention_forward(*bound.args, **bound.kwargs)
        if not wanted or self.last is None:
            return output, None
        weights = self.last.pattern().to(output.dtype)  # (B, H, T, S)
        weights = weights.mean(1) if average else weights
        return output, weights if batched else weights[0]


def _four(x: Tensor) -> Tensor:
    """Return x as (B, H, T, D): missing leading dimensions are 1, extra ones join the batch."""
    while x.ndim < 4:
        x = x[None]
    return x.flatten(0, x.ndim - 4)


@contextlib.contextmanager
def install(session: Session) -> Iterator[None]:
    """Watch torch's attention functions, with a stack of the modules that are running."""
    stack: list[nn.Module] = []

    def push(module: nn.Module, _: Any) -> None:
        if session.here:
            stack.append(module)

    def pop(module: nn.Module, *_: Any) -> None:
        while session.here and stack and stack.pop() is not module:
            pass

    hooks = []
    for module in session.model.modules():
        hooks += [
            module.register_forward_pre_hook(push),
            module.register_forward_hook(pop, always_call=True),
        ]
    try:
        with _no_fast_path.on(), _CallWatch(session, stack):
            yield
    finally:
        for hook in hooks:
            hook.remove()


@contextlib.contextmanager
def _slow_path() -> Iterator[None]:
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(before)


_no_fast_path = WholeProcess(_slow_path)
"""nn.TransformerEncoder's fused path shows no attention."""

"""Let a model attend by a function for good, until it is taken out again."""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn

from ..attention.registry import register, unregister
from ..captures import AttentionCall, AttentionNotSeen, replace_attention
from ..captures.transformers_backend import attention_function, supports
from ..errors import EigenlensError
from ..models.load import Model

Attend = Callable[[AttentionCall], Tensor | None]
_installed: weakref.WeakKeyDictionary[nn.Module, contextlib.ExitStack] = weakref.WeakKeyDictionary()
_numbers = itertools.count(1)


def install(model: Model, attend: Attend) -> None:
    """Let `attend` do the attention of a model; what was installed before is taken out.

    In a model of transformers this holds in every thread, in any other in this one.
    """
    uninstall(model, missing_ok=True)
    stack = contextlib.ExitStack()
    if supports(model.backbone):
        stack.enter_context(_by_interface(model, attend))
    else:
        stack.enter_context(replace_attention(model.backbone, attend))
    _installed[model.backbone] = stack


def uninstall(model: Model, missing_ok: bool = False) -> None:
    """Let a model attend as before; an error if nothing is installed."""
    stack = _installed.pop(model.backbone, None)
    if stack is not None:
        with contextlib.suppress(AttentionNotSeen):  # the model was not called in between
            stack.close()
    elif not missing_ok:
        raise EigenlensError(f"no plan is installed in {model.name}")


@contextlib.contextmanager
def _by_interface(model: Model, attend: Attend) -> Iterator[None]:
    name = f"eigenlens-plan-{next(_numbers)}"
    function: Any = attention_function(model.backbone, attend, model.module)
    register(name, function)
    module: Any = model.module
    before = module.config._attn_implementation
    module.set_attn_implementation(name)
    try:
        yield
    finally:
        module.set_attn_implementation(before)
        unregister(name)
        function.forget()

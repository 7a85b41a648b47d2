"""Let a model attend by a function for good, until it is taken out again.

A model of transformers is set to one attention that all installed models share; it finds the
function of each by the module that attends. What is installed stays with the model and is gone with
it. A copy of the model, or another one of the same config, attends as before.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from ..attention.registry import register, registered
from ..captures import AttentionCall, AttentionNotSeen, replace_attention
from ..captures.transformers_backend import (
    attention_function,
    is_captured,
    plain_attention,
    set_implementation,
    supports,
)
from ..errors import EigenlensError
from ..models.load import Model

Attend = Callable[[AttentionCall], Tensor | None]
NAME = "eigenlens-installed"
PLACE = "_eigenlens_installed"
"""The attribute of a model that holds what is installed in it."""
_by_module: weakref.WeakKeyDictionary[nn.Module, weakref.ref[_Installed]] = (
    weakref.WeakKeyDictionary()
)
_open: set[contextlib.ExitStack] = set()
"""Of modules that are not transformers': they stay until they are taken out."""


class _Installed:
    """What is installed in a model; a copy of the model has nothing in its place."""

    def __init__(self, remove: Callable[[], None], function: Any = None) -> None:
        self.remove, self.function = remove, function

    def __deepcopy__(self, _: Any) -> None:
        return None

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()


def install(model: Model, attend: Attend) -> None:
    """Let `attend` do the attention of a model; what was installed before is taken out.

    In a model of transformers this holds in every thread, in any other in this one.
    """
    uninstall(model, missing_ok=True)
    if supports(model.backbone):
        found = _by_interface(model, attend)
    else:
        stack = contextlib.ExitStack()
        stack.enter_context(replace_attention(model.backbone, attend))
        _open.add(stack)
        found = _Installed(functools.partial(_close, stack))
    model.backbone.__dict__[PLACE] = found


def uninstall(model: Model, missing_ok: bool = False) -> None:
    """Let a model attend as before; an error if nothing is installed."""
    found = model.backbone.__dict__.pop(PLACE, None)
    if found is not None:
        found.remove()
    elif not missing_ok:
        raise EigenlensError(f"no plan is installed in {model.name}")


@atexit.register
def _close_all() -> None:
    """Close what is still open while Python can still do so."""
    for stack in list(_open):
        _close(stack)


def _close(stack: contextlib.ExitStack) -> None:
    _open.discard(stack)
    with contextlib.suppress(AttentionNotSeen):  # the model was not called in between
        stack.close()


def _by_interface(model: Model, attend: Attend) -> _Installed:
    if is_captured(model.module):
        raise EigenlensError(
            f"the attention of {model.name} is captured or replaced by a `with` block at the"
            " moment; install the plan before the block or after it"
        )
    if NAME not in registered():
        register(NAME, _attend_installed)
    function: Any = attention_function(model.backbone, attend, model.module)
    restore = set_implementation(model.module, NAME)

    def remove() -> None:
        restore()
        function.forget()

    found = _Installed(remove, function)
    for module in model.module.modules():
        _by_module[module] = weakref.ref(found)
    return found


def _attend_installed(module: nn.Module, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """Attend by what is installed in the model of a module, or as before."""
    at = _by_module.get(module)
    found = None if at is None else at()
    return (plain_attention if found is None else found.function)(module, *args, **kwargs)


functools.update_wrapper(_attend_installed, plain_attention)

"""Borrow a module: one thread has it at a time, and it comes back unchanged."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from ..errors import EigenlensError, first_line
from ..models.wrapped import unwrapped

_LOG = logging.getLogger("eigenlens")


class _Owned:
    """Lock a model for one thread, which may lock it several times.

    A block may end in another thread than it began in.
    """

    def __init__(self) -> None:
        self._changed, self._owner, self._blocks = threading.Condition(), 0, 0

    def take(self, name: str) -> None:
        me = threading.get_ident()
        with self._changed:
            if self._blocks and self._owner != me:
                _LOG.info("waiting for another thread that is using this %s", name)
                self._changed.wait_for(lambda: not self._blocks)
            self._owner, self._blocks = me, self._blocks + 1

    def give_back(self) -> None:
        with self._changed:
            self._blocks -= 1
            self._changed.notify_all()


# by the first parameter, which a model and its backbone share
_owned: WeakIdKeyDictionary = WeakIdKeyDictionary()
_registering = threading.Lock()


def module_of(model: Any) -> nn.Module:
    """Return the module of a loaded or compiled model, or the module itself."""
    return unwrapped(model if isinstance(model, nn.Module) else getattr(model, "module", model))


@contextlib.contextmanager
def in_one_thread(module: nn.Module) -> Iterator[None]:
    """While the block runs, other threads that want to capture or study the module wait."""
    known = next(module.parameters(), module)
    with _registering:
        owned = _owned.setdefault(known, _Owned())
    owned.take(type(module).__name__)
    try:
        yield
    finally:
        owned.give_back()


class WholeProcess:
    """A setting that all threads share: the first block sets it, the last one resets it."""

    def __init__(self, setting: Callable[[], contextlib.AbstractContextManager[Any]]) -> None:
        self._setting, self._lock, self._blocks = setting, threading.Lock(), 0
        self._entered = contextlib.ExitStack()

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        with self._lock:
            if not self._blocks:
                self._entered.enter_context(self._setting())
            self._blocks += 1
        try:
            yield
        finally:
            with self._lock:
                self._blocks -= 1
                if not self._blocks:
                    self._entered.close()


def _eager() -> contextlib.AbstractContextManager[Any]:
    known = "torch._dynamo" in sys.modules  # slow to load; before that, nothing is compiled
    return torch.compiler.set_stance("force_eager") if known else contextlib.nullcontext()


uncompiled = WholeProcess(_eager)
"""Run compiled modules uncompiled: compiled code shows no attention."""


@contextlib.contextmanager
def _random_numbers() -> Iterator[None]:
    cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
    before, on_devices = torch.get_rng_state(), torch.cuda.get_rng_state_all() if cuda else []
    yield
    torch.set_rng_state(before)
    if cuda:
        torch.cuda.set_rng_state_all(on_devices)


_same_random_numbers = WholeProcess(_random_numbers)


@contextlib.contextmanager
def evaluation_mode(module: nn.Module, device: str | torch.device | None = None) -> Iterator[None]:
    """Put the module in evaluation mode on a device while the block runs; then restore it.

    Training flags of every part, `requires_grad` of every parameter, the device and the state of
    the random numbers are restored, also after an error. With the device None or `auto` the module
    stays where it is.
    """
    with in_one_thread(module), _same_random_numbers.on():
        modes = {part: part.training for part in module.modules()}
        wanted = {p: p.requires_grad for p in module.parameters()}
        home = next((p.device for p in module.parameters()), torch.device("cpu"))
        asked = device is not None and device != "auto" and not _is_at(home, device)
        if asked:
            _move(module, device, home)
        try:
            module.eval()
            yield
        finally:
            # parents first; a part may do more in `train` than set its flag
            for part, training in modes.items():
                if part.training != training:
                    part.train(training)
            for p, flag in wanted.items():
                if p.requires_grad != flag:
                    p.requires_grad_(flag)
            if asked:
                module.to(home)


def _is_at(home: torch.device, device: Any) -> bool:
    name = str(device)
    return name == str(home) or name == home.type


def _move(module: nn.Module, device: Any, home: torch.device) -> None:
    try:
        module.to(device)
    except (RuntimeError, AssertionError, ValueError) as error:
        with contextlib.suppress(RuntimeError, AssertionError, ValueError):
            module.to(home)  # what had been moved by then
        name = type(module).__name__
        raise EigenlensError(
            f"{name} cannot be put on the device {device}: {first_line(error)}"
        ) from error

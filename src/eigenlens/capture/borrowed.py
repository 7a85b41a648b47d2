"""A module that belongs to somebody else: it comes back as it was, and one thread has it at a time."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from ..errors import EigenlensError, first_line
from ..sources.wrapped import unwrapped

_LOG = logging.getLogger("eigenlens")
_locks: weakref.WeakKeyDictionary[nn.Module, threading.RLock] = weakref.WeakKeyDictionary()
_registering = threading.Lock()


def module_of(model: Any) -> nn.Module:
    """The module of a loaded model, or of one that is compiled; a module is its own."""
    return unwrapped(model if isinstance(model, nn.Module) else getattr(model, "module", model))


@contextlib.contextmanager
def in_one_thread(module: nn.Module) -> Iterator[None]:
    """While the block runs, no other thread captures or studies the module: it waits until this one is done."""
    with _registering:
        lock = _locks.setdefault(module, threading.RLock())
    if not lock.acquire(blocking=False):
        _LOG.info("waiting for another thread, which is at work with this %s", type(module).__name__)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


class WholeProcess:
    """A setting that all threads share: the first block that needs it enters it, the last one leaves it."""

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
"""What `torch.compile` made of a module or of its parts runs as it is written: compiled code shows no attention."""


@contextlib.contextmanager
def borrowed(module: nn.Module, device: str | torch.device | None = None) -> Iterator[None]:
    """The module in evaluation mode, on a device, while the block runs; behind it everything is as before.

    Training flags of every part, `requires_grad` of every parameter, the device and the random numbers to come are
    restored, also after an error. The device None or `auto` is the module's own.
    """
    with in_one_thread(module):
        modes = {part: part.training for part in module.modules()}
        wanted = {p: p.requires_grad for p in module.parameters()}
        home = next((p.device for p in module.parameters()), torch.device("cpu"))
        there = home if device is None or device == "auto" else device
        try:
            _move(module, there)
            drawn_on = {p.device for p in module.parameters() if p.device.type == "cuda"}
            with torch.random.fork_rng(devices=drawn_on):
                module.eval()
                yield
        finally:
            module.to(home)
            for part, training in modes.items():
                part.training = training
            for p, flag in wanted.items():
                p.requires_grad_(flag)


def _move(module: nn.Module, device: str | torch.device) -> None:
    try:
        module.to(device)
    except (RuntimeError, AssertionError) as error:
        name = type(module).__name__
        raise EigenlensError(f"{name} cannot be put on the device {device}: {first_line(error)}") from error

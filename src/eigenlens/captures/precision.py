"""A model in float64, even where its own code casts to float32."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

M = TypeVar("M", bound=nn.Module)


def in_double(model: M) -> M:
    """A copy of the model in float64; the model itself stays as it is.

    Run it inside `stays_double()`.
    """
    return copy.deepcopy(model).double()


@contextlib.contextmanager
def stays_double() -> Iterator[None]:
    """While the block runs, float64 tensors are not cast to float32.

    Many models compute norms, softmax and rotary angles in float32 whatever their weights are,
    which would limit the accuracy of float64 curves to about 1e-8.
    """
    with _NoDescent():
        yield


class _NoDescent(TorchFunctionMode):
    """Replaces casts from float64 to float32, and softmax in float32, by float64."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if args and isinstance(args[0], torch.Tensor) and args[0].dtype == torch.float64:
            if func is torch.Tensor.float:
                return args[0]
            if func in {
                torch.Tensor.to,
                torch.Tensor.type,
                torch.softmax,
                torch.nn.functional.softmax,
                torch.Tensor.softmax,
            }:
                args = tuple(torch.float64 if arg is torch.float32 else arg for arg in args)
                kwargs = {
                    key: torch.float64 if value is torch.float32 else value
                    for key, value in kwargs.items()
                }
        return func(*args, **kwargs)

"""Names for attention calls: which stack of layers, which layer in it."""

from __future__ import annotations

import re
import threading
from typing import Literal

from torch import nn

from .call import Site

_CROSS = re.compile(r"cross|encoder_attn|encdecattention|multihead_attn", re.IGNORECASE)


class SiteNames:
    """Turns the module that attends into a `Site`, the same for every pass over the same model.

    The stack is the module path up to its first number, without the name of the list (`encoder.layer.3.…` → `encoder`);
    the layer is the one number of the path that differs within the stack. A module that is called again in the same pass
    (shared layers, as in ALBERT), and nested numbering (stages of blocks), count upwards from there.
    """

    def __init__(self, model: nn.Module) -> None:
        self.paths = {id(module): path for path, module in model.named_modules()}
        numbers: dict[str, list[set[int]]] = {}
        for path in self.paths.values():
            found = [int(part) for part in path.split(".") if part.isdigit()]
            sets = numbers.setdefault(_pattern(path), [set() for _ in found])
            for values, number in zip(sets, found):
                values.add(number)
        self._varying = {p: [i for i, values in enumerate(sets) if len(values) > 1] for p, sets in numbers.items()}
        self._pass = _Pass()

    def start_pass(self) -> None:
        self._pass.used.clear()

    def __contains__(self, module: nn.Module) -> bool:
        return id(module) in self.paths

    def path(self, module: nn.Module) -> str:
        return self.paths[id(module)]

    def kind(self, module: nn.Module) -> Literal["self", "cross"]:
        cross = getattr(module, "is_cross_attention", False) or _CROSS.search(self.path(module).rpartition(".")[2])
        cross = cross or _CROSS.search(".".join(self.path(module).split(".")[-2:]))
        return "cross" if cross else "self"

    def site(self, module: nn.Module) -> Site:
        path = self.path(module)
        parts = path.split(".")
        first = next((i for i, part in enumerate(parts) if part.isdigit()), len(parts))
        stack = ".".join(parts[: max(first - 1, 0)]) or "self"
        if self.kind(module) == "cross":
            stack = "cross" if stack == "self" else f"{stack}.cross"
        varying = self._varying[_pattern(path)]
        numbers = [int(part) for part in parts if part.isdigit()]
        site = Site(stack, numbers[varying[0]] if len(varying) == 1 else 0)
        while site in self._pass.used:
            site = Site(stack, site.layer + 1)
        self._pass.used.add(site)
        return site


class _Pass(threading.local):
    """The sites that were called in the pass which this thread runs."""

    def __init__(self) -> None:
        self.used: set[Site] = set()


def _pattern(path: str) -> str:
    return ".".join("*" if part.isdigit() else part for part in path.split("."))

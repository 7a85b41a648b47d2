"""The token stream of a model: input and output of every block, and its attention calls."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..errors import EigenlensError
from .borrowed import module_of
from .call import AttentionCall
from .own_thread import OwnThread
from .session import Session, installed
from .sites import Site, SiteNames, path_pattern

Kind = Literal["self", "cross"]


@dataclass(eq=False)
class Layer:
    """One block of a model in one forward pass.

    `inputs` and `outputs (B, T, C)` are copies, so that a model that adds in place does not change
    them. If a block reads the output of the previous block, its `inputs` and that block's `outputs`
    are the same object.
    """

    site: Site  # of its self-attention
    inputs: Tensor
    outputs: Tensor
    calls: tuple[AttentionCall, ...]  # made inside this block, self-attention first
    valid: Tensor | None = None  # (B, T) bool: False marks padding


def attention_names(calls: Iterable[AttentionCall]) -> dict[str, Kind]:
    """Return the modules that made these calls, by path, with the kind of their attention."""
    return {call.name: call.kind for call in calls}


def block_paths(names: Mapping[str, Kind]) -> dict[str, str]:
    """Return the block of every attention module, from the paths alone.

    A module without a number in its path has no block.

    A block is the shortest prefix that ends in a number and is not shared with another
    self-attention; modules whose paths differ only in numbers get prefixes of the same depth.
    Cross-attention belongs to the block of the self-attention beside it.

    >>> block_paths({"layer.3.attention.self": "self", "layer.4.attention.self": "self"})
    {'layer.3.attention.self': 'layer.3', 'layer.4.attention.self': 'layer.4'}
    """
    found = _unshared([name for name, kind in names.items() if kind == "self"])
    blocks = set(found.values())
    alone = []
    for name in (name for name, kind in names.items() if kind == "cross"):
        block = next((prefix for prefix in _prefixes(name) if prefix in blocks), None)
        if block is None:
            alone.append(name)
        else:
            found[name] = block
    return found | _unshared(alone)


def _unshared(paths: list[str]) -> dict[str, str]:
    """Return the numbered prefix of each path that no other path has, or else the longest."""
    # by pattern, so that a stage of one block is not taken for the block
    depth: dict[str, int] = {}
    for path in paths:
        prefixes = _prefixes(path)
        own = (
            i
            for i, p in enumerate(prefixes)
            if not any(q.startswith(f"{p}.") for q in paths if q != path)
        )
        if prefixes:
            pattern = path_pattern(path)
            depth[pattern] = max(depth.get(pattern, 0), next(own, len(prefixes) - 1))
    return {path: _prefixes(path)[depth[path_pattern(path)]] for path in paths if _prefixes(path)}


def _prefixes(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[: i + 1]) for i, part in enumerate(parts[:-1]) if part.isdigit()]


@dataclass
class _Running:
    """A block that has started and not ended."""

    path: str
    inputs: Tensor | None
    calls: list[AttentionCall] = field(default_factory=list)


class _LayerWatch(OwnThread):
    """Assembles the streams and the calls of a pass."""

    def __init__(
        self, model: nn.Module, blocks: dict[str, str], sink: Callable[[Layer], Any]
    ) -> None:
        super().__init__()
        self.model, self.blocks, self.sink = model, blocks, sink
        # self-attention is named first
        self.attention = {block: name for name, block in reversed(blocks.items())}
        self.names = SiteNames(model)
        self.start_pass()

    def start_pass(self, *_: Any) -> None:
        if not self.here:
            return
        self.names.start_pass()
        self.running: list[_Running] = []
        # what the last block gave, and the copy of it
        self.last: tuple[Tensor, Tensor] | None = None
        self.valid: Tensor | None = None

    def see(self, call: AttentionCall) -> None:
        if self.running and self.blocks.get(call.name) == self.running[-1].path:
            self.running[-1].calls.append(call)

    def enter(self, path: str, args: tuple, kwargs: dict[str, Any]) -> None:
        if not self.here:
            return
        given = next(
            (
                x
                for x in (*args, kwargs.get("hidden_states"), *kwargs.values())
                if isinstance(x, Tensor)
            ),
            None,
        )
        stream = None if given is None else _stream(given, self._attention_of(path))
        if (
            stream is not None
            and self.last is not None
            and given is self.last[0]
            and torch.equal(stream, self.last[1])
        ):
            stream = self.last[1]
        elif stream is not None:
            stream = stream.clone()
        self.running.append(_Running(path, stream))

    def leave(self, path: str, output: Any) -> None:
        if not self.here:
            return
        while self.running and self.running[-1].path != path:  # blocks that an exception ended
            self.running.pop()
        if not self.running:
            return
        block = self.running.pop()
        site = self.names.site(self._attention_of(path))  # counts on, as the sites of the calls do
        given = output[0] if isinstance(output, tuple | list) and output else output
        outputs = _stream(given, self._attention_of(path)) if isinstance(given, Tensor) else None
        if block.inputs is None or outputs is None:
            return
        self.last = (given, outputs.clone())
        calls = sorted(block.calls, key=lambda call: call.kind != "self")
        if calls:
            site, self.valid = calls[0].site, calls[0].query_valid
        valid = (
            self.valid
            if self.valid is not None and self.valid.shape == block.inputs.shape[:2]
            else None
        )
        self.sink(Layer(site, block.inputs, self.last[1], tuple(calls), valid))

    def _attention_of(self, path: str) -> nn.Module:
        return self.model.get_submodule(self.attention[path])


def _stream(x: Tensor, attention: nn.Module) -> Tensor | None:
    """Return `x` as (B, T, C); None if it is not a sequence of tokens (a picture with channels)."""
    if x.ndim == 2:
        return x.detach()[None]
    # nn.MultiheadAttention takes (T, B, C) unless it says so
    turned = getattr(attention, "batch_first", True) is False
    return (x.detach().transpose(0, 1) if turned else x.detach()) if x.ndim == 3 else None


@contextlib.contextmanager
def capture_layers(
    model: Any,
    names: Mapping[str, Kind],
    sink: Callable[[Layer], Any] | None = None,
    *,
    calls: Callable[[AttentionCall], Any] | None = None,
    backend: Literal["auto", "transformers", "torch"] = "auto",
) -> Iterator[list[Layer]]:
    """Capture every block of `model` while this one runs.

    `names` are its attention modules, from an earlier pass.

    >>> with capture(model) as seen:
    ...     model(**inputs)
    >>> with capture_layers(model, attention_names(seen)) as layers:
    ...     model(**inputs)
    >>> layers[0].inputs.shape, layers[0].calls[0].pattern().shape      # (B, T, C), (B, H, T, T)

    A `sink` gets each layer when its block ends, and nothing is kept (the list stays empty).
    `calls` gets the attention calls as they happen, like the sink of `capture`, so that one forward
    pass serves both.
    """
    module, blocks = module_of(model), block_paths(names)
    if not blocks:
        listed = ", ".join(list(names)[:3]) or "none was named"
        raise EigenlensError(
            f"no block of {type(module).__name__} can be found: the paths of its attention modules"
            f" ({listed}) contain no number"
        )
    layers: list[Layer] = []
    watch = _LayerWatch(module, blocks, sink or layers.append)
    session = Session(module, watch.see, *([] if calls is None else [calls]))
    with contextlib.ExitStack() as hooks, installed(session, backend):
        hooks.callback(module.register_forward_pre_hook(watch.start_pass).remove)
        for path in dict.fromkeys(blocks.values()):
            block = module.get_submodule(path)
            enter = block.register_forward_pre_hook(
                lambda _, a, k, path=path: watch.enter(path, a, k), with_kwargs=True
            )
            leave = block.register_forward_hook(lambda _, a, out, path=path: watch.leave(path, out))
            hooks.callback(enter.remove)
            hooks.callback(leave.remove)
        yield layers

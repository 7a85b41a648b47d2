"""One forward and one backward pass: patterns, streams, and the gradients of a target."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..anatomy.check import never_drops
from ..captures import AttentionCall, Site, attention_names, block_paths, replace_attention
from ..errors import EigenlensError
from ..models.load import Model
from ..names import unknown_name
from .scores import run_model
from .target import Target


@dataclass(frozen=True, eq=False)
class Pattern:
    """The pattern A of one attention call and ∂score/∂A, both (B, H, T, S).

    `stream` names the tokens that are its queries.
    """

    site: Site
    kind: Literal["self", "cross"]
    weights: Tensor
    gradient: Tensor
    stream: str


@dataclass(frozen=True, eq=False)
class Stream:
    """The tokens of one stack before its first and after its last block, (B, T, C).

    It also has the gradients of the score. `ended` is `outputs` after the norm that follows the
    last block; without such a norm it is `outputs`.
    """

    stack: str
    inputs: Tensor
    gradient: Tensor
    outputs: Tensor
    output_gradient: Tensor
    valid: Tensor  # (B, T) bool: False marks padding
    ended: Tensor
    ended_gradient: Tensor


@dataclass(frozen=True, eq=False)
class Observed:
    """What the score (B,) of a target depends on: patterns in running order, and streams."""

    score: Tensor
    patterns: tuple[Pattern, ...]
    streams: tuple[Stream, ...]

    def stream(self, stack: str) -> Stream | None:
        """The stream of a stack; None for a stack without blocks, such as a pooling head."""
        return next((stream for stream in self.streams if stream.stack == stack), None)

    def reads(self, stack: str | None = None) -> Tensor:
        """How much the target reads each output token, (B, T): `‖∂score/∂y_i‖ / Σ_i ‖∂score/∂y_i‖`.

        Without a `stack` it is the last one that ran. If the target reads no token of it, all have
        the same weight.
        """
        stream = self.streams[-1] if stack is None else self.stream(stack)
        if stream is None:
            raise unknown_name("stream", stack, (s.stack for s in self.streams), guess=False)
        norms = stream.output_gradient.norm(dim=-1) * stream.valid  # (B, T)
        total = norms.sum(1, keepdim=True)
        alike = stream.valid / stream.valid.sum(1, keepdim=True).clamp_min(1)
        return torch.where(
            total > 0, norms / total.clamp_min(torch.finfo(norms.dtype).tiny), alike.to(norms)
        )


@torch.inference_mode(False)  # there is no backward pass in inference mode
def observe(model: Model, batch: Mapping[str, Tensor], target: Target) -> Observed:
    """Run a loaded model on a batch with gradients, and note what the target's score depends on.

    The score of one input depends on that input alone, so one backward pass of the sum gives the
    gradients of all. Memory: patterns and their gradients, `2·B·H·T·S` numbers per layer, besides
    what a backward pass keeps.

    >>> seen = observe(model, batch, target_of(model, batch))
    >>> # (B, H, T, S), (B, T, C), (B, T)
    >>> seen.patterns[0].weights.shape, seen.streams[0].inputs.shape, seen.reads().shape
    """
    never_drops(model.module, "explained")
    if any(p.is_inference() for p in model.module.parameters()):
        raise EigenlensError(
            f"{model.name} was loaded in torch.inference_mode(), so it has no gradients; load it"
            " outside"
        )
    batch = {
        name: x.clone() if isinstance(x, Tensor) and x.is_inference() else x
        for name, x in batch.items()
    }
    watch = _StreamWatch()

    def attend(call: AttentionCall) -> Tensor:
        return watch.attended(call) @ call.values

    with torch.enable_grad(), replace_attention(model.module, attend), watch.watching(model.module):
        score = target.score(run_model(model, batch), batch)  # (B,)
        total = score.sum()
    if score.ndim != 1:
        raise EigenlensError(
            f"the score of {target.label} has the shape {tuple(score.shape)}; one number per input"
            " is needed"
        )
    if not score.requires_grad:
        raise EigenlensError(f"the score of {target.label} does not depend on the model's tokens")
    ends = watch.ends(model.module)
    asked = [weights for _, weights in watch.patterns]
    asked += [x for end in ends for x in (end.inputs, end.outputs, end.ended)]
    gradients = torch.autograd.grad(total, asked, allow_unused=True)
    known = [torch.zeros_like(x) if g is None else g for x, g in zip(asked, gradients)]
    patterns = tuple(
        Pattern(call.site, call.kind, weights.detach(), g, stream)
        for (call, weights), g, stream in zip(watch.patterns, known, watch.streams())
    )
    streams = []
    for place, end in enumerate(ends):
        at = len(patterns) + 3 * place
        inputs, outputs, ended, *slopes = map(
            end.batch_first, (*asked[at : at + 3], *known[at : at + 3])
        )
        streams.append(
            Stream(end.stack, inputs, slopes[0], outputs, slopes[1], end.valid, ended, slopes[2])
        )
    return Observed(score.detach(), patterns, tuple(streams))


@dataclass(frozen=True, eq=False)
class _End:
    """Both ends of a stack, as parts of the graph of the backward pass."""

    stack: str
    inputs: Tensor
    outputs: Tensor
    ended: Tensor
    valid: Tensor
    turned: bool  # they are (T, B, C)

    def batch_first(self, x: Tensor) -> Tensor:
        """The tokens (B, T, C), detached from the graph."""
        return x.detach().transpose(0, 1) if self.turned else x.detach()


@dataclass
class _StreamWatch:
    """Notes the patterns, and the stream at every module that has parts.

    Which modules are blocks is only known afterwards.
    """

    patterns: list[tuple[AttentionCall, Tensor]] = field(default_factory=list)
    entered: list[tuple[str, Tensor]] = field(default_factory=list)
    left: list[tuple[str, Tensor]] = field(default_factory=list)
    normed: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def attended(self, call: AttentionCall) -> Tensor:
        """Note the pattern of a call, (B, H, T, S), as part of the backward pass."""
        weights = call.pattern()
        weights = weights if weights.requires_grad else weights.detach().requires_grad_()
        self.patterns.append((call, weights))
        return weights

    @contextlib.contextmanager
    def watching(self, module: nn.Module) -> Iterator[None]:
        """Put hooks on the modules, and take them off at the end."""
        hooks = []
        for path, part in module.named_modules():
            if any(True for _ in part.children()):
                hooks.append(part.register_forward_pre_hook(self._enter(path), with_kwargs=True))
                hooks.append(part.register_forward_hook(self._leave(path)))
            elif "norm" in type(part).__name__.lower():
                hooks.append(part.register_forward_hook(self._norm))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _enter(self, path: str) -> Any:
        def enter(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            x = next(
                (
                    x
                    for x in (kwargs.get("hidden_states"), *args, *kwargs.values())
                    if _is_stream(x)
                ),
                None,
            )
            if x is None:
                return None
            kept = x if x.requires_grad else x.detach().requires_grad_()
            self.entered.append((path, kept))
            handed = kept.clone()  # a block that adds in place must not change what was noted
            args = tuple(handed if value is x else value for value in args)
            return args, {name: handed if value is x else value for name, value in kwargs.items()}

        return enter

    def _leave(self, path: str) -> Any:
        def leave(_module: nn.Module, _args: Any, out: Any) -> None:
            first = out[0] if isinstance(out, tuple | list) and out else out
            if _is_stream(first):
                self.left.append((path, first))

        return leave

    def _norm(self, _module: nn.Module, args: Any, out: Any) -> None:
        if args and _is_stream(args[0]) and isinstance(out, Tensor):
            self.normed.append((args[0], out))

    def streams(self) -> list[str]:
        """The stream whose tokens are the queries of each call.

        It has the name of the stack, `decoder` also for `decoder.cross`. If a stack is made of
        several lists of blocks, which may be streams of their own, it has the name of the list; if
        tokens of one list differ in number, that of another list with equally many.
        """
        calls = [call for call, _ in self.patterns]
        lists: dict[str, set[str]] = {}
        for call in calls:
            lists.setdefault(_own(call.site.stack), set()).add(_list(call.name))
        names = [
            stack if len(lists[stack := _own(call.site.stack)]) == 1 else _list(call.name)
            for call in calls
        ]
        tokens: dict[str, set[int]] = {}
        for call, name in zip(calls, names):
            tokens.setdefault(name, set()).add(call.q.shape[2])
        alike = {min(found): name for name, found in tokens.items() if len(found) == 1}
        mixed = {name for name, found in tokens.items() if len(found) > 1}
        return [
            alike.get(T := call.q.shape[2], f"{name}.{T}") if name in mixed else name
            for call, name in zip(calls, names)
        ]

    def ends(self, module: nn.Module) -> list[_End]:
        """The ends of every stack of self-attention, in the order in which the stacks end."""
        calls = [(call, stream) for (call, _), stream in zip(self.patterns, self.streams())]
        blocks = block_paths(attention_names(call for call, _ in calls))
        found: list[tuple[int, _End]] = []
        for stack in dict.fromkeys(stream for call, stream in calls if call.kind == "self"):
            own = [call for call, stream in calls if stream == stack and call.kind == "self"]
            paths = {blocks.get(call.name, call.name.rpartition(".")[0]) for call in own}
            first = next((x for path, x in self.entered if path in paths), None)
            place = max((i for i, (path, _) in enumerate(self.left) if path in paths), default=None)
            if first is None or place is None:
                continue
            last = self.left[place][1]
            # (T, B, C)
            turned = getattr(module.get_submodule(own[0].name), "batch_first", True) is False
            B, _, T, _ = own[0].q.shape
            if first.shape != last.shape or first.shape[:2] != ((T, B) if turned else (B, T)):
                continue
            ended = next(
                (out for x, out in reversed(self.normed) if x is last and out.shape == last.shape),
                last,
            )
            valid = own[0].query_valid
            valid = (
                valid
                if valid is not None
                else torch.ones(B, T, dtype=torch.bool, device=first.device)
            )
            found.append((place, _End(stack, first, last, ended, valid, turned)))
        if not found:
            raise EigenlensError(
                f"no stream of tokens (B, T, C) could be followed through {type(module).__name__}: "
                "its tokens attend within windows, or change in number or shape from block to block"
            )
        return [end for _, end in sorted(found, key=lambda item: item[0])]


def _is_stream(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point() and x.ndim == 3


def _own(stack: str) -> str:
    """`decoder.cross` → `decoder`, as capture names them."""
    return "self" if stack == "cross" else stack.removesuffix(".cross")


def _list(path: str) -> str:
    """The list of blocks that a module is in: `encoder.layer.3.attention` → `encoder.layer`."""
    parts = path.split(".")
    return ".".join(
        parts[: next((i for i, part in enumerate(parts) if part.isdigit()), len(parts))]
    )

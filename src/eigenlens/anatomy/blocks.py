"""The anatomy of a transformer, the same for every family: blocks of stages, stages of branches.

    stage:   x ← N_after( x + Σ_branch N_within(f(N_before(x))) · scale )

Most blocks have two stages of one branch each (attention, then MLP); parallel blocks have one stage
of two branches. Pre-norm families have N_before, post-norm ones N_after, sandwich ones N_within; a
norm that a family does not have is the identity.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor, nn

from ..captures.sites import front_of, stack_of
from ..errors import EigenlensError
from .switches import Switches

BlockCall = dict[str, Any]
"""The arguments of a block's forward by name.

A block also puts here what it must pass on besides the stream.
"""


@dataclass(frozen=True, eq=False)
class Attend:
    """An attention as linear maps.

    It has the module that makes the attention call, and its output projection if that is another
    module.
    """

    module: nn.Module
    output: nn.Module | None = None


@dataclass(frozen=True, eq=False)
class Mlp:
    """`narrow(act(wide(u)))`, or with a gate `narrow(act(gate(u)) · wide(u))`."""

    wide: nn.Module
    narrow: nn.Module
    act: Callable[[Tensor], Tensor]
    gate: nn.Module | None = None
    fused: bool = False  # `wide` gives act's argument and the linear part side by side


@dataclass(frozen=True, eq=False)
class Branch:
    """One branch beside the skip: `run(u, given)` is its body f, without norms, scale and skip."""

    kind: Literal["attention", "cross", "mlp"]
    run: Callable[[Tensor, BlockCall], Tensor]
    linear: Attend | Mlp
    before: nn.Module | None = None
    within: nn.Module | None = None
    scale: nn.Module | None = None  # a gain for each channel
    skip: bool = True


@dataclass(frozen=True, eq=False)
class Stage:
    """Branches that read the same stream and are added to it."""

    branches: tuple[Branch, ...]
    after: nn.Module | None = None

    @property
    def attends(self) -> bool:
        return any(branch.kind == "attention" for branch in self.branches)

    def keeps_input(self, switches: Switches) -> bool:
        """Whether x itself is in the sum: a branch that runs has a skip, or no branch runs."""
        running = [branch for branch in self.branches if switches.runs(branch.kind)]
        return not running or any(branch.skip and switches.skips(branch.kind) for branch in running)


@dataclass(frozen=True, eq=False)
class Block:
    """A block of a model: its module, its stages, and how it passes the stream on."""

    module: nn.Module
    path: str
    stages: tuple[Stage, ...]
    finish: Callable[[Tensor, BlockCall], Any] = lambda x, _given: x
    parameters: inspect.Signature = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "parameters", inspect.signature(type(self.module).forward))

    def bind_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, BlockCall]:
        """Return the stream and the other arguments, by name, of a call of the block."""
        bound = self.parameters.bind(self.module, *args, **kwargs)
        values = dict(bound.arguments)
        for parameter in self.parameters.parameters.values():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                values |= values.pop(parameter.name, {})
        names = list(values)
        return values[names[1]], {name: values[name] for name in names[2:]}

    def run(self, x: Tensor, given: BlockCall, switches: Switches = Switches()) -> Any:  # noqa: B008
        """Run the block's forward with some of its parts switched off."""
        for stage in self.stages:
            x = run_stage(stage, x, given, switches)
        return self.finish(x, given)


def run_stage(stage: Stage, x: Tensor, given: BlockCall, switches: Switches) -> Tensor:
    """Return `N_after(x + Σ branches)`, (B, T, C) → (B, T, C)."""
    parts = [x] if stage.keeps_input(switches) else []
    for branch in stage.branches:
        if not switches.runs(branch.kind) or (
            branch.kind == "cross" and given.get("encoder_hidden_states") is None
        ):
            continue
        y = branch.run(_normed(branch.before, x, switches), given)
        y = _normed(branch.within, y, switches)
        parts.append(y if branch.scale is None else branch.scale(y))
    if not parts:  # a cross-attention with nothing to read
        return x
    total = parts[-1]
    for part in reversed(parts[:-1]):
        total = total + part
    return _normed(stage.after, total, switches)


def _normed(norm: nn.Module | None, x: Tensor, switches: Switches) -> Tensor:
    return x if norm is None or not switches.norm else norm(x)


@dataclass(frozen=True, eq=False)
class Stack:
    """The blocks of an encoder or a decoder in order, and the norm after the last one."""

    name: str
    blocks: tuple[Block, ...]
    final: nn.Module | None


def read_stacks(model: nn.Module) -> tuple[Stack, ...]:
    """Return the stacks of a model whose family is known.

    Otherwise raises an error that names the unknown block.
    """
    from .families import final_norm, read

    found: dict[str, list[Block]] = {}
    front = front_of(model)
    for path, module in model.named_modules():
        if any(path.startswith(f"{block.path}.") for blocks in found.values() for block in blocks):
            continue  # inside a block already read
        block = read(module, path)
        if block is not None:
            found.setdefault(stack_of(path, front), []).append(block)
    if not found:
        raise EigenlensError(
            f"the blocks of {type(model).__name__} are not known to eigenlens ({_unknown(model)});"
            f" {KNOWN}"
        )
    return tuple(
        Stack(name, tuple(blocks), final_norm(model, blocks)) for name, blocks in found.items()
    )


KNOWN = (
    "it knows those of BERT, ALBERT, DistilBERT, GPT-2, ViT, DINOv2, CLIP, Llama, Gemma 2, Phi,"
    " GPT-NeoX, ModernBERT, OPT, BART, Whisper, T5 and families built like them, and of eigenlens's"
    " own lab. Metrics along depth work for every model"
)


def _unknown(model: nn.Module) -> str:
    """Describe what was found instead of known blocks: `FunnelLayer with self_attn, ffn`."""
    numbered = [
        module for path, module in model.named_modules() if path.rpartition(".")[2].isdigit()
    ]
    items = [
        module
        for module in numbered
        if any(module.children()) and not isinstance(module, nn.ModuleList)
    ]
    if not items:
        return "it has no numbered layers"
    names: Sequence[str] = [name for name, _ in items[0].named_children()]
    return f"{type(items[0]).__name__} with {', '.join(names)}"

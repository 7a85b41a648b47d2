"""The contract of every diagnostic, and what it is shown of a forward pass."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from ..attention.precision import at_least_float32
from ..captures import AttentionCall, Layer, Site
from ..captures.sites import field_of
from ..errors import EigenlensError
from ..hints import check_values
from ..stats.intervals import t_interval_of_sums
from ..stats.statistic import State, same_shape
from .finding import Finding, Number
from .studied_model import StudiedModel

if TYPE_CHECKING:
    from ..models.load import Model


@dataclass(eq=False)
class CallView:
    """One attention call of some inputs; the pattern is made once for all diagnostics.

    What costs much is measured on the inputs `expensive` alone: places in this batch, chosen by
    their place among all inputs, so that it does not matter how these were cut into batches. None
    is all of them.
    """

    call: AttentionCall
    ids: Tensor | None = None  # (B, S) the token ids of the keys, where they are tokens
    vocabulary: int | None = None
    sampled: Sequence[int] | None = None

    @cached_property
    def sampled_inputs(self) -> Tensor:
        """The inputs that expensive parts are measured on, (b,), possibly none."""
        return _places(self.sampled, self.call.q)

    @property
    def site(self) -> Site:
        return self.call.site

    @cached_property
    def pattern(self) -> Tensor:
        """(B, H, T, S), in float32 at least; rows of padding are zero."""
        return self.call.pattern()

    @cached_property
    def allowed(self) -> Tensor:
        """The pairs that count, (B or 1, H or 1, T, S) bool."""
        return self.call.valid()

    @cached_property
    def queries(self) -> Tensor:
        """The queries that are no padding, (B, T) bool."""
        B, _, T, _ = self.call.q.shape
        found = self.call.query_valid
        return (
            torch.ones(B, T, dtype=torch.bool, device=self.call.q.device)
            if found is None
            else found
        )

    @cached_property
    def seen_by(self) -> Tensor:
        """How many queries see each key, (B or 1, H or 1, S); 0 of padding."""
        return self.allowed.sum(2)

    @cached_property
    def received(self) -> Tensor:
        """What a key gets on average from the queries that see it, (B, H, S) float64.

        0 for padding.
        """
        return self.pattern.sum(2, dtype=torch.float64) / self.seen_by.clamp_min(1)


@dataclass(eq=False)
class LayerView:
    """One block and some inputs: what goes in and comes out, (B, T, C).

    And its self-attention where it was seen.
    """

    site: Site
    inputs: Tensor
    outputs: Tensor
    valid: Tensor  # (B, T) bool: False marks padding
    ids: Tensor | None = None  # (B, T)
    seen: CallView | None = None
    vocabulary: int | None = None
    sampled: Sequence[int] | None = None

    @cached_property
    def sampled_inputs(self) -> Tensor:
        """The inputs that expensive parts are measured on, (b,), possibly none."""
        return _places(self.sampled, self.inputs)

    @classmethod
    def of(
        cls,
        layer: Layer,
        chosen: slice,
        ids: Tensor | None,
        seen: CallView | None,
        vocabulary: int | None,
        sampled: Sequence[int] | None = None,
    ) -> LayerView:
        """The inputs `chosen` of a captured layer, in float32 at least."""
        X, Y = (at_least_float32(x[chosen]) for x in (layer.inputs, layer.outputs))
        valid = None if layer.valid is None else layer.valid[chosen]
        there = (
            torch.ones(X.shape[:2], dtype=torch.bool, device=X.device) if valid is None else valid
        )
        return cls(layer.site, X, Y, there, ids, seen, vocabulary, sampled)


def _places(sampled: Sequence[int] | None, x: Tensor) -> Tensor:
    return (
        torch.arange(len(x), device=x.device)
        if sampled is None
        else torch.tensor(sampled, dtype=torch.long, device=x.device)
    )


def field_by_site(tensors: Mapping[str, Tensor], field: str) -> list[tuple[Site, Tensor]]:
    """One field of all sites, in their order, from tensors named `site/field`."""
    own = {name: x for name, x in tensors.items() if name.endswith(f"/{field}")}
    return sorted(((field_of(name)[0], x) for name, x in own.items()), key=lambda pair: pair[0])


@dataclass(frozen=True)
class NoSettings:
    """A diagnostic without thresholds."""


class Diagnostic(ABC):
    """A mergeable statistic of heads or layers.

    A diagnostic is made from its `Settings`, given the model by `begin`, shown calls or layers of a
    forward pass inside `attached`, and gives a `Finding`. What it keeps are tensors of two kinds,
    by name: `sums`, which `merge` adds, and `peaks`, of which it takes the larger. A name is
    `site/field`.

    The usual diagnostic gives, from `measure`, one value for every input, number and head; the base
    keeps `n, Σm, Σm²` of each (what is not finite is left out), and the result has the mean and its
    95 % interval over inputs.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    sees: ClassVar[Literal["calls", "layers", "weights", "probe"]]
    """What it is shown.

    Calls or layers of the study's inputs, the calls of inputs of its own, or nothing but the
    weights.
    """
    level: ClassVar[Literal["head", "layer"]]
    numbers: ClassVar[Mapping[str, str]]
    """Its numbers by name, in words; the first is the one that maps and curves show to begin with.
    """
    Settings: ClassVar[type] = NoSettings

    def __init__(self, **settings: Any) -> None:
        known = list(getattr(self.Settings, "__dataclass_fields__", {}))
        for name in settings:
            if name not in known:
                has = f"it has {', '.join(known)}" if known else "it has none"
                raise EigenlensError(f"the diagnostic {self.name} has no setting {name!r}; {has}")
        check_values(self.Settings, settings)
        self.settings = self.Settings(**settings)
        self.sums: dict[str, Tensor] = {}
        self.peaks: dict[str, Tensor] = {}

    def begin(self, studied: StudiedModel) -> str:
        """Get ready for a model, and measure what its weights alone say.

        Gives why the diagnostic does not apply, or "".
        """
        return ""

    @contextmanager
    def attached(self, studied: StudiedModel) -> Iterator[None]:
        """Around a forward pass: the place for hooks on the model's modules."""
        yield

    def batches(self, model: Model) -> Sequence[Mapping[str, Tensor]]:
        """The inputs of its own of a diagnostic that sees a probe, ready for the model."""
        raise EigenlensError(f"the diagnostic {self.name} has no inputs of its own")

    def measure(self, seen: Any) -> Tensor | None:
        """Values (B, numbers, H) of one call or layer (H = 1 of a layer).

        NaN where there is none, None to skip it.
        """
        raise EigenlensError(f"the diagnostic {self.name} measures nothing in a forward pass")

    @torch.no_grad()
    def update(self, seen: CallView | LayerView) -> None:
        """Count one call or layer in."""
        values = self.measure(seen)
        if values is not None:
            self.count(seen.site, values)

    def count(self, site: Site, values: Tensor) -> None:
        """Add values (B, numbers, H) of some inputs."""
        values = values.double()
        there = values.isfinite()
        values = torch.where(there, values, 0.0)
        # (numbers, H, 3)
        self.add(
            f"{site}/values", torch.stack([there.double(), values, values.square()], -1).sum(0)
        )

    def add(self, name: str, x: Tensor) -> None:
        """Add to a sum."""
        x = x.detach().double().cpu()
        if name in self.sums:
            same_shape(name, tuple(self.sums[name].shape), tuple(x.shape))
            x = self.sums[name] + x
        self.sums[name] = x.contiguous()

    def peak(self, name: str, x: Tensor) -> None:
        """Keep the larger."""
        x = x.detach().double().cpu()
        if name in self.peaks:
            same_shape(name, tuple(self.peaks[name].shape), tuple(x.shape))
            x = torch.maximum(self.peaks[name], x)
        self.peaks[name] = x.contiguous()

    def fresh(self) -> Self:
        """The same, as ready for a model, with nothing seen."""
        made = copy.copy(self)
        made.sums, made.peaks = {}, {}
        return made

    def merge(self, other: Self) -> None:
        """Add what `other` has seen; `other` is left as it was."""
        for name, x in other.sums.items():
            self.add(name, x)
        for name, x in other.peaks.items():
            self.peak(name, x)

    def state(self) -> State:
        return {
            **{f"sum|{name}": x for name, x in self.sums.items()},
            **{f"peak|{name}": x for name, x in self.peaks.items()},
        }

    @classmethod
    def from_state(cls, state: State, **settings: Any) -> Self:
        made = cls(**settings)
        for name, x in state.items():
            kind, _, rest = name.partition("|")
            (made.sums if kind == "sum" else made.peaks)[rest] = x
        return made

    def result(self, note: str = "", tokens: Mapping[int, str] | None = None) -> Finding:
        """What was found.

        `note` says why it does not apply, `tokens` are the texts of token ids where they are known.
        """
        numbers = () if note else tuple(self.found())
        finding = Finding(
            self.name,
            self.title,
            self.level,
            dict(self.numbers),
            numbers,
            {},
            note,
            asdict(self.settings),
        )
        if note or not numbers:
            return finding
        return finding.with_sentence(self.sentence(finding), self.tables(finding, tokens or {}))

    def found(self) -> Iterator[Number]:
        """Every number of every head or layer, in the order of the layers.

        By default the means of what `measure` gave.
        """
        for site, sums in field_by_site(self.sums, "values"):
            for name, heads in zip(self.numbers, sums.tolist()):
                for head, (n, first, second) in enumerate(heads):
                    if n:
                        mean, low, high = t_interval_of_sums(n, first, second)
                        where = (site.stack, site.layer, head if self.level == "head" else None)
                        yield Number(*where, name, mean, low, high, int(n))

    def tables(
        self, finding: Finding, tokens: Mapping[int, str]
    ) -> dict[str, list[dict[str, Any]]]:
        """More than numbers of heads or layers, by title: which tokens, which channels."""
        return {}

    def token_ids(self) -> list[int]:
        """The ids of tokens that `tables` would name, so that their texts can be kept."""
        return []

    @abstractmethod
    def sentence(self, finding: Finding) -> str:
        """What was found, in one plain sentence made from its numbers."""

    @classmethod
    def chart(cls, finding: Finding) -> Any:
        """The picture (altair).

        By default a map of layers × heads of the first number, or curves along the layers.
        """
        from .pictures import head_map, layer_curves

        return head_map(finding) if cls.level == "head" else layer_curves(finding)

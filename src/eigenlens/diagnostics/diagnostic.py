"""The contract of every diagnostic, and what a diagnostic sees of a forward pass."""

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
    """One attention call and some inputs; the pattern is made once for all diagnostics.

    Expensive parts are measured only on the inputs `sampled`: positions in this batch, chosen by
    position among all inputs, so that the choice does not depend on how inputs are cut into
    batches. None stands for all inputs.
    """

    call: AttentionCall
    ids: Tensor | None = None  # (B, S) the token ids of the keys, where they are tokens
    vocabulary: int | None = None
    sampled: Sequence[int] | None = None

    @cached_property
    def sampled_inputs(self) -> Tensor:
        """The inputs that expensive parts are measured on, (b,); may be empty."""
        return _places(self.sampled, self.call.q)

    @property
    def site(self) -> Site:
        return self.call.site

    @cached_property
    def pattern(self) -> Tensor:
        """The attention pattern (B, H, T, S), in float32 at least; rows of padding are zero."""
        return self.call.pattern()

    @cached_property
    def allowed(self) -> Tensor:
        """The pairs that the mask allows, (B or 1, H or 1, T, S) bool."""
        return self.call.valid()

    @cached_property
    def queries(self) -> Tensor:
        """The queries that are not padding, (B, T) bool."""
        B, _, T, _ = self.call.q.shape
        found = self.call.query_valid
        return (
            torch.ones(B, T, dtype=torch.bool, device=self.call.q.device)
            if found is None
            else found
        )

    @cached_property
    def seen_by(self) -> Tensor:
        """How many queries see each key, (B or 1, H or 1, S); 0 for padding."""
        return self.allowed.sum(2)

    @cached_property
    def received(self) -> Tensor:
        """The attention each key gets on average from the queries that see it, (B, H, S) float64.

        0 for padding.
        """
        return self.pattern.sum(2, dtype=torch.float64) / self.seen_by.clamp_min(1)


@dataclass(eq=False)
class LayerView:
    """One block and some inputs: its input and its output, (B, T, C).

    Also its self-attention, if that was captured.
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
        """The inputs that expensive parts are measured on, (b,); may be empty."""
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
        """Return the inputs `chosen` of a captured layer, in float32 at least."""
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
    """Return one field of all sites, in their order, from tensors named `site/field`."""
    own = {name: x for name, x in tensors.items() if name.endswith(f"/{field}")}
    return sorted(((field_of(name)[0], x) for name, x in own.items()), key=lambda pair: pair[0])


@dataclass(frozen=True)
class NoSettings:
    """The settings of a diagnostic that has no thresholds."""


class Diagnostic(ABC):
    """A mergeable statistic of heads or layers.

    A diagnostic is made from its `Settings`; `begin` gives it the model; inside `attached` it is
    shown calls or layers of a forward pass; it returns a `Finding`. It keeps two kinds of tensors,
    by name: `sums`, which `merge` adds, and `peaks`, of which `merge` takes the larger. A name is
    `site/field`.

    The usual diagnostic returns from `measure` one value per input, number and head. The base class
    keeps `n, Σm, Σm²` of each (without values that are not finite); the result has the mean and its
    95 % interval over inputs.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    sees: ClassVar[Literal["calls", "layers", "weights", "probe"]]
    """What the diagnostic is shown.

    Calls or layers of the study's inputs, calls of inputs of its own, or only the weights.
    """
    level: ClassVar[Literal["head", "layer"]]
    numbers: ClassVar[Mapping[str, str]]
    """Its numbers by name, each described in words; maps and curves show the first by default."""
    Settings: ClassVar[type] = NoSettings

    def __init__(self, **settings: Any) -> None:
        known = list(getattr(self.Settings, "__dataclass_fields__", {}))
        for name in settings:
            if name not in known:
                has = f"its settings are {', '.join(known)}" if known else "it has no settings"
                raise EigenlensError(f"the diagnostic {self.name} has no setting {name!r}; {has}")
        check_values(self.Settings, settings)
        self.settings = self.Settings(**settings)
        self.sums: dict[str, Tensor] = {}
        self.peaks: dict[str, Tensor] = {}

    def begin(self, studied: StudiedModel) -> str:
        """Get ready for a model, and measure what depends on its weights alone.

        Returns why the diagnostic does not apply, or "".
        """
        return ""

    @contextmanager
    def attached(self, studied: StudiedModel) -> Iterator[None]:
        """A context around each forward pass, in which to hook modules of the model."""
        yield

    def batches(self, model: Model) -> Sequence[Mapping[str, Tensor]]:
        """Return the inputs of a diagnostic that brings its own, ready for the model."""
        raise EigenlensError(f"the diagnostic {self.name} has no inputs of its own")

    def measure(self, seen: Any) -> Tensor | None:
        """Return values (B, numbers, H) of one call or layer (H = 1 for a layer).

        NaN where there is no value; None to skip the call.
        """
        raise EigenlensError(f"the diagnostic {self.name} measures nothing in a forward pass")

    @torch.no_grad()
    def update(self, seen: CallView | LayerView) -> None:
        """Measure one call or layer and add it to the sums."""
        values = self.measure(seen)
        if values is not None:
            self.count(seen.site, values)

    def count(self, site: Site, values: Tensor) -> None:
        """Add values (B, numbers, H) of some inputs to the sums."""
        values = values.double()
        there = values.isfinite()
        values = torch.where(there, values, 0.0)
        # (numbers, H, 3)
        self.add(
            f"{site}/values", torch.stack([there.double(), values, values.square()], -1).sum(0)
        )

    def add(self, name: str, x: Tensor) -> None:
        """Add a value to a sum."""
        x = x.detach().double().cpu()
        if name in self.sums:
            same_shape(name, tuple(self.sums[name].shape), tuple(x.shape))
            x = self.sums[name] + x
        self.sums[name] = x.contiguous()

    def peak(self, name: str, x: Tensor) -> None:
        """Keep the larger of a value and what was kept."""
        x = x.detach().double().cpu()
        if name in self.peaks:
            same_shape(name, tuple(self.peaks[name].shape), tuple(x.shape))
            x = torch.maximum(self.peaks[name], x)
        self.peaks[name] = x.contiguous()

    def fresh(self) -> Self:
        """Return a copy for the same model that has seen nothing."""
        made = copy.copy(self)
        made.sums, made.peaks = {}, {}
        return made

    def merge(self, other: Self) -> None:
        """Add what `other` has seen; `other` does not change."""
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
        """Return what was found.

        `note` says why the diagnostic does not apply; `tokens` are the texts of token ids, if
        known.
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
        """Yield every number of every head or layer, in the order of the layers.

        By default the means of what `measure` returned.
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
        """Return further tables by title, such as which tokens or which channels."""
        return {}

    def token_ids(self) -> list[int]:
        """Return the ids of the tokens that `tables` names, so that their texts can be kept."""
        return []

    @abstractmethod
    def sentence(self, finding: Finding) -> str:
        """Say what was found in one plain sentence with its numbers."""

    @classmethod
    def chart(cls, finding: Finding) -> Any:
        """Draw the finding (an altair chart).

        By default a map of layers × heads of the first number, or curves along the layers.
        """
        from .pictures import head_map, layer_curves

        return head_map(finding) if cls.level == "head" else layer_curves(finding)

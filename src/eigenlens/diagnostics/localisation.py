"""How near the heads look: where their attention goes by distance (arXiv 2402.02098).

    distance = Σ_ij A_ij d_ij / Σ_ij A_ij,   ρ = P(A_ij > 1/n_i) near and far,   d_ij = |i − j|

n_i is the number of keys that query i sees: 1/n_i is what uniform attention gives each. The
distance of two tokens of a text is that of their places; the distance of two patches of a picture
is that in their grid, rounded to whole patches.

The paper's profile ρ_t = P(A_{T,t} > 1/T), of the last query over all distances, is not computed:
here ρ is given for two classes of distance, over all queries. Over all distances only the attention
itself is kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..display import percent
from ..errors import EigenlensError
from .diagnostic import CallView, Diagnostic, LayerView, field_by_site
from .finding import Finding, Number
from .studied_model import StudiedModel

FARTHEST = 2**31
"""A distance that no two tokens reach."""
_PAIRS = 2**24  # pairs of queries and keys that are copied at once


@dataclass(frozen=True)
class NearSettings:
    """`near`: pairs up to this distance are near, all others far."""

    near: int = 2

    def __post_init__(self) -> None:
        if not 0 <= self.near < FARTHEST:
            raise EigenlensError(
                f"near must be a distance from 0 to below {FARTHEST}, not {self.near}"
            )


@dataclass(frozen=True)
class Grid:
    """`rows` × `columns` tokens with a place, after `before` tokens that have none.

    A text is one row.
    """

    rows: int
    columns: int
    before: int = 0

    def pairs_within(self, limit: int) -> Tensor:
        """The pairs up to a rounded distance, as indices into n · n with n = rows · columns."""
        place = torch.arange(self.rows * self.columns)
        row, column = place // self.columns, place % self.columns
        distance = torch.hypot(
            (row[:, None] - row).double(), (column[:, None] - column).double()
        ).round()
        return (distance <= limit).flatten().nonzero()[:, 0]

    def by_distance(self, A: Tensor) -> Tensor:
        """Sum A (…, n, n) by rounded distance, (…, bins) float64.

        First by gap in columns, then by gap in rows.
        """
        # (…, r, c, r′, c′)
        A = A.unflatten(-1, (self.rows, self.columns)).unflatten(-3, (self.rows, self.columns))
        across = _by_gap(A.transpose(-3, -2))  # (…, r, r′, gaps)
        both = _by_gap(across.movedim(-1, -3)).double()  # (…, gaps in columns, gaps in rows)
        row, column = (
            torch.arange(self.rows, device=A.device),
            torch.arange(self.columns, device=A.device),
        )
        bins = torch.hypot(column[:, None].double(), row.double()).round().long()
        number = round(math.hypot(self.rows - 1, self.columns - 1)) + 1
        return both.new_zeros(*both.shape[:-2], number).index_add_(
            -1, bins.flatten(), both.flatten(-2)
        )


def _by_gap(A: Tensor) -> Tensor:
    """Sum (…, n, n) by |j − i|, (…, n).

    Memory of rows of length n, read in rows of n + 1, has the diagonal j − i = k ≥ 0 in column k
    and j − i = −k < 0 in column n + 1 − k. The upper triangle alone tells the two apart.
    """
    n = A.shape[-1]
    upper, whole = (_in_rows_of(n + 1, x.flatten(-2)) for x in (A.triu(), A))  # (…, n + 1)
    lower = (whole - upper)[..., 2:].flip(-1).clamp_min(0)  # k = 1 … n − 1
    return torch.cat([upper[..., :1], upper[..., 1:n] + lower], -1)


def _in_rows_of(width: int, flat: Tensor) -> Tensor:
    """Return the column sums, (…, width), of memory (…, (width − 1)²).

    It sums all whole rows, and adds the one number that is left over.
    """
    sums = flat[..., :-1].unflatten(-1, (width - 2, width)).sum(-2)
    sums[..., 0] += flat[..., -1]
    return sums


@lru_cache(maxsize=4)
def _near_pairs(grid: Grid, near: int) -> Tensor:
    return grid.pairs_within(near)


class Localisation(Diagnostic):
    """How far heads look: the mean distance, and the profile over distances.

    It measures the mean attended distance, the entropy of the mean profile over distances, and how
    often near and far pairs get more than 1/n.

    Distance and entropy are divided by those of uniform attention under the same mask. Only
    self-attention is measured. Padding does not count, neither as query nor as key. In pictures the
    tokens before the patches have no place: pairs with them are left out.

    It also keeps, for each head, the attention by distance, and that of uniform attention, (2, H,
    bins). Cost: a few passes over the patterns, more for patches, whose pairs are first put in
    order of rows.
    """

    name = "localisation"
    title = "Localisation"
    sees = "calls"
    level = "head"
    numbers: ClassVar[Mapping[str, str]] = {
        "relative": "mean attended distance, relative to uniform attention (= 1)",
        "distance": "mean attended distance, in tokens or patches",
        "entropy": (
            "entropy of the mean profile over distances, relative to uniform attention (= 1)"
        ),
        "near": "share of near pairs that get more attention than uniform attention gives",
        "far": "share of far pairs that get more attention than uniform attention gives",
    }
    Settings = NearSettings

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._vision, self._patches = False, (0, 0)

    def begin(self, studied: StudiedModel) -> str:
        self._vision = studied.model.kind == "vision"
        return (
            ""
            if any(site.kind == "self" for site in studied.sites.values())
            else "the model has no self-attention"
        )

    @contextmanager
    def attached(self, studied: StudiedModel) -> Iterator[None]:
        """Read the grid of patches from the model's inputs: pictures may have any size."""
        config = studied.model.config
        side = getattr(getattr(config, "vision_config", config), "patch_size", None)
        if not isinstance(side, int):
            yield
            return

        def look(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            given = next(
                (x for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.ndim == 4),
                None,
            )
            self._patches = (
                (0, 0) if given is None else (given.shape[2] // side, given.shape[3] // side)
            )

        hook = studied.module.register_forward_pre_hook(look, with_kwargs=True)
        try:
            yield
        finally:
            hook.remove()
            self._patches = (0, 0)

    def _grid(self, stack: str, tokens: int) -> Grid | None:
        """Return the grid for so many tokens; None if they are not a whole picture's patches."""
        # CLIP has a stack for texts and one for pictures
        if not self._vision and "vision" not in stack:
            return Grid(1, tokens)
        rows, columns = self._patches if any(self._patches) else (math.isqrt(tokens),) * 2
        return (
            Grid(rows, columns, tokens - rows * columns) if 0 < rows * columns <= tokens else None
        )

    def measure(self, seen: CallView) -> Tensor | None:
        found = self._look(seen)
        return None if found is None else found[0]

    @torch.no_grad()
    def update(self, seen: CallView | LayerView) -> None:
        assert isinstance(seen, CallView)
        if (found := self._look(seen)) is not None:
            self.count(seen.site, found[0])
            self.add(f"{seen.site}/profile", found[1])

    def _look(self, seen: CallView) -> tuple[Tensor, Tensor] | None:
        """Return values (B, numbers, H) except entropy, and profiles (2, H, bins) over inputs."""
        _, H, T, S = seen.pattern.shape
        grid = self._grid(seen.call.site.stack, T) if seen.call.kind == "self" and T == S else None
        if grid is None:
            return None
        A = seen.pattern[..., grid.before :, grid.before :]  # (B, H, n, n)
        allowed = seen.allowed[..., grid.before :, :]
        # (b, h, n, 1): 1/n_i, infinite of padding
        level = 1 / allowed.sum(3, keepdim=True).to(A.dtype)
        allowed = allowed[..., grid.before :]
        uniform = grid.by_distance(allowed * level.nan_to_num(posinf=0.0))  # (b, h, bins)
        pairs = self._near_and_all(grid, allowed.to(A.dtype))  # (b, h, 2)
        weights, aboves = [], []
        for b in range(0, len(A), size := max(1, _PAIRS // max(A[0].numel(), 1))):
            some = A[b : b + size]
            weights.append(grid.by_distance(some))
            over = some > (level if len(level) == 1 else level[b : b + size])
            aboves.append(self._near_and_all(grid, over.to(A.dtype)))
        weight, above = torch.cat(weights), torch.cat(aboves)  # (B, H, bins), (B, H, 2)
        at = torch.arange(weight.shape[-1], dtype=weight.dtype, device=weight.device)
        # nan of an input without tokens
        expected = (uniform @ at / uniform.sum(-1)).expand(weight.shape[:2])
        distance = weight @ at / weight.sum(-1)
        near = above[..., 0] / pairs[..., 0]  # nan where there are no such pairs
        far = (above[..., 1] - above[..., 0]) / (pairs[..., 1] - pairs[..., 0])
        none = torch.full_like(distance, torch.nan)
        values = torch.stack([distance / expected, distance, none, near.double(), far.double()], 1)
        # one token has no other to look at
        values = values.masked_fill(~(expected > 0)[:, None], torch.nan)
        choice = (expected > 0)[..., None]  # such inputs are not in the profiles either
        profile = torch.stack([(x * choice).sum(0) for x in (weight, uniform.expand_as(weight))])
        return values, profile.expand(2, H, -1)

    def _near_and_all(self, grid: Grid, chosen: Tensor) -> Tensor:
        """Return how many of the near pairs, and of all pairs, are chosen, (…, n, n) → (…, 2)."""
        flat = chosen.flatten(-2)
        return torch.stack(
            [
                flat[..., _near_pairs(grid, self.settings.near).to(flat.device)].sum(-1),
                flat.sum(-1),
            ],
            -1,
        )

    def add(self, name: str, x: Tensor) -> None:
        """Pad the shorter profile with zeros: longer inputs have longer distances."""
        known = self.sums.get(name)
        if known is not None and name.endswith("/profile"):
            bins = max(known.shape[-1], x.shape[-1])
            self.sums[name], x = (F.pad(y, (0, bins - y.shape[-1])) for y in (known, x))
        super().add(name, x)

    def found(self) -> Iterator[Number]:
        yield from super().found()
        for site, profile in field_by_site(self.sums, "profile"):
            inputs = self.sums[f"{site}/values"][0, :, 0].tolist()  # of each head
            for head, (weight, uniform) in enumerate(profile.unbind(1)):
                if weight.sum() > 0 and (most := float(_entropy(uniform))) > 0:
                    entropy = float(_entropy(weight)) / most
                    yield Number(
                        site.stack, site.layer, head, "entropy", entropy, number=int(inputs[head])
                    )

    def sentence(self, finding: Finding) -> str:
        relative, labels = finding.values("relative"), finding.labels
        if not relative:
            return "No input has two tokens that a head could choose between."
        near = min(relative, key=lambda at: relative[at])
        far = max(relative, key=lambda at: relative[at])
        mean = sum(relative.values()) / len(relative)
        half = sum(value < 0.5 for value in relative.values())
        if len(relative) == 1:
            return (
                f"The only head, {labels(near)}, looks {percent(mean)} as far away as uniform"
                " attention would."
            )
        return (
            f"On average a head looks {percent(mean)} as far away as uniform attention would."
            f" In {half} of {len(relative)} heads it is less than half as far;"
            f" {labels(near)} looks least far ({percent(relative[near])}),"
            f" {labels(far)} farthest ({percent(relative[far])})."
        )


def _entropy(weight: Tensor) -> Tensor:
    """Return the entropy of weights (bins,) as a distribution, in nats."""
    return torch.special.entr(weight / weight.sum()).sum()

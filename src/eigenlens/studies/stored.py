"""The findings of a study as tensors of its files, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..captures import Site, SiteInfo
from ..captures.sites import field_of
from ..run.schema import LAYER, check_schema
from ..spectra.bases import Scope
from ..spectra.centring import CENTRINGS
from ..spectra.spectrum import Spectrum
from ..spectra.valid_rows import ValidRows
from ..stats import Pairs
from ..stats.depth import SHAPES
from ..stats.queries_keys import VECTOR_SHAPES
from ..stats.rows import shapes_of
from ..stats.shapes import FLOATS, check_tensors
from ..stats.statistic import by_site
from ..stats.within import SHARES, WITHIN_SHAPES, kind_of
from .options import KEPT_VECTORS

if TYPE_CHECKING:
    from .recorder import Recording  # only its type: a study opens without what runs one

Sites = Mapping[Site, SiteInfo]


def spectra_tensors(spectra: list[Spectrum]) -> dict[str, Tensor]:
    """Spectra as tensors by analysis, level, centring and scope, one per layer for all heads."""
    grouped: dict[str, list[Spectrum]] = {}
    for s in spectra:
        layer = "" if s.layer is None else s.layer
        grouped.setdefault(f"{s.analysis}|{s.level}|{s.centring}|{s.stack}|{layer}", []).append(s)
    tensors: dict[str, Tensor] = {}
    for name, members in grouped.items():
        for part in ("eigenvalues", "held_out", "low", "high"):
            tensors[f"{name}|{part}"] = torch.from_numpy(
                np.stack([getattr(s, part) for s in members])
            )
        numbers = [[s.samples, s.dimensions, s.total, s.lower_bound] for s in members]
        tensors[f"{name}|numbers"] = torch.tensor(numbers, dtype=torch.float64)
        valid = [s.valid_rows for s in members if s.valid_rows is not None]
        if valid:
            tensors[f"{name}|valid_rows"] = torch.from_numpy(
                np.stack([np.stack([v.eigenvalues, v.held_out]) for v in valid])
            )
            tensors[f"{name}|valid_numbers"] = torch.tensor(
                [[v.total, v.clipped] for v in valid], dtype=torch.float64
            )
    return tensors


def read_spectra(tensors: dict[str, Tensor], sites: Sites) -> list[Spectrum]:
    """Spectra from tensors; a `ValueError` if the tensors do not fit these sites."""
    spectra = []
    stacks = {site.stack for site in sites}
    for name in [name for name in tensors if name.endswith("|numbers")]:
        prefix = name.removesuffix("|numbers")
        analysis, level, centring, stack, layer = prefix.split("|")
        if (
            analysis not in ("rows", "matrices")
            or level not in ("head", "layer", "stack")
            or centring not in CENTRINGS
        ):
            raise ValueError(f"there are no spectra {prefix[:80]!r}")
        site = None if level == "stack" else Site.parse(f"{stack}/{layer}")
        if (layer or stack not in stacks) if site is None else site not in sites:
            raise ValueError(f"the study has no {level} {stack}/{layer}"[:120])
        parts = {
            part: tensors[f"{prefix}|{part}"] for part in ("eigenvalues", "held_out", "low", "high")
        }
        numbers = tensors[name]
        check_tensors(
            prefix,
            {"numbers": numbers, "eigenvalues": parts["eigenvalues"]},
            {"numbers": "H c", "eigenvalues": "H m"},
        )
        if any(
            part.shape != parts["eigenvalues"].shape or part.dtype not in FLOATS
            for part in parts.values()
        ):
            raise ValueError(f"the curves of {prefix} are not of one length")
        if (
            not parts["eigenvalues"].numel()
            or float(numbers.min()) < 0
            or any(bool(part.isinf().any()) for part in parts.values())
        ):
            raise ValueError(f"{prefix} has no spectrum")
        if numbers.shape[1] not in (3, 4):  # earlier studies kept no lower bounds
            raise ValueError(f"{prefix} has {numbers.shape[1]} numbers besides its spectrum")
        heads = sites[site].heads if site is not None and level == "head" else 1
        if len(numbers) != heads:
            raise ValueError(f"{prefix} has {len(numbers)} heads and not {heads}")
        valid = _read_valid_rows(tensors, prefix, len(numbers))
        for head, (samples, dimensions, total, *bound) in enumerate(numbers.tolist()):
            curves = {part: x[head].numpy() for part, x in parts.items()}
            spectra.append(
                Spectrum(
                    analysis=analysis,  # type: ignore[arg-type]
                    level=level,  # type: ignore[arg-type]
                    centring=centring,
                    stack=stack,
                    layer=int(layer) if layer else None,
                    head=head if level == "head" else None,
                    samples=int(samples),
                    dimensions=int(dimensions),
                    total=total,
                    lower_bound=bound == [1.0],
                    valid_rows=valid[head],
                    **curves,
                )
            )
    order = {"rows": 0, "matrices": 1}
    return sorted(
        spectra,
        key=lambda s: (order[s.analysis], s.stack, -1 if s.layer is None else s.layer, s.head or 0),
    )


def _read_valid_rows(
    tensors: dict[str, Tensor], prefix: str, heads: int
) -> list[ValidRows] | list[None]:
    """The spectra over valid rows of every head.

    None if nothing is masked, or if an older version made the study.
    """
    names = {name: f"{prefix}|{name}" for name in ("valid_rows", "valid_numbers")}
    if not any(name in tensors for name in names.values()):
        return [None] * heads
    found = {part: tensors[name] for part, name in names.items()}
    if any(x.dtype not in FLOATS for x in found.values()):
        raise ValueError(f"the spectrum of {prefix} over valid rows has no numbers")
    # no group was held out
    known = {**found, "valid_rows": found["valid_rows"].nan_to_num(0.0, torch.inf, -torch.inf)}
    sizes = check_tensors(prefix, known, {"valid_rows": "H 2 m", "valid_numbers": "H 2"})
    if sizes["H"] != heads or not sizes["m"] or min(float(x.min()) for x in known.values()) < 0:
        raise ValueError(f"{prefix} has no spectrum over valid rows")
    return [
        ValidRows(total, clipped, curves[0].numpy(), curves[1].numpy())
        for (total, clipped), curves in zip(found["valid_numbers"].tolist(), found["valid_rows"])
    ]


def matrix_tensors(recording: Recording) -> dict[str, Tensor]:
    """Leading eigenvectors, mean and variance of every valid pair, with the mask."""
    analysis = recording.matrices
    tensors: dict[str, Tensor] = {}
    assert analysis is not None
    for site, sums in recording.fit["matrices"].result().items():
        if site not in analysis.pairs:
            continue
        bases = analysis.bases[Scope.of(site, "head")]
        vectors = [basis.vectors("centred", KEPT_VECTORS) for basis in bases]
        mean = sums.first / sums.number
        tensors |= {
            f"{site}/valid": sums.valid,
            f"{site}/vectors": torch.stack(vectors),
            f"{site}/mean": mean.float(),
            f"{site}/variance": (sums.squares / sums.number - mean.square()).clamp_min(0).float(),
        }
    return tensors


def halves(tensors: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    parts: dict[str, dict[str, Tensor]] = {"fit": {}, "held": {}}
    for name, tensor in tensors.items():
        part, _, rest = name.partition(":")
        parts[part][rest] = tensor
    return parts


def check_rows(state: dict[str, Tensor], sites: Sites) -> None:
    """Raise a `ValueError` if the sums of rows do not fit these sites."""
    for site, parts in by_site(state).items():
        sizes = check_tensors(str(site), parts, shapes_of(parts))
        if (sizes["H"], sizes["S"]) != (sites[site].heads, sites[site].keys):
            raise ValueError(f"the rows of {site} have the sizes {sizes}, which do not fit")


def check_moments(state: dict[str, Tensor], sites: Sites) -> None:
    """Raise a `ValueError` if the sums of queries and keys do not fit these sites."""
    names = {"H": "heads", "G": "kv_heads", "T": "queries", "S": "keys", "D": "head_dimension"}
    for site, parts in by_site(state).items():
        sizes = check_tensors(str(site), parts, VECTOR_SHAPES)
        if sizes != {letter: getattr(sites[site], name) for letter, name in names.items()}:
            raise ValueError(
                f"the queries and keys of {site} have the sizes {sizes}, which do not fit"
            )


def check_within(state: dict[str, Tensor], sites: Sites) -> None:
    """Raise a `ValueError` if the spectra within one input do not fit these sites."""
    for site, parts in by_site(state).items():
        for kind in dict.fromkeys(name.rpartition("|")[0] for name in parts):
            kind_of(kind)
            found = {name: parts[f"{kind}|{name}"] for name in WITHIN_SHAPES}
            sizes = check_tensors(f"{site}/{kind}"[:120], found, WITHIN_SHAPES)
            if sizes["H"] != sites[site].heads or sizes["q"] != len(SHARES):
                raise ValueError(f"{site}/{kind[:80]} has the sizes {sizes}, which do not fit")
            if sizes["c"] != sizes["m"] + 1 or float(found["number"]) < 1:
                raise ValueError(f"{site}/{kind[:80]} counts no input")


def check_depth(state: dict[str, Tensor]) -> None:
    """Raise a `ValueError` if these are no metrics along depth."""
    for name, x in state.items():
        site, point = field_of(name)
        check_schema(site.layer, LAYER, f"the layer of {name[:80]}")
        check_tensors(str(site), {point: x}, {point: SHAPES[point]})
        if float(x[..., 0].min()) < 0:
            raise ValueError(f"{name} counts a negative number of inputs")


def read_matrices(tensors: dict[str, Tensor], sites: Sites) -> dict[Site, dict[str, Tensor]]:
    """The matrices by site: `vectors (H, k, T, S)`, `mean` and `variance` `(H, T, S)`.

    A `ValueError` if they do not fit the sites.
    """
    found = by_site(tensors)
    for site, parts in found.items():
        size = check_tensors(
            str(site), parts, {"valid": "T S", "vectors": "H k N", "mean": "H N", "variance": "H N"}
        )
        known, pairs = sites[site], Pairs(parts.pop("valid"))
        if (size["H"], size["T"], size["S"], size["N"]) != (
            known.heads,
            known.queries,
            known.keys,
            pairs.number,
        ):
            raise ValueError(f"the matrices of {site} have the sizes {size}, which do not fit")
        for part, fill in (("vectors", 0.0), ("mean", torch.nan), ("variance", torch.nan)):
            parts[part] = pairs.matrices(parts[part].float(), fill=fill)
    return found

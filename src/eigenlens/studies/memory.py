"""How much memory a study will take, computed before it starts.

With U = 8·H·S² bytes, one float64 matrix over the keys of every head, all sites together, and
P = 4·H·N bytes, one float32 number of each of the N pairs of every head (twice that with
`float64`), a study holds at most

    sums of rows       R = U without a mask, 4 U with padding,
                       3 U under a mask that is the same in every input (causal)
    while it fits      c R, c = 1, 2, 3 for one shard, one group, more (`run.shards.most_states`)
    row bases          R + F + 3 U, F = 3 U of a mask that is the same in every input, else 0
    held-out inputs    R + 3 U + R + c R + F
    matrices           2 n P of n samples, or ℓ (2 + c) P of a sketch with ℓ columns;
                       then their bases, (2r + 2) P at rank r, beside n P or 2 ℓ P, and the columns
                       of all heads of a layer

and besides these the model, the moments of queries and keys, one batch with its scores, and what
the allocator keeps of freed memory. The greatest moment counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..captures import Site, SiteInfo
from ..data.inputs import Inputs
from ..data.split import FIT
from ..errors import EigenlensError
from ..models.load import Model
from ..run.shards import SHARDS_PER_GROUP, cut_at_documents, most_states
from ..shell import option
from ..spectra.factor import bounded_columns, exact_columns, kept_columns
from .options import KEPT_VECTORS, Options
from .workload import batch_of, mask_form

Sites = Mapping[Site, SiteInfo]
PROGRAM = 64_000_000
"""Libraries that a study loads later, and small things."""
PROCESS = 450_000_000
"""A process that has loaded the libraries and nothing else."""
CLUSTER = 350_000_000
"""Measured: what a process takes that starts workers, for the scheduler and data in transit."""
MAPPED = 32 * 2**20
"""Tensors of at least this size go back to the system when they are freed.

Smaller ones leave holes in the heap.
"""
HOLES = 0.75
"""Measured: what the heap keeps besides sums of smaller tensors, as a share of them."""

SPARE = 0.08
"""Measured: what is taken besides sums of larger tensors, as a share of them."""


@dataclass(frozen=True)
class Memory:
    """The bytes by name at the moment when a study holds the most, and that moment."""

    parts: Mapping[str, int]
    moment: str

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    @property
    def needed(self) -> int:
        """The bytes without the model, which is loaded by then."""
        return self.total - self.parts.get("model", 0)

    def sentence(self, free: int | None = None) -> str:
        """Such as `the study will take about 3.4 GB: rows 2.1, batch 1.2; 20.1 GB are free`."""
        named = sorted(self.parts.items(), key=lambda part: -part[1])
        shown = ", ".join(f"{name} {_gigabytes(size)}" for name, size in named if size >= 5e6)
        left = "" if free is None else f"; {_gigabytes(free)} GB are free"
        return (
            f"the study will take about {_gigabytes(self.total)}"
            f" GB{': ' if shown else ''}{shown}{left}"
        )

    def rows(self) -> list[dict[str, Any]]:
        return [{"part": name, "bytes": size} for name, size in self.parts.items()]

    def check(self, free: int, allowed: int | None = None) -> None:
        """Raise an error if the study needs more than `free` bytes, or more than `allowed`."""
        most = max(
            (name for name in self.parts if name != "model"), key=lambda name: self.parts[name]
        )
        if allowed is not None and self.total > allowed:
            raise EigenlensError(
                f"{self.sentence()}, more than the {_gigabytes(allowed)} GB that are allowed;"
                f" {_ADVICE[most]}"
            )
        if allowed is None and self.needed > free:
            raise EigenlensError(f"{self.sentence(free)}, which is not enough; {_ADVICE[most]}")


_SHORTER, _FEWER = option("max_length", None), option("only", None)
_ADVICE = {
    "rows": f"lower {_SHORTER}, or leave rows out with {_FEWER}",
    "moments": f"lower {_SHORTER}, or leave moments out with {_FEWER}",
    "matrices": (
        f"lower {option('matrix_memory', None)}, {option('rank', None)} or {_SHORTER}, or leave"
        f" matrices out with {_FEWER}"
    ),
    "batch": f"lower {option('batch_size', None)} or {_SHORTER}",
    "allocator": f"lower {_SHORTER}, or leave rows out with {_FEWER}",
    "inputs": f"lower {option('max_inputs', None)}",
    "program": "close other programs",
    "workers": f"lower {option('workers', None)} or {_SHORTER}",
    "scheduler": "close other programs",
}


def study_memory(
    model: Model,
    inputs: Inputs,
    sites: Sites,
    options: Options,
    matrix: str | None,
    workers: int = 0,
) -> Memory:
    """The memory that a study will take.

    `sites` are as probed, `options.only` is what is really recorded, and `matrix` says how matrix
    spectra are computed. Up to `workers` processes on this machine are counted, too.
    """
    size = options.inputs_per_shard(inputs.length)

    def folded(bucket: int) -> int:
        return most_states(len(cut_at_documents(inputs.documents[inputs.buckets == bucket], size)))

    fit, held = folded(FIT), max(folded(bucket) for bucket in inputs.groups[1:])
    item = 8 if options.float64 else 4
    weights = sum(
        p.numel() * p.element_size() for p in {*model.module.parameters(), *model.module.buffers()}
    )
    batch = batch_of(model.backbone, sites, options, inputs, matrix)
    rows, moments = Rows.of(sites, options), _moments(sites, options)
    matrices = Matrices.of(sites, options, matrix, inputs.number(FIT), item)
    analysed = rows.sums + rows.finished + rows.bases + rows.passing
    # the total, and what is being folded
    standing, all_held = matrices.kept + matrices.bases, 1 + held
    when = {
        "fit inputs run": (rows.sums * fit, moments * fit, matrices.fit(fit), batch.run),
        "bases are made": (analysed, moments, matrices.kept, 0),
        "matrix bases are made": (rows.sums + rows.bases, moments, standing + matrices.passing, 0),
        "held-out inputs run": (
            rows.sums * (1 + all_held) + rows.bases,
            moments * (1 + all_held),
            standing,
            batch.run,
        ),
        "a group is measured": (
            rows.sums * all_held + analysed,
            moments * (1 + all_held),
            standing,
            0,
        ),
        "the study is written": (rows.sums * 2, moments * 2, standing + matrices.written, 0),
    }
    found = []
    for moment, (of_rows, of_moments, of_matrices, of_batch) in when.items():
        parts = {
            "model": weights,
            "rows": of_rows,
            "moments": of_moments,
            "matrices": of_matrices,
            "batch": of_batch + batch.kept,
            "allocator": int((HOLES * rows.share_small + SPARE * (1 - rows.share_small)) * of_rows),
            "inputs": int(
                inputs.buckets.nbytes
                + inputs.documents.nbytes
                + 4 * len(inputs.buckets) * inputs.length
            ),
            "program": PROGRAM,
        }
        if workers:
            state = rows.sums + moments + matrices.state
            each = (
                PROCESS
                + weights
                + batch.run
                + batch.kept
                + matrices.sketch_tests
                + int((4 + SHARDS_PER_GROUP / workers) * state)
            )
            parts["workers"] = workers * each
            parts["scheduler"] = CLUSTER
            parts["batch"] -= of_batch
        found.append(Memory({name: part for name, part in parts.items() if part}, moment))
    return max(found, key=lambda memory: memory.total)


@dataclass(frozen=True)
class Rows:
    """The bytes of row moments and of their analysis.

    `passing` is what the largest site takes while it is analysed.
    """

    sums: int = 0
    finished: int = 0
    bases: int = 0
    passing: int = 0
    share_small: float = 0.0

    @classmethod
    def of(cls, sites: Sites, options: Options) -> Rows:
        if "rows" not in options.only:
            return cls()
        sums = finished = bases = passing = small = 0
        for site in sites.values():
            H, T, S, form = site.heads, site.queries, site.keys, mask_form(site, options)
            square = 8 * S * S
            if form == "full":
                own, more, wide = H * square + 8 * H * S, 0, 1
            elif form in {"causal", "fixed"}:
                own, more, wide = H * (square + 16 * T * S) + T * S, (3 * H + 1) * square, 5
            else:
                own, more, wide = (4 * H + 1) * square, 0, 5
            sums, finished = sums + own, finished + more
            bases += (3 * H + 3 + wide) * square  # of heads and of the layer, and the layer's sums
            passing = max(passing, (12 if more else 6) * H * square + 6 * square)
            small += own if H * square < MAPPED else 0
        widest = max(8 * site.keys**2 for site in sites.values())
        return cls(sums, finished, bases + 8 * widest, passing, small / sums)  # and the stack


@dataclass(frozen=True)
class Matrices:
    """The bytes of matrix spectra.

    `state` is what a shard adds, `sketch_tests` is Ω, `kept` is what the bases are made from.
    """

    state: int = 0
    sketch_tests: int = 0
    kept: int = 0
    bases: int = 0
    passing: int = 0
    written: int = 0

    @classmethod
    def of(
        cls, sites: Sites, options: Options, matrix: str | None, fit: int, item: int
    ) -> Matrices:
        if matrix is None:
            return cls()
        r, columns = options.rank, options.columns
        number = fit if matrix == "gram" else columns
        state = bases = written = passing = 0
        for site in sites.values():
            H, N = site.heads, site.pairs
            own = item * H * N * number + 16 * H * N  # samples or Y, and Σ x, Σ x² in float64
            state += own
            most = max(exact_columns(N), bounded_columns(r))
            # columns of factors
            of_head, of_layer = (
                kept_columns(N, r, number, H),
                kept_columns(N, r, number * H, len(sites)),
            )
            bases += (
                item * (2 * r + 2) * (H + 1) * N
                + 8 * of_layer * N
                + 24 * (2 * r + 2) ** 2 * (H + 1)
            )
            written += (4 * KEPT_VECTORS + 32) * H * N
            factors, pooled = 8 * of_head * H * N, 16 * (min(H * of_head, most) + H) * N
            passing = max(passing, factors + pooled + 32 * number * N)
        sketch_tests = state if matrix == "sketch" else 0
        # once more in holes of the heap
        return cls(state, sketch_tests, state + sketch_tests, bases, 2 * passing, written)

    def fit(self, held: int) -> int:
        """The bytes while samples are joined from their batches.

        Besides the copies of Y that the fold holds, these are Ω and what it was made from.
        """
        return self.sketch_tests * 2 + self.state * held if self.sketch_tests else self.state * 2

    def most(self, held: int) -> int:
        """The most bytes at any moment, if a fold holds this many copies of the sums."""
        return max(self.fit(held), self.kept + self.bases + max(self.passing, self.written))


def _moments(sites: Sites, options: Options) -> int:
    if "moments" not in options.only:
        return 0
    each = ((s.heads, s.queries, s.kv_heads, s.keys, s.head_dimension) for s in sites.values())
    return sum(8 * ((H + G) * D * (D + 1) + (H * T + G * S) * D + T + S) for H, T, G, S, D in each)


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:.2f}" if size < 1e9 else f"{size / 1e9:.1f}"

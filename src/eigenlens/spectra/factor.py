"""A low-rank form of the scatter of score matrices, from a sketch or from the samples."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..stats import MatrixSums, Pairs
from ..threads import one_thread

CHUNK = 4096
ROWS = 16
"""Samples, or columns of a sketch, whose row means are taken in float64 at once."""
COLUMNS, ELEMENTS = 1024, 2**24
"""The most columns, and numbers in them, of an exact Gram matrix of several factors."""


def exact_columns(pairs: int) -> int:
    """Return how many columns of all factors can be analysed together exactly, over N `pairs`."""
    return min(COLUMNS, ELEMENTS // pairs)


def kept_columns(pairs: int, rank: int, each: int, together: int) -> int:
    """Return how many columns a factor of `each` keeps.

    All, if the factor of all `together` can be exact, else the leading ones.
    """
    return max(rank, each) if each * together <= exact_columns(pairs) else rank


def bounded_columns(rank: int) -> int:
    """Return how many columns are analysed together if there is no room for all."""
    return max(4 * rank, COLUMNS // 4)


@dataclass
class Half:
    """Orthonormal `vectors` (r, N), float32, a vector a row, and descending `values` (r,)."""

    vectors: Tensor
    values: Tensor

    def leading(self, rank: int) -> Half:
        """Return the first `rank` of them, with zeros if there are fewer."""
        missing = max(rank - len(self.values), 0)
        return Half(
            pad(self.vectors[:rank], (0, 0, 0, missing)), pad(self.values[:rank], (0, missing))
        )


@dataclass
class Factor:
    """The leading part of `Σ (x−μ)(x−μ)ᵀ` over n samples `x ∈ R^N`.

    And of the same with row means removed by P.

    `exact`: the eigenvalues here are those of the scatter, else lower bounds; `complete`: none is
    missing.
    """

    centred: Half
    row_centred: Half
    mean: Tensor  # μ (N,) float64
    number: float  # n
    energy: float  # Σ ‖x‖²
    row_energy: float  # Σ ‖x − Px‖², the energy of the row means
    exact: bool
    complete: bool

    def leading(self, rank: int) -> Factor:
        """Return the factor with `rank` eigenvectors in both halves."""
        return replace(
            self,
            centred=self.centred.leading(rank),
            row_centred=self.row_centred.leading(rank),
            complete=False,
        )


def nystrom_factor(sums: MatrixSums, pairs: Pairs, most: int, head: int, omega: Tensor) -> Factor:
    """Return the factor of one head from `Yᵀ = Σ Ωᵀx xᵀ`, with Ωᵀ as `omega` (ℓ, N).

    Centring is exact in the sketch, `Y_c = Y − μ (Σx)ᵀ Ω`. With `M = Ωᵀ Y_c = V E Vᵀ` the Nyström
    form is `B Bᵀ`, `B = Y_c V E^{-1/2}`; directions of E below float32 noise are dropped. Cost:
    4·N·ℓ².
    """
    number, first = float(sums.number), sums.first[head]
    mean = first / number
    omega = omega.float()
    weights = omega @ first.float()  # Ωᵀ Σx: (ℓ,)
    y = torch.addr(sums.sketch[head].float(), weights, mean.float(), alpha=-1)  # Y_cᵀ (ℓ, N)
    core = (omega @ y.T).double()
    square = torch.zeros(len(weights), len(weights), dtype=torch.float64)
    # YᵀY has the squares of the eigenvalues: float64, without a copy of the whole
    for start in range(0, y.shape[1], CHUNK):
        part = y[:, start : start + CHUNK].double()
        square += part @ part.T
    inner, v = torch.linalg.eigh((core + core.T) / 2)
    kept = inner > inner[-1].clamp_min(1e-30) * len(inner) * torch.finfo(torch.float32).eps
    root = v[:, kept] / inner[kept].sqrt()  # V E^{-1/2}
    return _factor(y, root, square, mean, number, sums, head, pairs, most, exact=False)


def exact_factor(sums: MatrixSums, pairs: Pairs, most: int, head: int) -> Factor:
    """Return the factor of one head from its samples X (n, N), by their n×n Gram matrix.

    Cost: 2·n²·N.
    """
    samples = sums.sketch[head]
    number = float(len(samples))
    mean = sums.first[head] / number
    x = torch.sub(samples, mean)  # (n, N) float64
    return _factor(x, None, x @ x.T, mean, number, sums, head, pairs, most, exact=True)


def _factor(
    rows: Tensor,
    root: Tensor | None,
    gram: Tensor,
    mean: Tensor,
    number: float,
    sums: MatrixSums,
    head: int,
    pairs: Pairs,
    most: int,
    exact: bool,
) -> Factor:
    """Return the factor `B Bᵀ`, `B = rowsᵀ root`, from `rows` (m, N) and their `gram` (m, m).

    P takes the mean `r_i` from the `n_i` scores of query i. With R (m, T) the means of `rows`, the
    Gram matrix of rows without them is `gram − Σ_i n_i R_i R_iᵀ`: no product over N is needed, and
    in float64 nothing is lost.
    """
    means = torch.cat([pairs.row_means(some.double()) for some in rows.split(ROWS)])  # (m, T)
    less = gram - (means * pairs.row_counts) @ means.T
    (values, w), (less_values, u) = (_eigen(each, root, most) for each in (gram, less))
    vectors = torch.cat([w, u], 1).T.float() @ rows.float()  # of both at once: (r + r', N)
    vectors[len(values) :] = pairs.less_row_means(vectors[len(values) :])
    centred = Half(vectors[: len(values)], values)
    row_centred = Half(vectors[len(values) :], less_values)
    energy, row_energy = float(sums.squares[head].sum()), float(sums.row_energy[head])
    # n samples: rank n − 1
    complete = exact and len(gram) <= most + 1
    return Factor(centred, row_centred, mean, number, energy, row_energy, exact, complete)


def pool_factors(factors: list[Factor], pairs: Pairs, rank: int, most: int) -> Factor:
    """Return the scatter of several factors about their common mean μ, by one Gram matrix.

        Σ_h Z_h Λ_h Z_hᵀ  +  Σ_h n_h (μ_h − μ)(μ_h − μ)ᵀ

    It is exact if the factors are complete and have at most `exact_columns` in all; else only the
    leading columns are used, and the eigenvalues are lower bounds. At most `most` eigenvectors are
    computed. Cost: `2·N·m²` for m columns.

    Columns are kept as rows (m, N).
    """
    number = sum(f.number for f in factors)
    mean = torch.stack([f.mean * f.number for f in factors]).sum(0) / number
    apart = torch.stack([(f.mean - mean) * f.number**0.5 for f in factors]).float()  # (heads, N)
    total = sum(len(f.centred.values) for f in factors)
    exact = all(f.complete for f in factors) and total <= exact_columns(pairs.number)
    columns = torch.cat(
        [*_leading([f.centred for f in factors], total if exact else bounded_columns(rank)), apart]
    )
    centred = _leading_of(columns, most)
    if exact:
        less = pairs.less_row_means(columns)  # P Σ Pᵀ from the whole Σ
    else:
        own = _leading([f.row_centred for f in factors], bounded_columns(rank))
        less = torch.cat([*own, pairs.less_row_means(apart)])
    energies = sum(f.energy for f in factors), sum(f.row_energy for f in factors)
    return Factor(
        centred,
        _leading_of(less, most),
        mean,
        number,
        *energies,
        exact,
        exact and len(less) <= most,
    )


def _leading(halves: list[Half], number: int) -> list[Tensor]:
    """Return the columns `z √λ` of the largest λ among several halves: per half (·, N)."""
    values = torch.cat([half.values for half in halves]).sort(descending=True).values[:number]
    # heads whose scores are the same in every input have none
    least = values[-1] if len(values) else 0.0
    chosen = [int((half.values >= least).sum()) for half in halves]  # values fall
    return [h.vectors[:k] * h.values[:k, None].sqrt().float() for h, k in zip(halves, chosen)]


def _leading_of(columns: Tensor, most: int) -> Half:
    """Return the leading eigenvectors of `B Bᵀ` for B as `columns` (m, N)."""
    values, w = _eigen((columns @ columns.T).double(), None, most)
    return Half(w.T.float() @ columns, values)


def _eigen(gram: Tensor, root: Tensor | None, most: int) -> tuple[Tensor, Tensor]:
    """Return the leading λ of `B Bᵀ`, `B = rowsᵀ root`, and the coefficients of its eigenvectors.

    `gram` is `rows rowsᵀ` (m, m). The eigenvectors w of `BᵀB = rootᵀ gram root` give `B w / √λ`,
    which is `rowsᵀ` times the coefficients (m, r).
    """
    gram = gram if root is None else root.T @ gram @ root
    with one_thread():
        values, w = torch.linalg.eigh((gram + gram.T) / 2)
    values, w = values.flip(0)[:most], w.flip(1)[:, :most]
    real = values > values[:1].clamp_min(1e-30) * 1e-10
    w = w[:, real] / values[real].sqrt()
    return values[real], w if root is None else root @ w

"""Eigen-analysis of attention scores: spectra, dimensions, overlaps."""

from .centring import CENTRINGS, Centring
from .overlap import Eigenspaces, Overlap, overlap_matrix, principal_angles
from .rows import RowAnalysis, RowBasis, row_basis
from .spectrum import Spectra, Spectrum
from .valid_rows import ValidRows
from .within import Within, WithinSpectrum

__all__ = [
    "CENTRINGS",
    "Centring",
    "Eigenspaces",
    "Overlap",
    "RowAnalysis",
    "RowBasis",
    "Spectra",
    "Spectrum",
    "ValidRows",
    "Within",
    "WithinSpectrum",
    "overlap_matrix",
    "principal_angles",
    "row_basis",
]

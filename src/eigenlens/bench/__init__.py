"""Benches of attention mechanisms: time, quality, damage, spectra, and a choice per head."""

from .choice import Chosen, HeadChoice, assign, choose
from .entrants import load_file
from .result import Bench
from .run import SCALES, check_needs, run_bench

__all__ = [
    "SCALES",
    "Bench",
    "Chosen",
    "HeadChoice",
    "assign",
    "check_needs",
    "choose",
    "load_file",
    "run_bench",
]

"""Benches of attention mechanisms: time, quality, damage, spectra, and a choice per head."""

from .choice import Chosen, HeadChoice, assign, choose
from .entrants import load_file
from .make_bench import SCALES, check_needs, run_bench
from .result import Bench

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

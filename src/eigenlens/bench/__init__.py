"""Benches of attention mechanisms: time, quality, damage to trained models, spectra, and a choice
for every head.
"""

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

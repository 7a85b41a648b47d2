"""Benches of attention mechanisms: time, quality, damage to trained models, spectra, and a choice
for every head.
"""

from .choose import Chosen, HeadChoice, assign, choose
from .entrants import load_file
from .result import Bench
from .run import SCALES, bench, check_needs

__all__ = [
    "SCALES",
    "Bench",
    "Chosen",
    "HeadChoice",
    "assign",
    "bench",
    "check_needs",
    "choose",
    "load_file",
]

"""Attention mechanisms, each with a short dense reference and an equal fast form, by name."""

from . import (  # noqa: F401  each makes its mechanism known
    conv,
    delta,
    doubly_normalised,
    fastmax,
    feature_rank,
    gates,
    linear,
    linformer,
    nystrom,
    off_by_one,
    performer,
    softmax,
    spectral_gap_removal,
    uniform_keys,
    window,
)
from .attend_by_forms import planned_attention
from .call_terms import CallTerms
from .contract import Mechanism, Settings, Shape
from .head_forms import HeadForm, LayerForms
from .head_mix import HeadMix
from .registry import find, interface, make, mechanism, mechanisms, register, registered

__all__ = [
    "CallTerms",
    "HeadForm",
    "HeadMix",
    "LayerForms",
    "Mechanism",
    "Settings",
    "Shape",
    "find",
    "interface",
    "make",
    "mechanism",
    "mechanisms",
    "planned_attention",
    "register",
    "registered",
]

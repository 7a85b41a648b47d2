"""A small laboratory: one readable transformer, real text tasks, a training loop."""

from .model import Config, Transformer
from .tasks import MaskedBytes, split
from .train import Settings, Trained, evaluate, train

__all__ = ["Config", "MaskedBytes", "Settings", "Trained", "Transformer", "evaluate", "split", "train"]

"""A small laboratory: one readable transformer, tasks of real text and toys, a training loop."""

from ..switches import Switches
from .model import Config, Transformer
from .tasks import Batch, MaskedBytes, Task, split
from .toys import Circle, ConvexHull, Memorise, Sort, Toy, feed_back
from .train import Settings, Trained, evaluate, train

__all__ = [
    "Batch", "Circle", "Config", "ConvexHull", "MaskedBytes", "Memorise", "Settings", "Sort", "Switches", "Task", "Toy",
    "Trained", "Transformer", "evaluate", "feed_back", "split", "train",
]  # fmt: skip

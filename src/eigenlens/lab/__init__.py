"""A small laboratory: one readable transformer, tasks of real text and toys, a training loop."""

from ..anatomy.switches import Switches
from .composition import Composition
from .config import Config
from .digits import Digits
from .example import EXAMPLE
from .fusion import Fusion
from .model import Transformer
from .nearest import NearestNeighbour
from .run_file import TASKS, Run
from .tasks import MaskedBytes, NextBytes, NextTokens, Task, TaskBatch, documents, split
from .toys import Circle, ConvexHull, Memorise, Repeated, Sort, Toy, feed_back
from .training_loop import Settings, Trained, evaluate, penalty, train
from .training_run import TrainingRun, run

__all__ = [
    "EXAMPLE",
    "TASKS",
    "Circle",
    "Composition",
    "Config",
    "ConvexHull",
    "Digits",
    "Fusion",
    "MaskedBytes",
    "Memorise",
    "NearestNeighbour",
    "NextBytes",
    "NextTokens",
    "Repeated",
    "Run",
    "Settings",
    "Sort",
    "Switches",
    "Task",
    "TaskBatch",
    "Toy",
    "Trained",
    "TrainingRun",
    "Transformer",
    "documents",
    "evaluate",
    "feed_back",
    "open",
    "penalty",
    "run",
    "split",
    "train",
]

open = TrainingRun.open
"""The folder of a finished run, opened."""

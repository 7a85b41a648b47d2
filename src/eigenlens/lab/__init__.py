"""A small laboratory: one readable transformer, tasks of real text and toys, a training loop."""

from ..anatomy.switches import Switches
from .composition import Composition
from .config import Config
from .digits import Digits
from .example import EXAMPLE
from .fusion import Fusion
from .model import Transformer
from .nearest import NearestNeighbour
from .run_file import TASKS, RunFile
from .tasks import LearningTask, MaskedBytes, NextBytes, NextTokens, TaskBatch, documents, split
from .toys import Circle, ConvexHull, Memorise, Repeated, Sort, Toy, feed_back
from .training_loop import Trained, TrainingSettings, evaluate, penalty, train
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
    "LearningTask",
    "MaskedBytes",
    "Memorise",
    "NearestNeighbour",
    "NextBytes",
    "NextTokens",
    "Repeated",
    "RunFile",
    "Sort",
    "Switches",
    "TaskBatch",
    "Toy",
    "Trained",
    "TrainingRun",
    "TrainingSettings",
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

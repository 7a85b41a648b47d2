"""How low-dimensional is the attention of a transformer?"""

from .capture import AttentionCall, AttentionNotSeen, capture
from .errors import EigenlensError

__version__ = "0.1.0"
__all__ = ["AttentionCall", "AttentionNotSeen", "EigenlensError", "capture"]

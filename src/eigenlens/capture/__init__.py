"""One door to every attention call of a model."""

from .call import AttentionCall, MaskShape, Site
from .session import AttentionNotSeen, capture, replaced

__all__ = ["AttentionCall", "AttentionNotSeen", "MaskShape", "Site", "capture", "replaced"]

"""Which thread is running: a capture sees only the passes of the thread that opened it."""

from __future__ import annotations

import threading


class OwnThread:
    """Belongs to the thread that makes it, or to `any_thread`."""

    def __init__(self, any_thread: bool = False) -> None:
        self._thread = None if any_thread else threading.get_ident()

    @property
    def here(self) -> bool:
        """Whether it belongs to the running thread."""
        return self._thread is None or self._thread == threading.get_ident()

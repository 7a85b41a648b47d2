"""Standard output and error that nothing can stop: no reader that leaves, no half a character."""

from __future__ import annotations

import io
import os
import sys
from typing import Any, TextIO


class Pipe(io.FileIO):
    """A file that is written to as long as there is a reader.

    What comes after `| head` has had enough is dropped.
    """

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or 0
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return len(memoryview(data).cast("B"))


def written(stream: TextIO) -> TextIO:
    """A stream of the process that goes on without a reader.

    A name with half a character is shown, escaped.
    """
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    if stream not in (sys.__stdout__, sys.__stderr__):
        stream.reconfigure(errors="backslashreplace")
        return stream
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(Pipe(stream.fileno(), "wb", closefd=False)),
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )

"""What parts are made of, where the processes of a cluster can import it."""

import os

from eigenlens import EigenlensError
from eigenlens.run.progress import silent


def square(number, folder=None, progress=silent):
    progress("inside", 1, 1)
    if folder is not None:
        (folder / f"made-{number}").touch()
    return {"square": number * number, "process": os.getpid()}


def refuse(number):
    raise EigenlensError(f"{number} has no square")


def fail(number):
    raise ValueError(f"{number} is odd")


def absent(process):
    """Known to one process alone."""
    if os.getpid() != process:
        raise ModuleNotFoundError("No module named 'mine'")


class Unread:
    """Work that other processes lack the code of."""

    def __reduce__(self):
        return absent, (os.getpid(),)

    def __call__(self):
        raise AssertionError("it is never called")


def away(parts):
    return str(parts.checkpoint("training/1"))

"""What no input may do, watched while a case runs.

Write elsewhere, start programs, run code, take the machine's memory.
"""

import contextlib
import gc
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from eigenlens.run.memory import peak_resident_bytes

MOST_MEMORY = 1 << 30
"""Bytes by which one case may raise the peak of this process.

The world's folders take a few megabytes.
"""
MOST_SECONDS = 120
"""Seconds of computing after which a case counts as endless."""
WRITES = {
    "os.rename",
    "os.remove",
    "os.mkdir",
    "os.rmdir",
    "os.symlink",
    "os.link",
    "os.truncate",
    "os.chmod",
    "os.chown",
}
FORBIDDEN = {
    "pickle.find_class",
    "marshal.load",
    "marshal.loads",
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.spawn",
    "os.posix_spawn",
    "os.fork",
    "socket.connect",
    "socket.getaddrinfo",
    "urllib.Request",
    "ctypes.dlopen",
    "webbrowser.open",
}


class Broken(AssertionError):
    """A case did what no input may do."""


class _Watch:
    """State of the one hook.

    An audit hook stays for the life of a process, so it has to know when to look.
    """

    root: str | None = None
    found: str | None = None
    # that runs the case: the threads of a cluster that other tests keep running are none of its
    # business
    thread = 0


def _hook(event: str, args: tuple) -> None:
    if _Watch.root is None or _Watch.found is not None or threading.get_ident() != _Watch.thread:
        return
    if event in FORBIDDEN:
        if event.startswith("marshal") and sys._getframe(1).f_code.co_filename.startswith(
            "<frozen importlib"
        ):
            return  # a module of the package or its dependencies that loads when it is first used
        _Watch.found = f"{event} {str(args)[:200]}"
    elif event == "open" and isinstance(args[0], str | bytes | os.PathLike):
        flags = args[2] or 0
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND):
            _inside(event, args[0])
    elif event in WRITES:
        # what a link points to is not written
        for path in args[1:2] if event == "os.symlink" else args[:2]:
            if isinstance(path, str | bytes | os.PathLike):
                _inside(event, path, args[-1])
    elif event in ("exec", "compile"):
        name = args[0].co_filename if event == "exec" else args[1]
        if isinstance(name, str) and name.startswith(_Watch.root):
            _Watch.found = f"{event} of {name}"


def _inside(event: str, path: str | bytes | os.PathLike, folder: object = -1) -> None:
    base = (
        os.readlink(f"/proc/self/fd/{folder}")
        if isinstance(folder, int) and folder >= 0
        else os.getcwd()
    )
    whole = os.path.normpath(os.path.join(base, os.fsdecode(path)))
    cache = "__pycache__" in whole or whole == os.devnull
    if not cache and not whole.startswith(_Watch.root + os.sep) and whole != _Watch.root:
        _Watch.found = f"{event} of {whole}, outside of {_Watch.root}"


sys.addaudithook(_hook)


@contextlib.contextmanager
def watched(root: Path) -> Iterator[None]:
    """Raise `Broken` where the block writes outside of `root`, or runs foreign code.

    Or where it takes memory or time without end. What other tests left behind is not collected
    meanwhile: a study that is gone removes its temporary folder.
    """

    def endless(*_: object) -> None:
        raise Broken(f"a case took more than {MOST_SECONDS} seconds of computing")

    before, beside, temporary = (
        peak_resident_bytes(),
        set(os.listdir(root.parent)),
        tempfile.tempdir,
    )
    tempfile.tempdir = str(root)  # where programs put what they throw away
    earlier = signal.signal(signal.SIGVTALRM, endless)
    signal.setitimer(signal.ITIMER_VIRTUAL, MOST_SECONDS)
    collecting = gc.isenabled()
    gc.disable()
    _Watch.found, _Watch.thread, _Watch.root = None, threading.get_ident(), os.path.abspath(root)
    try:
        yield
    except MemoryError as error:
        raise Broken(f"a case ran out of memory: {error}") from error
    finally:
        _Watch.root, tempfile.tempdir = None, temporary
        if collecting:
            gc.enable()
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, earlier)
    if _Watch.found is not None:
        raise Broken(_Watch.found)
    if (grown := peak_resident_bytes() - before) > MOST_MEMORY:
        raise Broken(f"a case took {grown / 1e9:.1f} GB")
    if more := set(os.listdir(root.parent)) - beside:
        raise Broken(f"a case left {sorted(more)} beside its folder")

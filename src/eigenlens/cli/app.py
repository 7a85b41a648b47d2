"""The app that every command belongs to, the options they share, and how it ends."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import EigenlensError, EigenlensWarning
from ..threads import wait_without_spinning
from .options import Commands
from .streams import written

if TYPE_CHECKING:
    from ..run.engine import Engine
    from ..run.progress import Progress

app = typer.Typer(
    cls=Commands,
    help="How low-dimensional is the attention of a transformer?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
)

_given: dict[str, int | None] = {"threads": None}
"""Options before the command's name that a command asks for."""


def _version(wanted: bool) -> None:
    from .._version import __version__

    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def settings(
    threads: Annotated[
        int | None,
        typer.Option(
            min=1, help="CPU threads per process (default: all cores; 1 per Dask worker)."
        ),
    ] = None,
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_version, help="Print the version and end."
        ),
    ] = False,
) -> None:
    _given["threads"] = threads
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


def engine_of(name: str, workers: int | None, scheduler: str | None, on_failure: str) -> Engine:
    """The engine that was asked for."""
    from ..run.cluster import Dask
    from ..run.engine import Local, check_on_failure

    if name not in ("local", "dask"):
        raise EigenlensError(f"no engine {name!r}; there are local, dask")
    if name == "local":
        if workers is not None or scheduler is not None:
            raise EigenlensError("workers and schedulers are of the engine dask; add --engine dask")
        return Local(check_on_failure(on_failure))
    if workers is None and scheduler is None:
        raise EigenlensError(
            "the engine dask needs --workers N to start a cluster here, or --scheduler ADDRESS to"
            " join one"
        )
    if workers is not None and scheduler is not None:
        raise EigenlensError(
            "a cluster that is joined has its own workers; give --workers or --scheduler, not both"
        )
    return Dask(workers, scheduler, _given["threads"] or 1, check_on_failure(on_failure))


@contextlib.contextmanager
def resumable(where: str = "after the last finished part") -> Iterator[Progress]:
    """Progress of work that `--resume` goes on with; interrupted, the command says from where."""
    from ..run.progress import progress_bar

    try:
        with progress_bar() as progress:
            yield progress
    except KeyboardInterrupt:
        raise EigenlensError(
            f"interrupted; the same command with --resume goes on {where}"
        ) from None


def _describe(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    *rest: Any,
    **more: Any,
) -> None:
    """Our own warnings as one line, others as they are."""
    if issubclass(category, EigenlensWarning):
        print(f"eigenlens: {message}", file=sys.stderr)
    else:
        _SHOW(message, category, filename, lineno, *rest, **more)


class _Lines(logging.Handler):
    """What the library says, each as one line."""

    def emit(self, record: logging.LogRecord) -> None:
        print(record.getMessage(), file=sys.stderr)


_SHOW = warnings.showwarning
INTERRUPTED = 130
"""The exit code of a command that was interrupted."""
NEEDED = {
    "Input should be a valid integer, unable to parse string as an integer": "it takes a whole"
    " number",
    "Input should be a valid number, unable to parse string as a number": "it takes a number",
    "Input should be": "it must be",
}
"""What the parser says of a wrong value, and how a person would."""


def main() -> None:
    """Run a command; what the user can mend ends with one sentence and exit code 2."""
    wait_without_spinning()
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    warnings.showwarning = _describe
    sys.stdout, sys.stderr = written(sys.stdout), written(sys.stderr)
    log = logging.getLogger("eigenlens")
    log.setLevel(logging.INFO)
    log.handlers = [_Lines()]
    try:
        code = app(standalone_mode=False) or 0
    except EigenlensError as error:
        print(f"eigenlens: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Exception as error:
        if not hasattr(error, "format_message"):  # click has it, or typer's own copy of click
            raise
        _print_mistake(error)
        sys.exit(2)
    if code == INTERRUPTED:
        print("eigenlens: interrupted", file=sys.stderr)
    sys.exit(code)


def _print_mistake(error: Any) -> None:
    """A wrong command or option in one sentence; without any command, the help."""
    message = error.format_message()
    if not message or type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return
    for long, short in NEEDED.items():
        message = message.replace(long, short)
    command = error.ctx.command_path if getattr(error, "ctx", None) else "eigenlens"
    print(f"eigenlens: {message.rstrip('.')} (see: {command} --help)", file=sys.stderr)

"""The app that every command belongs to, the options they share, and how it ends."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from ..errors import EigenlensError

app = typer.Typer(
    help="How low-dimensional is the attention of a transformer?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
)

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]
Out = Annotated[Path, typer.Option("-o", "--out", help="The folder of the study.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite an existing study.")]
Device = Annotated[str, typer.Option(help="Where the model runs, such as cpu or cuda.")]
Inputs = Annotated[int, typer.Option("--inputs", min=3, help="How many inputs, fit and held out together.")]


def _version(wanted: bool) -> None:
    from .. import __version__

    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def settings(
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads (default: all cores).")] = None,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Print the version and end.")
    ] = False,
) -> None:
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


def main() -> None:
    """Run a command; what the user can mend ends with one sentence and exit code 2."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        app()
    except EigenlensError as error:
        print(f"eigenlens: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("eigenlens: interrupted", file=sys.stderr)
        sys.exit(130)

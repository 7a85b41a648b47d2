"""The command that shows: report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from .app import app
from .options import RESULT, Command, Json, Overwrite, example


@app.command(
    cls=Command, epilog=example("eigenlens report book-study book-plan --output book.html")
)
def report(
    results: Annotated[
        list[Path],
        typer.Argument(
            help=(
                "Folders of studies, plans, evaluations, collapse runs and explanations, or one"
                " that holds them."
            )
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "-o", "--output", metavar="FILE", help="The page to write.", rich_help_panel=RESULT
        ),
    ] = Path("report.html"),
    title: Annotated[
        str | None,
        typer.Option(
            help="The heading of the page (default: the names of the models).",
            rich_help_panel=RESULT,
        ),
    ] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Write results as one HTML page.

    The page is self-contained: it opens in any browser, without a network. A report that was
    written before is replaced; any other file only with --overwrite.
    """
    from ..reports import report as make
    from ..run.progress import progress_bar

    with progress_bar() as progress:
        page = make(*results, output=output, title=title, overwrite=overwrite, progress=progress)
    size = page.stat().st_size
    if as_json:
        print(json.dumps({"page": str(page), "bytes": size}))
        return
    print(f"The page is {page} ({size / 1e6:.1f} MB); open it in a browser.")

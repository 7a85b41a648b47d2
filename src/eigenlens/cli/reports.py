"""The command that shows: report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from .app import Json, app


@app.command()
def report(
    folders: Annotated[
        list[Path],
        typer.Argument(
            help=(
                "Folders of studies, plans, evaluations, collapse runs and explanations, or one"
                " that holds them."
            )
        ),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="The page to write.")] = Path(
        "report.html"
    ),
    title: Annotated[
        str | None, typer.Option(help="The heading of the page (default: the models).")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Overwrite a file that is no report.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write one self-contained HTML page that shows what was found; it opens in any browser,
    without a network.
    """
    from ..reports import report as make
    from ..run.progress import bar

    with bar() as progress:
        page = make(*folders, output=output, title=title, overwrite=overwrite, progress=progress)
    size = page.stat().st_size
    if as_json:
        print(json.dumps({"page": str(page), "bytes": size}))
        return
    print(f"The page is {page} ({size / 1e6:.1f} MB); open it in a browser.")

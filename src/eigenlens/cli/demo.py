"""The command `demo`: the default model from the first look to the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from . import terminal
from .app import app
from .options import Command, Json, Overwrite, example, folder_option, inputs_option
from .output_folder import choose_output_dir


@app.command(cls=Command, epilog=example("eigenlens demo -o first-look"))
def demo(
    output_dir: Annotated[Path | None, folder_option("demo", "A folder for all of it")] = None,
    max_inputs: Annotated[int, inputs_option(3, ", fit and held out together")] = 300,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Study, plan, evaluate and report the default model.

    Studies the default model on the default text, plans a quarter of the work of its scores,
    measures that plan, and shows it all on one page.
    """
    from ..collapses import collapse as ablate
    from ..plans import evaluate as measure
    from ..plans import plan as make
    from ..reports import report as write
    from ..run.charts import save_charts
    from ..run.progress import progress_bar
    from ..studies import study as look
    from ..studies.plots import draw

    output_dir = choose_output_dir(output_dir, "demo", ["report.html"], overwrite=overwrite)
    with progress_bar() as progress:
        made = look(
            "minilm",
            None,
            output_dir / "study",
            max_inputs=max_inputs,
            overwrite=overwrite,
            progress=progress,
        )
        planned = make(
            made,
            budget=0.25,
            output_dir=output_dir / "plan",
            overwrite=overwrite,
            progress=progress,
        )
        found = measure(
            "minilm",
            plan=planned,
            output_dir=output_dir / "evaluation",
            overwrite=overwrite,
            progress=progress,
        )
        run = ablate(
            "minilm",
            None,
            output_dir / "collapse",
            max_inputs=8,
            paths=4,
            overwrite=overwrite,
            progress=progress,
        )
        page = write(
            made, planned, found, run, output=output_dir / "report.html", progress=progress
        )
    pictures = [
        *draw(made, output_dir / "pictures"),
        *save_charts({"budgets": planned.plot()}, output_dir / "pictures"),
    ]
    if as_json:
        more = {
            "plan": planned.record(),
            "evaluation": found.record(),
            "collapse": run.record(),
            "report": str(page),
        }
        print(json.dumps({**made.record(), **more, "pictures": [str(path) for path in pictures]}))
        return
    for result in (made, planned, found, run):
        terminal.show(result)
        print()
    print(
        f"All of it is in {output_dir}, {len(pictures)} pictures are in {output_dir / 'pictures'}."
    )
    print(f"Look at the page: {page}")

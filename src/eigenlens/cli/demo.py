"""The command `demo`: the default model from the first look to the page."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import fill
from typing import Annotated, Any

from ..display import percent
from ..shell import command
from .app import app
from .options import Command, Json, Overwrite, example, folder_option, inputs_option
from .output_folder import choose_output_dir
from .terminal import WIDTH, print_table

MODEL = "minilm"
BUDGET = 0.25
LOSS = "1%"
LONG = 4096
"""Tokens of an input for which leaving keys out pays."""


@app.command(cls=Command, epilog=example("eigenlens demo -o first-look"))
def demo(
    output_dir: Annotated[Path | None, folder_option("demo", "A folder for all of it")] = None,
    max_inputs: Annotated[int, inputs_option(3, ", fit and held out together")] = 300,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Show what there is to find in the default model, with a page.

    Studies the default model on the default text, plans to compute its scores with a quarter of
    the work, measures what that loses and what it would take to be faster in seconds, finds out
    what keeps its tokens apart, and shows it all on one page.
    """
    from ..captures import labelled
    from ..collapses import collapse
    from ..diagnostics.roles import roles_sentence
    from ..plans import evaluate, plan
    from ..reports import report
    from ..run.charts import save_charts
    from ..run.progress import progress_bar
    from ..studies import study
    from ..studies.plots import draw
    from ..studies.tables import layer_rows

    output_dir = choose_output_dir(output_dir, "demo", ["report.html"], overwrite=overwrite)

    def tell(question: str, how: str, *answers: str) -> None:
        if as_json:
            return
        print(f"{question}\n  $ {how}")
        for answer in answers:
            print(fill(answer, WIDTH, initial_indent="  ", subsequent_indent="  "))
        print()

    names = ("study", "plan", "evaluation", "fast-plan", "collapse")
    folders = {name: output_dir / name for name in names}
    with progress_bar() as progress:
        shared: dict[str, Any] = {"overwrite": overwrite, "progress": progress}
        studied = study(MODEL, None, folders["study"], max_inputs=max_inputs, **shared)
        tell(
            f"1. How low-dimensional is the attention of {MODEL}?",
            command("study", MODEL, "--max-inputs", str(max_inputs), "-o", folders["study"]),
            studied.sentence,
        )
        if not as_json:
            title = f"Dimensions over inputs that each head needs for 90 % (of {studied.length})"
            print_table(title, labelled(layer_rows(studied)))
        tell(
            "2. What do its heads do?",
            command("show", folders["study"]),
            roles_sentence(studied.diagnostics),
            studied.diagnostics["sinks"].sentence,
        )
        planned = plan(studied, budget=BUDGET, output_dir=folders["plan"], **shared)
        found = evaluate(MODEL, plan=planned, output_dir=folders["evaluation"], **shared)
        tell(
            "3. How much of the attention scores can be left out?",
            command("plan", folders["study"], "--budget", str(BUDGET), "-o", folders["plan"])
            + f"\n  $ {command('evaluate', MODEL, '--plan', folders['plan'])}",
            planned.sentence,
            found.sentence,
        )
        fast = plan(studied, loss=LOSS, output_dir=folders["fast-plan"], **shared)
        tell(
            "4. And in seconds?",
            command("plan", folders["study"], "--loss", LOSS, "-o", folders["fast-plan"]),
            fast.sentence,
            _long_inputs(studied, progress),
        )
        run = collapse(MODEL, None, folders["collapse"], max_inputs=8, paths=4, **shared)
        tell(
            "5. What keeps its tokens from becoming alike?",
            command("collapse", MODEL, "--max-inputs", "8", "-o", folders["collapse"]),
            run.sentence,
        )
        page = report(
            studied, planned, found, run, output=output_dir / "report.html", progress=progress
        )
    pictures = [
        *draw(studied, output_dir / "pictures"),
        *save_charts({"budgets": planned.plot()}, output_dir / "pictures"),
    ]
    if as_json:
        more = {
            "plan": planned.record(),
            "evaluation": found.record(),
            "fast_plan": fast.record(),
            "collapse": run.record(),
            "report": str(page),
        }
        drawn = [str(path) for path in pictures]
        print(json.dumps({**studied.record(), **more, "pictures": drawn}))
        return
    tables = command("show", folders["study"])
    print(f"All tables: {tables}. {len(pictures)} pictures are in {output_dir / 'pictures'}.")
    print(f"Look at the page: {page}")


def _long_inputs(studied: Any, progress: Any) -> str:
    """What leaving keys out gains on this machine at a length where it pays, as measured."""
    from ..plans.calibration import USUAL, calibrate

    site = next(iter(studied.sites.values()))
    known = calibrate(site.head_dimension, longest=LONG, progress=progress)
    plain, planned = known.usual_head(site.mask == "causal", LONG)
    return (
        f"It pays for longer inputs: over {LONG:,} tokens, a head of this width takes"
        f" {1e3 * planned:.1f} ms instead of {1e3 * plain:.1f} ms on this machine with"
        f" {percent(USUAL)} of the keys, {plain / planned:.1f} times faster (choosing included)."
    )

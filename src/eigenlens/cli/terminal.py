"""What the commands print: tables and sentences."""

from __future__ import annotations

from typing import Any


def print_table(title: str, rows: list[dict[str, Any]]) -> None:
    """Print rows under a title; layers and heads by their labels, such as `L3H4`."""
    from rich.console import Console
    from rich.table import Table

    from ..captures import labelled

    rows = labelled(rows)
    table = Table(
        title=title, title_justify="left", title_style="bold", show_edge=False, pad_edge=False
    )
    for name in rows[0] if rows else []:
        table.add_column(
            name.replace("_", " "),
            justify=(
                "left"
                if isinstance(rows[0][name], str) and not rows[0][name][:1].isdigit()
                else "right"
            ),
        )
    for row in rows:
        table.add_row(*(_cell(value) for value in row.values()))
    console = Console()
    if not console.is_terminal:
        console = Console(width=200)
    console.print(table)
    console.print()


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if not isinstance(value, float):
        return str(value)
    return f"{value:.3f}" if value == 0 or 5e-4 <= abs(value) < 1e6 else f"{value:.1e}"


def print_study(made: Any) -> None:
    from ..diagnostics.roles import roles_sentence
    from ..spectra.sentences import ALL_ROWS, masked_rows
    from ..studies.tables import depth_rows, layer_rows, sentence, summary_rows

    # the spectra first: a damaged study shows nothing
    facts, kinds = made.facts, {s.analysis for s in made.spectra}
    where = (
        f"{facts['inputs']} inputs of {facts['length']} tokens, {facts['data']['inputs_held_out']}"
        " of them held out"
    )
    documents = f"{facts['data']['documents_held_out']} of {facts['data']['documents']} documents"
    print(f"{made.name}: {where} ({documents}), {facts['seconds']} s")
    for note in facts["notes"]:
        print(f"Note: {note}.")
    if kinds:
        print_table(
            "Dimensions that hold a share of the held-out variance, median of the heads",
            summary_rows(made),
        )
    if "rows" in kinds:
        masked = masked_rows(made.spectra)
        which = ", over all rows" if masked else ""
        print_table(
            f"Dimensions of each head's rows for 90 %, centred, held out{which}", layer_rows(made)
        )
        if masked:
            print_table("The same over valid rows only", layer_rows(made, valid=True))
            print(f"{ALL_ROWS[0].upper()}{ALL_ROWS[1:]}.\n")
    if "rows" in kinds and len({site["keys"] for site in made.sites.values()}) == 1:
        most = min(16, made.length - 1)
        found = [made.overlap(rank=r).summary() for r in sorted({min(4, most), most})]
        shown = [
            {key: value for key, value in row.items() if key not in {"left", "right", "best"}}
            for row in found
        ]
        print_table("Overlap of heads' row eigenspaces, centred", shown)
    if made.has("depth"):
        measured = max((number.number for number in made.depth.numbers), default=0)
        print_table(f"Tokens and patterns along depth, mean of {measured} inputs", depth_rows(made))
    if made.diagnostics.found:
        print_table(
            "Diagnostics, the first number of each, mean of a layer's heads",
            made.diagnostics.rows(),
        )
    for message in (roles_sentence(made.diagnostics), *made.diagnostics.sentences()):
        if message:
            print(f"- {message}")
    print(sentence(made))


def print_plan(made: Any) -> None:
    from ..plans.tables import choice_rows, curve_rows, sentence

    for note in made.facts.get("notes", []):
        print(f"Note: {note}.")
    if made.facts["curve"]:
        print_table("Every estimator at every budget, mean of the heads", curve_rows(made))
    print_table("What each head gets", choice_rows(made))
    print(sentence(made))


def print_collapse(made: Any) -> None:
    from ..stats.depth import ATTENTION_METRICS, TOKEN_METRICS

    facts = made.facts
    precision = ", float64" if facts["float64"] else ""
    print(f"{made.name}: {facts['inputs']} inputs of {facts['length']} tokens{precision}")
    for note in facts["notes"]:
        print(f"Note: {note}.")
    print_table(
        "How far the tokens are from one vector: relative residual behind each block",
        made.in_words(made.rows()),
    )
    without = made.rows(tokens="without sinks")
    if without:
        print_table("The same without the sink tokens", made.in_words(without))
    table = made.curves["full"].table_in_words(TOKEN_METRICS + ATTENTION_METRICS)
    print_table("The model itself: tokens and patterns along depth", table)
    if made.paths:
        keys = ("stack", "part", "attention_hops", "mlp_hops", "paths", "share", "size", "residual")
        title = f"The output by path length (the terms sum to it within {made.error:.0e})"
        print_table(title, [{key: row[key] for key in keys} for row in made.in_words(made.paths)])
        print_table(
            "Products of patterns along single random paths", made.in_words(made.single_paths)
        )
    if made.bounds:
        print_table(
            "Bounds, median of the heads (of every head in --json and in the folder)",
            made.bounds_by_layer(),
        )
    if made.depth_bounds:
        print_table(
            "Bounds of this attention without norms, skips and MLPs, composed over depth, base-ten"
            " logarithms",
            made.depth_bounds,
        )
    print(made.sentence)


def print_explanation(made: Any) -> None:
    """A line of coloured tokens for each method, or maps of patches; where there is no terminal the
    strongest tokens.
    """
    from rich.console import Console

    from ..explanations.lines import lines
    from ..explanations.verdict import named

    print(made.name)
    for note in made.notes:
        print(f"Note: {note}.")
    console = Console()
    if not console.is_terminal or console.no_color or console.color_system is None:
        for method in made.methods:
            strong = [
                f"{named(made, i)} {made.scores[method][i]:.3g}" for i in made.strongest(method, 5)
            ]
            print(f"{method}: {', '.join(strong) or 'no token above 0'}")
    elif made.grid is None:
        for line in lines(made):
            console.print(_coloured(line))
    else:
        console.print(_maps(lines(made), console.width))
    print()
    if made.deletion:
        print(
            "Tokens taken away: a good method has a low area when the most relevant go first"
            " (positive),"
        )
        print("and a high one when the least relevant do (negative).")
        print_table("", made.areas())
    print(made.sentence)


def _tone(level: int) -> str:
    """Red for, blue against, on white paper with black ink: so pale is weak on a dark terminal,
    too.
    """
    full = (240, 120, 96) if level > 0 else (110, 170, 235)
    r, g, b = (round(255 + (part - 255) * abs(level) / 10) for part in full)
    return f"rgb(0,0,0) on rgb({r},{g},{b})"


def _coloured(line: Any) -> Any:
    from rich.text import Text

    made = Text()
    made.append(f"{line.method}\n", "bold")
    for cell in line.cells:
        made.append(f" {cell.text} ", f"{_tone(cell.level)}{' bold' if cell.strong else ''}")
    return made


def _maps(made: list[Any], width: int) -> Any:
    """Maps beside each other; a character shows two patches, one above the other."""
    from rich.columns import Columns
    from rich.text import Text

    shown = []
    for line in made:
        text = Text(no_wrap=True)
        text.append(f"{line.method}\n", "bold")
        for upper in range(0, len(line.patches), 2):
            pair = line.patches[upper : upper + 2]
            for column in range(min(len(pair[0]), width)):
                above, below = (
                    _tone(row[column].level).rpartition(" on ")[2] for row in (pair[0], pair[-1])
                )
                text.append("▀", f"{above} on {below}")
            text.append("\n")
        shown.append(text)
    return Columns(shown, padding=(0, 3))


def print_claims(done: Any) -> None:
    print(done.title)
    for note in done.notes:
        print(f"Note: {note}.")
    rows = done.rows()
    print_table(
        "Claims",
        [{key: row[key] for key in ("claim", "published", "measured", "verdict")} for row in rows],
    )
    for number, row in enumerate(rows, 1):
        print(f"{number}. {row['note']}.")
    print()
    for title, name in done.shown:
        print_table(
            title,
            [
                {key: value for key, value in row.items() if key not in LEFT_OUT}
                for row in done.tables[name]
            ],
        )


LEFT_OUT = {"seeds", "kept_low", "kept_high", "training_gigaflops", "each"}
"""Columns that are in the record and would crowd a printed table."""

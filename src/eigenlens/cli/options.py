"""Options that several commands share, with units and defaults, and the groups they are in."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

DATA = "Data"
MEASURE = "Measurement"
MEMORY = "Memory"
RUNNING = "Where it runs"
RESULT = "Result"
GROUPS = (DATA, MEASURE, MEMORY, RUNNING, RESULT)
"""The order in which `--help` lists the groups of options."""

METAVARS = {"int": "N", "int range": "N", "float": "NUMBER", "str": "TEXT", "path": "DIR"}
"""What `--help` writes for the value of an option, by its type; a file says so itself."""
_TYPE = re.compile(r" <([^<>]+)>$")


ORDER = (
    "demo",
    "models",
    "doctor",
    "study",
    "show",
    "compare",
    "plan",
    "evaluate",
    "collapse",
    "explain",
    "report",
    "train",
    "bench",
    "reproduce",
)


class Commands(TyperGroup):
    """All commands, listed in the order in which one meets them."""

    def list_commands(self, ctx: Any) -> list[str]:
        known = super().list_commands(ctx)
        return sorted(known, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))


class Command(TyperCommand):
    """A command whose help lists its options in groups."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        listed: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                group = getattr(parameter, "rich_help_panel", None) or "Other options"
                name, text = record
                if parameter.param_type_name == "argument":
                    group, name = "Arguments", _TYPE.sub("", name)
                else:
                    name = _TYPE.sub(lambda found: f" {METAVARS.get(found[1], found[1])}", name)
                listed.setdefault(group, []).append((name, text))
        for group in ("Arguments", *GROUPS, "Other options"):
            if group in listed:
                with formatter.section(group):
                    formatter.write_dl(listed[group])


def example(*lines: str) -> str:
    """Command lines for the end of a command's help.

    They stay as they are: `\\b` keeps click from filling the lines.
    """
    return "\n".join(["\b", "Example:", *(f"  {line}" for line in lines)])


Full = Annotated[
    bool,
    typer.Option(
        "--full",
        help="Print all tables and columns, however long and wide (default: the main ones).",
        rich_help_panel=RESULT,
    ),
]
ModelName = Annotated[
    str,
    typer.Argument(help="A name of the catalogue (see: eigenlens models), a folder, or a hub id."),
]
DataNames = Annotated[
    list[str] | None,
    typer.Argument(
        help=(
            "Text files, folders, FILE.jsonl or FILE.jsonl:FIELD, - for standard input, a named"
            " set, token ids (.npy), pictures, .wav files (default: the catalogue's text or"
            " photographs)."
        )
    ),
]
MaxLength = Annotated[
    int | None,
    typer.Option(
        help="Tokens per input (default: 128 or the model's limit; vision: 224 pixels per side).",
        rich_help_panel=DATA,
    ),
]
Seed = Annotated[int, typer.Option(help="Order and split of the documents.", rich_help_panel=DATA)]
Padding = Annotated[
    bool,
    typer.Option(
        "--padding",
        help="One input per document, padded (default: text is packed).",
        rich_help_panel=DATA,
    ),
]
Float64 = Annotated[
    bool,
    typer.Option(
        "--float64",
        help="Run the model in double precision (default: single precision).",
        rich_help_panel=RUNNING,
    ),
]
Device = Annotated[
    str,
    typer.Option(
        help="Where the model runs, such as cpu or cuda; auto is a GPU if there is one.",
        rich_help_panel=RUNNING,
    ),
]
EngineName = Annotated[
    str,
    typer.Option(
        "--engine",
        help="Who computes: local (this process) or dask (a cluster).",
        rich_help_panel=RUNNING,
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="With --engine dask: worker processes to start on this machine (default: none).",
        rich_help_panel=RUNNING,
    ),
]
Scheduler = Annotated[
    str | None,
    typer.Option(
        help=(
            "With --engine dask: the address of a running cluster's scheduler, such as"
            " tcp://node1:8786 (default: none)."
        ),
        rich_help_panel=RUNNING,
    ),
]
OnFailure = Annotated[
    str,
    typer.Option(
        help=(
            "If a shard of the inputs always fails: stop, or end with a partial result that says"
            " so."
        ),
        rich_help_panel=RUNNING,
    ),
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Go on with what was interrupted (default: begin anew).",
        rich_help_panel=RESULT,
    ),
]
Overwrite = Annotated[
    bool,
    typer.Option(
        "--overwrite",
        help="Overwrite a result that is there (default: refuse).",
        rich_help_panel=RESULT,
    ),
]
Json = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print the result as JSON on standard output (default: tables).",
        rich_help_panel=RESULT,
    ),
]
Quick = Annotated[
    bool,
    typer.Option(
        "--quick",
        help="A miniature of a minute or two (default: the full size).",
        rich_help_panel=MEASURE,
    ),
]


def inputs_option(least: int, which: str = "") -> Any:
    """`--max-inputs` of a command that needs at least so many."""
    return typer.Option(min=least, help=f"At most this many inputs{which}.", rich_help_panel=DATA)


def folder_option(name: str, what: str = "The folder of the result") -> Any:
    """`--output-dir` of a command that writes to the first free of `study`, `study-2` and so on."""
    return typer.Option(
        "-o",
        "--output-dir",
        help=f"{what} (default: {name}, or {name}-2, … if that is taken).",
        rich_help_panel=RESULT,
    )

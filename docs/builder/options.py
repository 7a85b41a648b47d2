"""Arguments and options of every command, read from the command line itself: `<!-- options: study
-->` becomes a table.
"""

import re
from typing import Any

import typer

from eigenlens.cli import app

PLACE = re.compile(r"^<!-- options: (\w+) -->$", re.MULTILINE)


def fill(markdown: str) -> str:
    """A page with the tables that it asks for."""
    return PLACE.sub(lambda found: table(commands()[found[1]]), markdown)


def commands() -> dict[str, Any]:
    """Every command by name."""
    group: Any = typer.main.get_command(app)
    return group.commands


def table(command: Any) -> str:
    rows = ["| | | default |", "|---|---|---|"]
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            many = "…" if parameter.nargs == -1 else ""
            name, default = parameter.name.upper() + many, "required" if parameter.required else ""
        else:
            name = ", ".join([*parameter.opts, *parameter.secondary_opts])
            flag = "on" if parameter.default else "off"
            default = (
                flag
                if parameter.is_flag
                else ""
                if parameter.default is None
                else f"`{parameter.default}`"
            )
        rows.append(f"| `{name}` | {parameter.help} | {default} |")
    return "\n".join(rows)

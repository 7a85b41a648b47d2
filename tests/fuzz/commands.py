"""The target that runs commands on damaged files and folders."""

import contextlib
import io
import sys
from pathlib import Path
from random import Random

from eigenlens import cli
from eigenlens.errors import EigenlensError

from .guard import Broken
from .inputs import ids_bytes, text_file
from .mutations import damage_json_file
from .results import copied, damage_plan, damage_study, silence
from .world import world


def command(rng: Random, folder: Path) -> None:
    """A command on a damaged folder ends with 0, or with 2 and one line on standard error."""
    kind = rng.choice(
        ["study", "study", "plan", "evaluation", "collapse", "explanation", "text", "token_ids"]
    )
    name = rng.choice(["full", "causal"]) if kind == "study" else kind
    place, out = folder / name, folder / "out"
    if kind == "study":
        damage_study(copied(name, folder), rng)
    elif kind == "plan":
        damage_plan(copied(name, folder), rng)
    elif kind == "text":
        place = text_file(folder, rng)
    elif kind == "token_ids":
        place = folder / "ids.npy"
        place.write_bytes(ids_bytes(rng))
    else:
        damage_json_file(copied(name, folder) / f"{kind}.json", rng)
    read = [
        "study",
        world() / "bert",
        place,
        "-o",
        out,
        "--max-inputs",
        "6",
        "--max-length",
        "8",
        "--only",
        "rows",
    ]
    commands = {
        "study": [
            ["show", place],
            ["show", place, "--json"],
            ["compare", place, world() / "full"],
            ["plan", place, "--budget", "0.5", "-o", out],
        ],
        "plan": [["evaluate", world() / "bert", "--plan", place, "--max-inputs", "2", "-o", out]],
        "text": [read],
        "token_ids": [read],
    }
    code, message = run_command(
        *rng.choice(commands.get(kind, [["report", place, "-o", folder / "page.html"]]))
    )
    if (
        code not in (0, 2)
        or "Traceback" in message
        or (code == 2 and message.count("eigenlens: ") != 1)
    ):
        raise Broken(f"the command ended with {code} and said {message[-2000:]!r}")
    if code == 2:
        raise EigenlensError(message)


def run_command(*words: object) -> tuple[int, str]:
    """The command in this process: its exit code, and what it wrote on standard error."""
    message, before = io.StringIO(), sys.argv
    sys.argv = ["eigenlens", *map(str, words)]
    try:
        with silence(), contextlib.redirect_stderr(message):
            cli.main()
    except SystemExit as ended:
        return int(ended.code or 0), message.getvalue()
    finally:
        sys.argv = before
    return 0, message.getvalue()

"""Every reader of what others may have written, as a function of a random number generator.

It refuses, or gives a result.

A target makes one damaged input in a fresh folder, reads it as a user would, and says
`refused` (an `EigenlensError`) or `correct`. Anything else is an error of the program: another
exception, a file outside of the folder, code that was run, memory or time without end. A case is
the name of a target and a number: the same two make the same input.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random

from eigenlens.errors import EigenlensError

from . import commands, inputs, models, results
from .guard import Broken, watched
from .world import world

Target = Callable[[Random, Path], None]

TARGETS: dict[str, Target] = {
    "archive": inputs.archive,
    "text": inputs.text,
    "token_ids": inputs.token_ids,
    "study": results.study,
    "plan": results.plan,
    "evaluation": results.evaluation,
    "collapse": results.collapse,
    "explanation": results.explanation,
    "model": models.model,
    "command": commands.command,
}


def run_case(name: str, seed: int) -> str:
    """Make and read one input; `refused` or `correct`, or the error with the case it belongs to."""
    rng = Random(f"{name} {seed}")
    with tempfile.TemporaryDirectory(prefix="fuzz-case-") as place:
        folder = Path(place) / "case"
        folder.mkdir()
        world()
        try:
            with watched(folder):
                TARGETS[name](rng, folder)
        except EigenlensError as error:
            message = str(error)
            if not message or "\n" in message.strip() or len(message) > 8000:
                raise Broken(
                    f"case {name} {seed}: the refusal is no sentence: {message[:300]!r}"
                ) from error
            return "refused"
        except BaseException as error:
            error.add_note(f"replay with: python benchmarks/fuzz.py --replay {name} {seed}")
            raise
    return "correct"

"""What is typed to keep a study small, and JSON as it is printed."""

import json

SMALL = ("--max-inputs", "24", "--max-length", "16")


def strict(text):
    """JSON as the standard has it: no NaN, no infinity."""

    def refuse(constant):
        raise ValueError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)

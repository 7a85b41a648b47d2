"""`python tests/text_files.py FILE…` names the text files with an untidy end or untidy lines."""

import sys
from pathlib import Path


def faults(content):
    """What is untidy in the bytes of a text file."""
    if content and not content.endswith(b"\n"):
        yield "does not end with a line end"
    if content.endswith(b"\n\n") or content == b"\n":
        yield "ends with an empty line"
    if b"\r" in content:
        yield "has line ends of Windows"
    for number, line in enumerate(content.split(b"\n"), 1):
        if line.endswith((b" ", b"\t")):
            yield f"has spaces at the end of line {number}"
        if line.startswith((b"<<<<<<< ", b">>>>>>> ")):
            yield f"has a conflict that is not settled in line {number}"


def main(names):
    found = [f"{name} {fault}" for name in names for fault in faults(Path(name).read_bytes())]
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

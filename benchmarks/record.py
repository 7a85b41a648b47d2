"""Run a benchmark and keep its tables as data, from which the pages are built.

    python benchmarks/record.py start --rounds 7                   results/benchmarks/start.json
    python benchmarks/record.py study time --max-inputs 1000       …/study-time.json
    python benchmarks/record.py --as study-time-512 study time --max-inputs 200 --max-length 512

The name of the file is the benchmark with its first word, or the one after `--as`; a second table
of the same run gets `-2`. Nothing of a benchmark changes: what it prints is written too. Then
`python docs/build.py --fill` puts the tables into the pages.
"""

from __future__ import annotations

import runpy
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "results"), str(FOLDER)]

import tables  # noqa: E402
from eigenlens import EigenlensError  # noqa: E402
from maker import code, store  # noqa: E402
from maker.header import header, machine  # noqa: E402


def record(words: Sequence[str], name: str, folder: Path = store.BENCHMARKS) -> list[Path]:
    """Run `benchmarks/WORD.py …` and write every table that it prints; returns the files."""
    made_by = {"commit": code.commit(), "code": code.committed_tree()}
    script = FOLDER / f"{words[0]}.py"
    if not script.is_file():
        known = ", ".join(sorted(path.stem for path in FOLDER.glob("*.py")))
        raise EigenlensError(f"no benchmark {words[0]!r}; there are {known}")
    kept: list[list[dict[str, Any]]] = []
    begin = time.monotonic()
    old = sys.argv
    sys.argv = [str(script), *words[1:]]
    tables.LISTENERS.append(kept.append)
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as end:  # how a benchmark with typer ends
        if end.code:
            raise
    finally:
        tables.LISTENERS.remove(kept.append)
        sys.argv = old
    if not kept:
        raise EigenlensError(f"{script.name} printed no table")
    command = f"python benchmarks/{shlex.join([f'{words[0]}.py', *words[1:]])}"
    head = header("benchmark", command, time.monotonic() - begin, None, made_by, machine())
    written = []
    for number, rows in enumerate(kept, 1):
        path = folder / f"{name if number == 1 else f'{name}-{number}'}.json"
        store.write(path, {**head, "formats": {}, "rows": store.rounded(rows)})
        written.append(path)
    return written


def name_of(words: Sequence[str]) -> str:
    """The benchmark with its first word, if that is no option: `study-time`."""
    more = [word for word in words[1:2] if not word.startswith("-")]
    return "-".join([words[0], *more])


def main() -> int:
    words = sys.argv[1:]
    name = words[1] if words[:1] == ["--as"] and len(words) > 2 else ""
    words = words[2:] if name else words
    if not words or words[0].startswith("-"):
        print(__doc__)
        return 0 if "--help" in words else 2
    try:
        for path in record(words, name or name_of(words)):
            print(f"written: {path.relative_to(ROOT)}", file=sys.stderr)
    except EigenlensError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Readers as functions of bytes, for a fuzzer that chooses them by what they reach."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random

from eigenlens.errors import EigenlensError

One = Callable[[bytes], None]


def _watched(read: Callable[[bytes, Path], None]) -> One:
    """A reader with the rules of every case around it."""
    from .guard import watched

    def one(data: bytes) -> None:
        with tempfile.TemporaryDirectory(prefix="fuzz-case-") as place:
            folder = Path(place) / "case"
            folder.mkdir()
            try:
                with watched(folder):
                    read(data, folder)
            except EigenlensError:
                return

    return one


def _archive() -> tuple[One, list[bytes]]:
    from eigenlens.models import archives

    from .archives import WANTED, entries, tar_bytes, zip_bytes

    def read(data: bytes, folder: Path) -> None:
        path = folder / "a.bin"
        path.write_bytes(data)
        archives.member(path, WANTED)

    made = [
        maker(entries(Random(i)), Random(i)) for i in range(12) for maker in (tar_bytes, zip_bytes)
    ]
    return _watched(read), made


def _text() -> tuple[One, list[bytes]]:
    from eigenlens.data.text import pieces

    def read(data: bytes, folder: Path) -> None:
        path = folder / ("a.jsonl" if data[:1] == b"j" else "a.txt")
        path.write_bytes(data[1:])
        list(pieces([path], section=16))

    return _watched(read), [
        b"twords\n\nmore words",
        b'j{"text": "a"}\n{"text": "b"}',
        b"t\xff\xfe",
        b"j[]",
    ]


def _token_ids() -> tuple[One, list[bytes]]:
    from .inputs import bert, ids_bytes, read_ids

    bert()
    return _watched(read_ids), [ids_bytes(Random(i)) for i in range(24)]


def _json_of(name: str, opened: Callable[[], type]) -> Callable[[], tuple[One, list[bytes]]]:
    def make() -> tuple[One, list[bytes]]:
        from .world import world

        kind = opened()

        def read(data: bytes, folder: Path) -> None:
            (folder / f"{name}.json").write_bytes(data)
            found = kind.open(folder)  # type: ignore[attr-defined]
            json.dumps(found.record())

        return _watched(read), [(world() / name / f"{name}.json").read_bytes()]

    return make


def _explanation() -> type:
    from eigenlens.explanations import Explanation

    return Explanation


def _evaluation() -> type:
    from eigenlens.plans.evaluation import Evaluation

    return Evaluation


BYTE_TARGETS: dict[str, Callable[[], tuple[One, list[bytes]]]] = {
    "archive": _archive,
    "text": _text,
    "token_ids": _token_ids,
    "explanation": _json_of("explanation", _explanation),
    "evaluation": _json_of("evaluation", _evaluation),
}
"""By name: what makes the reader, and inputs to begin with."""

"""A name means one thing.

No room gives a function or class the name of itself or of one of its files, which would hide the
file.
"""

import importlib
import inspect
import types
from pathlib import Path

import pytest

import eigenlens

ROOMS = sorted(path.parent for path in Path(eigenlens.__file__).parent.glob("*/__init__.py"))


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_no_export_hides_a_file_of_its_room(room):
    module = importlib.import_module(f"eigenlens.{room.name}")
    files = {path.stem for path in room.glob("*.py")} | {
        path.parent.name for path in room.glob("*/__init__.py")
    }
    hidden = {
        name
        for name, value in vars(module).items()
        if name in {*files, room.name} and (inspect.isfunction(value) or inspect.isclass(value))
    }
    assert not hidden


def test_no_public_name_hides_a_room():
    rooms = {room.name for room in ROOMS}
    assert all(isinstance(getattr(eigenlens, name), types.ModuleType) for name in rooms)

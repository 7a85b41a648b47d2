"""Python as it is after `pip install eigenlens`.

What the base dependencies bring, and nothing of the extras.
"""

import os
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

import eigenlens

SOURCE = Path(eigenlens.__file__).parents[1]


def closure(requirements):
    """The distributions that these requirements bring, and what those need in turn."""
    found, left = {}, list(requirements)
    while left:
        wanted = left.pop()
        for extra in {"", *wanted.extras}:
            key = (wanted.name.lower(), extra)
            if key in found:
                continue
            found[key] = distribution(wanted.name)
            for line in found[key].requires or []:
                needed = Requirement(line)
                if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                    left.append(needed)
    return set(found.values())


def base_requirements():
    import tomllib

    project = tomllib.loads((SOURCE.parent / "pyproject.toml").read_text())["project"]
    return [Requirement(line) for line in project["dependencies"]]


def make_base(folder):
    """Fill a folder with links to the packages of the base installation; returns it."""
    for found in closure(base_requirements()):
        for top in {
            path.parts[0]
            for path in found.files or []
            if path.parts[0] not in ("..", "__pycache__")
        }:
            link, real = folder / top, Path(found.locate_file(top))
            if real.exists() and not link.exists():
                link.symlink_to(real)
    return folder


def run_base(folder, *args, **environment):
    """Run a Python that finds nothing but those packages, the standard library and this source."""
    path = os.pathsep.join(map(str, (SOURCE, folder)))
    return subprocess.run(
        [sys.executable, "-S", *map(str, args)],
        env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )

"""Execute the notebooks of this folder and write them back with their outputs.

    python examples/run.py                          # all of them
    python examples/run.py examples/first_look.ipynb

A notebook runs in a temporary folder, so that what it writes leaves nothing here. It fails if a
cell fails, or if all its cells together take longer than two minutes; `seconds` in its metadata
is a limit of its own, `--seconds` one for a slower machine.
"""

import argparse
import base64
import io
import os
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from PIL import Image

HERE = Path(__file__).parent
SECONDS = 120
QUICK = "EIGENLENS_QUICK"
QUIET = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "PYTHONWARNINGS": "ignore:IProgress not found"}
"""Neither progress bars nor the advice to install widgets for them: a stored notebook shows none.
"""


def execute(path: Path, folder: Path, seconds: float = SECONDS) -> nbformat.NotebookNode:
    """The notebook with the outputs of a run in `folder`."""
    notebook = nbformat.read(path, as_version=4)
    until = time.monotonic() + seconds
    client = NotebookClient(
        notebook,
        kernel_name="python3",
        coalesce_streams=True,
        timeout_func=lambda cell: max(1, int(until - time.monotonic())),  # what is left for a cell
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute(env={**os.environ, **QUIET})
    return clean(notebook)


def limit(path: Path) -> float:
    """How many seconds a notebook may take."""
    return nbformat.read(path, as_version=4).metadata.get("seconds", SECONDS)


def clean(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Without what differs from run to run though nothing has changed; pictures packed well."""
    notebook.metadata.language_info = {"name": "python"}
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times
        for output in cell.get("outputs", ()):
            if picture := output.get("data", {}).get("image/png"):
                output.data["image/png"] = packed(picture)
    return notebook


def packed(picture: str) -> str:
    """The same pixels in a quarter of the bytes or so; base64, as a notebook stores it."""
    found = io.BytesIO()
    image = Image.open(io.BytesIO(base64.b64decode(picture)))
    image.convert("RGB").save(found, "PNG", optimize=True)
    return base64.b64encode(found.getvalue()).decode()


def main() -> int:
    parser = argparse.ArgumentParser(description="Execute notebooks and store their outputs.")
    parser.add_argument("notebooks", nargs="*", type=Path, help="default: all of this folder")
    parser.add_argument("--seconds", type=float, help="limit for one notebook")
    asked = parser.parse_args()
    if os.environ.get(QUICK):
        parser.error(f"{QUICK} is set: its figures mean nothing and are not to be stored")
    for path in asked.notebooks or sorted(HERE.glob("*.ipynb")):
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            notebook = execute(path, Path(folder), asked.seconds or limit(path))
        nbformat.write(notebook, path)
        size = path.stat().st_size / 1e6
        print(f"{path.name}: {time.monotonic() - began:.0f} s, {size:.2f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())

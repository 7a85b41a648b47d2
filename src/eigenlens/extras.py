"""Libraries that only some features need: checked before the work begins.

An extra of the package installs them.
"""

from __future__ import annotations

from importlib.util import find_spec

from .display import listed
from .errors import EigenlensError

EXTRAS: dict[str, dict[str, str]] = {
    "catalogue": {
        "gguf": "gguf",
        "accelerate": "accelerate",
        "onnx": "onnx",
        "sentencepiece": "sentencepiece",
        "google.protobuf": "protobuf",
    },
    "vision": {"PIL": "Pillow", "sklearn": "scikit-learn"},
    "dask": {"dask": "dask", "distributed": "distributed"},
}
"""For each extra, the import names of its libraries and their usual names."""
PURPOSES = {
    "catalogue": "converting most models of the catalogue: GGUF, ONNX and sentencepiece files",
    "vision": "pictures for vision models; scikit-learn's photographs and digits",
    "dask": "a cluster, or several processes of this machine",
}
"""What each extra is for."""


def needs(*libraries: str, what: str) -> None:
    """Refuse work if a library it needs is not installed.

    `libraries` are import names; `what` is the subject of the error's sentence.
    """
    missing = [name for name in dict.fromkeys(libraries) if not _here(name)]
    if not missing:
        return
    extras = [extra for extra, brings in EXTRAS.items() if any(name in brings for name in missing)]
    called = [brings[name] for brings in EXTRAS.values() for name in brings if name in missing]
    raise EigenlensError(
        f"{what} needs {listed(called)}; install {'it' if len(called) == 1 else 'them'} with: "
        f"pip install 'eigenlens[{','.join(extras)}]'"
    )


def missing_libraries(extra: str) -> list[str]:
    """The usual names of the libraries of an extra that are not installed."""
    return [called for name, called in EXTRAS[extra].items() if not _here(name)]


def _here(library: str) -> bool:
    try:
        return find_spec(library) is not None
    except ModuleNotFoundError:  # the package that it would be a part of
        return False

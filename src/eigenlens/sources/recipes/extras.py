"""The libraries only the converters need, asked for before a conversion starts."""

from importlib.util import find_spec

from eigenlens.errors import EigenlensError


def require(*libraries: str, model: str) -> None:
    missing = [name for name in libraries if find_spec(name) is None]
    if missing:
        raise EigenlensError(
            f"Converting {model} needs {' and '.join(missing)}, which needs the catalogue extra: "
            "pip install 'eigenlens[catalogue]'"
        )

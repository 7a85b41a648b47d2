"""The page as one file, with template, style, script and data; nothing else may run."""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ..cache import cache_folder
from ..display import need_drawing, numbered
from ..errors import EigenlensError
from ..run.files import write_text
from .contents import Contents

FOLDER = Path(__file__).parent / "assets"
SCRIPTS = ("data", "saving", "figures", "tables", "heads", "overlaps", "patterns", "start")


def render(contents: Contents, library: str) -> str:
    """The page as HTML; `library` is the script that draws charts."""
    from .._version import __version__ as mine

    style = _read("page.css")
    library, script = _inline(library), _inline("\n".join(_read(f"{name}.js") for name in SCRIPTS))
    policy = (
        f"default-src 'none'; script-src {_digest(library)} {_digest(script)}; style-src"
        f" {_digest(style)}; img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    text = json.dumps(contents.record(), separators=(",", ":"), allow_nan=False)
    page = (
        _environment()
        .get_template("page.html.j2")
        .render(
            contents=contents,
            version=mine,
            policy=policy,
            style=Markup(style),
            library=Markup(library),
            script=Markup(script),
            data=_packed(text.encode()),
            arrays=_packed(contents.arrays.block()),
        )
    )
    # names of files may hold what no encoding can carry
    return page.encode("utf-8", "backslashreplace").decode()


def _environment() -> Environment:
    found = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters["cell"] = cell
    found.filters["worded"] = worded
    found.filters["coded"] = coded
    found.filters["numbered"] = numbered
    found.filters["named"] = lambda name: str(name).replace("_", " ")
    return found


def cell(value: Any) -> str:
    """The text of a value in a table."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def coded(text: str) -> Markup:
    """HTML of a text, with `code` for what is between backticks."""
    parts = text.split("`")
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if i % 2 else part for i, part in enumerate(parts)
    )


def worded(value: Any) -> bool:
    """Whether a cell holds words, which are aligned to the left, and no number.

    Numbers are such as 12, >64 and 0.8 (0.7–0.9).
    """
    return isinstance(value, str) and not value.lstrip(">–-+.")[:1].isdigit()


def _read(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def _inline(script: str) -> str:
    """JavaScript that is safe inside a script element."""
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _packed(content: bytes) -> str:
    """Compressed bytes as base64 text.

    The same content always gives the same text.
    """
    return base64.b64encode(gzip.compress(content, 9, mtime=0)).decode()


BUNDLE = "import sys, vl_convert; sys.stdout.buffer.write(vl_convert.javascript_bundle().encode())"


def drawing_library() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script.

    Bundling takes seconds, so the script is kept in the user's cache. It is made in a process of
    its own, as it would block this one.
    """
    need_drawing()
    kept = cache_folder() / "vega" / f"bundle-{version('vl-convert-python')}.js"
    if kept.is_file():
        return kept.read_text(encoding="utf-8")
    done = subprocess.run([sys.executable, "-c", BUNDLE], capture_output=True)
    if done.returncode:
        raise EigenlensError(
            "the drawing library could not be bundled:"
            f" {done.stderr.decode(errors='replace').strip()[-300:]}"
        )
    made = done.stdout.decode()
    # a cache that cannot be written costs time only
    with contextlib.suppress(OSError, EigenlensError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_text(kept, made)
    return made

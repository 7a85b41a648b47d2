"""Pictures of papers, drawn from the stored tables.

A picture carries the digest of the chart it was drawn from in a text chunk of its PNG file: a build
draws again what the tables no longer give, and a test finds a picture that stands for other data.
"""

import hashlib
import json
import struct
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from eigenlens.papers import PAPERS
from eigenlens.run.charts import save_charts
from maker.store import rounded

from .results import Results

DRAWN = {
    "collapse-random": ("rank-collapse", "random"),
    "collapse-pretrained": ("rank-collapse", "pretrained"),
    "collapse-single-paths": ("rank-collapse", "paths"),
    "collapse-accuracy": ("rank-collapse", "accuracy"),
    "collapse-circle": ("rank-collapse", "circle"),
    "convex-duality": ("convex-duality", "convex-duality"),
    "convex-duality-clusters": ("convex-duality", "clusters"),
    "doubly-normalised": ("doubly-normalised", "keys"),
    "explainability": ("explainability", "deletion"),
    "fast": ("fast", "time"),
    "fast-training": ("fast", "training"),
    "gated": ("gated", "gated"),
    "hybrid": ("hybrid", "composition"),
    "hybrid-training": ("hybrid", "training"),
    "induction": ("induction", "training"),
    "induction-heads": ("induction", "heads"),
    "mind-the-gap": ("mind-the-gap", "rank"),
    "multiformer": ("multiformer", "map-minilm"),
    "multiformer-miniature": ("multiformer", "miniature"),
    "over-smoothing": ("over-smoothing", "depth"),
    "qk-eigenspectrum": ("qk-eigenspectrum", "qk-eigenspectrum"),
    "qk-training": ("qk-eigenspectrum", "qk-training"),
    "rank-one-head": ("rank-versus-heads", "rank-one-head"),
    "rank-versus-heads": ("rank-versus-heads", "rank-versus-heads"),
    "sequence-maps": ("universal-approximation", "sequence-maps"),
    "sinks": ("sinks", "sinks"),
    "tensorlens": ("tensorlens", "maps"),
    "tensorlens-deletion": ("tensorlens", "deletion"),
    "training": ("eigen-analysis", "training"),
    "universal-approximation": ("universal-approximation", "universal-approximation"),
    "within-one-input": ("within-one-input", "within-one-input"),
    "within-controls": ("within-one-input", "within-controls"),
}
"""The pictures of `docs/pictures` that show results of papers: the paper, and its chart."""
KEY = b"eigenlens-results"
SIGNATURE = b"\x89PNG\r\n\x1a\n"


def charts(results: Results) -> Iterator[tuple[str, Any]]:
    """Name and chart of every picture whose paper has a result."""
    for paper in dict.fromkeys(paper for paper, _ in DRAWN.values()):
        if paper not in results.papers:
            continue
        made = PAPERS[paper].charts(results.papers[paper]["result"]["tables"])
        for name, (of, chart) in DRAWN.items():
            if of == paper:
                if chart not in made:
                    raise LookupError(f"{paper} draws no {chart!r}, but {', '.join(made)}")
                yield name, made[chart]


def redraw(results: Results, folder: Path) -> list[Path]:
    """Draw the pictures that are not those of the results; returns what was written."""
    written = []
    for name, chart in charts(results):
        path, mark = folder / f"{name}.png", digest(chart)
        if not path.is_file() or mark_of(path) != mark:
            with tempfile.TemporaryDirectory() as place:
                (drawn,) = save_charts({name: chart}, Path(place), only_png=[name])
                path.write_bytes(marked(drawn.read_bytes(), mark))
            written.append(path)
    return written


def digest(chart: Any) -> str:
    """A digest of a chart with its data, the same on every machine: figures are rounded."""
    spec = rounded(chart.to_dict(validate=False))
    spec.pop("$schema", None)  # the version of the library
    return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:32]


def mark_of(path: Path) -> str | None:
    """The digest that a picture carries."""
    for kind, content in _chunks(path.read_bytes()):
        key, _, text = content.partition(b"\0")
        if kind == b"tEXt" and key == KEY:
            return text.decode()
    return None


def marked(png: bytes, mark: str) -> bytes:
    """A picture with a digest, behind its header."""
    content = KEY + b"\0" + mark.encode()
    chunk = b"".join(
        (
            struct.pack(">I", len(content)),
            b"tEXt" + content,
            struct.pack(">I", zlib.crc32(b"tEXt" + content)),
        )
    )
    header = len(SIGNATURE) + 8 + 13 + 4  # length and kind, the header itself, its checksum
    return png[:header] + chunk + png[header:]


def _chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = len(SIGNATURE)
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        yield png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        at += 12 + length

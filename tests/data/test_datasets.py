"""Named data come whole, in order and readable."""

import re
import subprocess
import sys
from itertools import islice
from pydoc_data.topics import topics

import numpy as np
import pytest

from eigenlens.data.datasets import DATASETS, DEFAULT_DATASET, images, reviews, text
from eigenlens.data.wikipedia import articles, plain_text
from eigenlens.errors import EigenlensError
from eigenlens.models.fetch import fetch


def available(name: str) -> str:
    source = DATASETS[name].source
    if source is not None:
        try:
            fetch(source)
        except EigenlensError as error:
            pytest.skip(str(error))
    return name


def test_python_docs_are_the_default_and_need_no_download() -> None:
    documents = list(text("python-docs"))
    assert documents == [topics[title] for title in sorted(topics)]
    assert sum(map(len, documents)) > 300_000
    assert next(iter(DATASETS)) == DEFAULT_DATASET == "python-docs"
    assert DATASETS[DEFAULT_DATASET].source is None


def test_wikipedia_articles_are_readable() -> None:
    documents = list(islice(text(available("wikipedia")), 200))
    assert documents[0].startswith(
        "Anarchism originated as a term of abuse first used against early working class radicals"
    )
    whole = "\n".join(documents)
    assert len(whole) > 1_000_000
    for markup in (r"\[\[", r"\{\{", r"\{\|", r"</?ref", "'''", "&nbsp;", "#REDIRECT"):
        assert len(re.findall(markup, whole)) < 10, markup
    letters = sum(c.isalpha() or c.isspace() for c in whole)
    assert letters / len(whole) > 0.9


def test_wikipedia_is_streamed() -> None:
    """The whole is 100 MB; a pass over it in a fresh process must not hold anything near that."""
    available("wikipedia")
    program = (
        "from eigenlens.run.memory import peak_resident_bytes\n"
        "from eigenlens.data.datasets import text\n"
        "documents = text('wikipedia'); next(documents); before = peak_resident_bytes()\n"
        "for _, _ in zip(range(2500), documents): pass\n"
        "print((peak_resident_bytes() - before) // 2**20)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 20


@pytest.mark.parametrize(
    ("markup", "words"),
    [
        ("'''Bold''' and ''italic''", "Bold and italic"),
        ("a [[link]], a [[target|shown]] [[word]]s", "a link, a shown words"),
        ("[http://example.org a site] and [http://example.org]", "a site and"),
        ("x{{box|a={{inner}}|b}}y", "xy"),
        ("{| class=t\n| a || b\n{|\n| c\n|}\n|}after", "after"),
        ("[[Image:a.jpg|thumb|A [[nested]] caption]]text", "text"),
        ("text[[Category:Things]][[de:Ding]]", "text"),
        ("said<ref name=a>note</ref> so<ref name=b/> it", "said so it"),
        ("== Heading ==\n* one\n** two", "Heading\none\ntwo"),
        ("5&nbsp;km&sup2; <b>x</b><!-- hidden -->", "5 km² x"),
    ],
)
def test_markup_becomes_what_a_reader_sees(markup: str, words: str) -> None:
    assert plain_text(markup) == words


def test_only_whole_articles_of_the_main_namespace_are_kept() -> None:
    def page(title: str, content: str) -> str:
        return (
            f"  <page>\n<title>{title}</title>\n<text xml:space='preserve'>{content}</text>\n "
            " </page>\n"
        )

    export = '<namespace key="0" />\n<namespace key="1">Talk</namespace>\n'
    export += (
        page("A: a study", "first")
        + page("Talk:A", "chat")
        + page("B", "#REDIRECT [[A]]")
        + page("C", "&lt;i&gt;x")
    )
    export += page("D", "cut short").partition("</page>")[0]
    assert list(articles(export.splitlines(keepends=True))) == ["first", "x"]


def test_reviews_carry_what_people_felt() -> None:
    available("reviews")
    found = list(reviews())
    counts = {
        kind: sum(review.kind == kind for review in found)
        for kind in ("movie", "tweet", "product", "editorial")
    }
    assert counts["movie"] > 10_000
    assert min(counts.values()) > 3_000
    assert sum(counts.values()) == len(found)
    assert all(-4 <= review.score <= 4 and review.text for review in found)
    assert [review.text for review in found] == list(text("reviews"))
    # Words of praise stand in snippets rated higher than words of blame.
    mean = {
        word: np.mean([r.score for r in found if word in r.text.lower()])
        for word in ("wonderful", "terrible")
    }
    assert mean["wonderful"] > 1
    assert mean["terrible"] < -1


def test_fashion_mnist_is_whole_and_balanced() -> None:
    labels = np.zeros(10, int)
    for i, (picture, label) in enumerate(images(available("fashion-mnist"))):
        assert isinstance(label, int)
        labels[label] += 1
        if i % 1000 == 0:
            assert picture.shape == (28, 28)
            assert picture.dtype == np.uint8
            assert picture.max() > 100
    assert (labels == 7000).all()


def test_photos_equal_those_of_scikit_learn() -> None:
    from sklearn.datasets import load_sample_images

    expected = load_sample_images()
    found = {str(name): picture for picture, name in images("photos")}
    assert set(found) == {"china", "flower"}
    for file, picture in zip(expected.filenames, expected.images):
        np.testing.assert_array_equal(found[file.rpartition("/")[2].removesuffix(".jpg")], picture)


def test_digits_equal_those_of_scikit_learn() -> None:
    from sklearn.datasets import load_digits

    expected = load_digits()
    pictures, labels = zip(*images("digits"))
    np.testing.assert_array_equal(labels, expected.target)
    np.testing.assert_allclose(np.stack(pictures) / 255 * 16, expected.images, atol=0.04)
    assert pictures[0].dtype == np.uint8


def test_unknown_and_misplaced_names_list_what_there_is() -> None:
    with pytest.raises(EigenlensError, match=r"'books'.*python-docs, wikipedia, reviews"):
        text("books")
    with pytest.raises(EigenlensError, match=r"'photos' holds images, not text.*python-docs"):
        text("photos")
    with pytest.raises(
        EigenlensError,
        match=r"'reviews' holds text, not images.*fashion-mnist, photos, skimage, digits",
    ):
        images("reviews")

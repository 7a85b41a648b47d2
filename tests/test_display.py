"""What stands in a token can be seen, and whatever a result holds is shown in a notebook, not
run.
"""

import base64
import re
import sys
from html.parser import HTMLParser
from xml.etree import ElementTree

import altair as alt
import pytest

from eigenlens import EigenlensError
from eigenlens.display import few_names, html_table, html_view, listed, picture, visible

HOSTILE = "<script>alert('1')</script>\"&"


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        ("plain", "plain"),
        ("", ""),
        (" the", "␣the"),
        ("a  b", "a␣␣b"),
        ("\n\t\r", r"\n\t\r"),
        ("\u00a0", r"\u00a0"),  # a space that does not break
        ("\u3000", r"\u3000"),  # as wide as a Chinese character
        ("\x00\x1b[31m", r"\u0000\u001b[31m"),
        ("\u202eabc\u2066", r"\u202eabc\u2066"),  # marks of direction
        ("a\u200bb\ufeff\u00ad", r"a\u200bb\ufeff\u00ad"),  # of no width
        ("a\u200db", r"a\u200db"),  # a joiner that joins no emoji
        ("\u200d", r"\u200d"),
        ("\u3164\u2800", r"\u3164\u2800"),  # letters without ink
        ("e\u0301", "e\u0301"),
        ("\u0301a", "◌\u0301a"),
        (" \u0301", "␣◌\u0301"),
        ("\n\u0301", "\\n◌\u0301"),
        ("न\u092e\u0938\u094d\u0924\u0947", "न\u092e\u0938\u094d\u0924\u0947"),
        ("👩‍👩‍👧‍👦", "👩‍👩‍👧‍👦"),
        ("👩🏽‍🚀", "👩🏽‍🚀"),
        ("🏳️‍🌈", "🏳️‍🌈"),
        ("1\ufe0f\u20e3", "1\ufe0f\u20e3"),
        ("🇩🇪", "🇩🇪"),
        ("👩\u200d", "👩\\u200d"),  # half a family
        ("a\U000e0101", r"a\U000e0101"),  # a selector hides letters in letters
        ("\ufe0f", r"\ufe0f"),
        ("\ud83d", r"\ud83d"),  # half a character
        ("\ue000\U0010ffff", r"\ue000\U0010ffff"),  # of private use, and none at all
        ("中文 שלום", "中文␣שלום"),
        ("<b>", "<b>"),  # markup is for who writes markup
    ],
)
def test_a_token_hides_nothing(token, shown):
    assert visible(token) == shown
    visible(token).encode("utf-8")  # no half of a character is left, so it can be written anywhere


def test_a_long_token_is_cut_and_says_how_long_it_is():
    assert visible("x" * 24) == "x" * 24
    assert visible("x" * 25) == "x" * 24 + "… (25 characters)"
    assert visible(" " * 10_000) == "␣" * 24 + "… (10,000 characters)"
    assert visible("abcdef", most=3) == "abc… (6 characters)"


class CallView(HTMLParser):
    """The elements, attributes and text that a browser would make of markup."""

    def __init__(self, markup):
        super().__init__()
        self.tags, self.attributes, self.text = [], [], []
        self.feed(markup)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes

    def handle_data(self, data):
        self.text.append(data)


def chart(title=HOSTILE, number=3):
    """Coloured bars named after the title, with a legend of continuous colour, which is a named
    gradient.
    """
    rows = [{"name": f"{title} {i}", "value": i} for i in range(number)]
    return (
        alt.Chart(alt.Data(values=rows))
        .mark_bar(clip=True)
        .encode(x=alt.X("name:N", title=title), y="value:Q", color="value:Q", tooltip="name:N")
        .properties(title=title)
    )


def test_a_table_shows_markup_as_text():
    rows = [{HOSTILE: HOSTILE, "value": 0.123456}, {HOSTILE: None, "value": 1e-9}]
    seen = CallView(html_table(rows))
    assert set(seen.tags) == {"table", "thead", "tbody", "tr", "th", "td"} and not seen.attributes
    assert seen.text == [HOSTILE, "value", HOSTILE, "0.123", "–", "1e-09"]


def test_a_table_of_many_rows_says_how_many_more_there_are():
    seen = CallView(html_table([{"i": i} for i in range(250)], most=10))
    assert seen.tags.count("tr") == 11 and seen.text[-1] == "… 240 more rows"
    assert CallView(html_table([])).text == ["nothing"]


def test_a_view_shows_everything_and_runs_nothing():
    view = html_view(HOSTILE, f"It is {HOSTILE}.", chart(), [{"name": HOSTILE}])
    seen = CallView(view)
    assert "script" not in seen.tags and not [
        name for name, _ in seen.attributes if name.startswith("on")
    ]
    assert {"h4", "p", "svg", "details", "summary", "table"} <= set(seen.tags)
    assert seen.tags.index("details") < seen.tags.index("table")
    assert HOSTILE in seen.text and f"It is {HOSTILE}." in seen.text and "1 row" in seen.text
    assert next(value for name, value in seen.attributes if name == "aria-label") == HOSTILE
    fetched = [value for name, value in seen.attributes if name in {"src", "href", "xlink:href"}]
    assert not [value for value in fetched if not value.startswith(("#", "data:"))]


def test_a_view_without_a_picture_or_a_sentence():
    seen = CallView(html_view("Title", "", None, [{"a": 1}, {"a": 2}]))
    assert seen.tags[:3] == ["h4", "details", "summary"] and "2 rows" in seen.text


def test_halves_of_characters_can_be_sent():
    """Names of files may hold them, and no encoding of a notebook's messages can."""
    view = html_view("a\udc80b", "c\ud83dd", chart("e\udcfff"), [{"\udc80": "\udc81"}])
    assert view.encode("utf-8")
    assert {r"a\udc80b", r"c\ud83dd", r"\udc80", r"\udc81", "e?f"} <= set(CallView(view).text)


def test_names_inside_a_picture_are_its_own():
    """Pictures of one notebook share a document: a gradient of the first must not colour the
    second.
    """
    first, second = picture(chart("one")), picture(chart("two", number=9))
    names = [set(re.findall(r'\bid="([^"]+)"', svg)) for svg in (first, second)]
    assert names[0] and names[1] and not names[0] & names[1]
    for svg, own in zip((first, second), names):
        ElementTree.fromstring(svg)  # well-formed
        used = set(re.findall(r"url\(#([^)]+)\)", svg))
        assert used and used <= own


def test_a_large_picture_is_a_png_of_the_same_size():
    svg, img = picture(chart(), "words"), picture(chart(), 'a "word"', most=100)
    attributes = dict(CallView(img).attributes)
    assert CallView(img).tags == ["img"] and attributes["alt"] == 'a "word"'
    kind, _, data = attributes["src"].partition(",")
    png = base64.b64decode(data)
    assert kind == "data:image/png;base64" and png.startswith(b"\x89PNG")
    size = [float(ElementTree.fromstring(svg).get(name)) for name in ("width", "height")]
    assert [float(attributes[name]) for name in ("width", "height")] == size
    # sharp on fine screens
    assert [int.from_bytes(png[at : at + 4], "big") for at in (16, 20)] == [
        2 * side for side in size
    ]


def test_a_picture_fetches_nothing():
    with pytest.raises(ValueError, match="not allowed"):
        picture(alt.Chart("https://example.com/rows.csv").mark_point().encode(x="x:Q"))


def test_without_the_package_that_draws_a_view_keeps_its_words_and_numbers(monkeypatch):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(EigenlensError, match="pip install vl-convert-python"):
        picture(chart("one"))
    view = html_view("title", "sentence", chart("one"), [{"a": 1}])
    assert (
        "<h4>title</h4><p>sentence</p><p>pictures are drawn by the package vl-convert-python, which"
        " is not installed" in view
    )
    assert "<td>1</td>" in view


@pytest.mark.parametrize(
    ("names", "title"),
    [
        ("a.txt", "a.txt"),
        ("a.txt, b.txt, c.txt", "a.txt, b.txt, c.txt"),
        (", ".join(f"part-{i}.txt" for i in range(13)), "13 files"),
        ("python-docs, wikipedia, linux-docs, rfc", "4 data sets"),
    ],
)
def test_many_names_of_data_become_their_number(names, title):
    assert few_names(names) == title


@pytest.mark.parametrize(
    ("names", "last", "sentence"),
    [
        ([], "and", ""),
        (["one"], "and", "one"),
        (["one", "two"], "or", "one or two"),
        (["one", "two", "three"], "and", "one, two and three"),
    ],
)
def test_names_are_listed_as_in_a_sentence(names, last, sentence):
    assert listed(names, last) == sentence

"""Text is a stream of documents: in order, whole, and never held."""

import io
import json
import re
import sys
import tracemalloc
from collections import defaultdict
from types import SimpleNamespace

import pytest

from eigenlens.data.datasets import text
from eigenlens.data.text import CHUNK, pieces
from eigenlens.errors import EigenlensError


def documents(data, section=1000, seed=0):
    """The text of each document, in the order of its first piece."""
    found = defaultdict(str)
    for piece in pieces(data, section, seed):
        found[piece.document] += piece.text
    return list(found.values())


def write(path, content):
    path.write_text(content, encoding="utf-8")
    return str(path)


def paragraphs(number, size=400):
    """Paragraphs that differ from each other, `size` characters each."""
    return [(f"paragraph {i} says " + f"word{i} " * size)[: size - 1] + "." for i in range(number)]


@pytest.mark.parametrize(
    "line", ["one line of a large file, with some words in it\n", "no line ever ends here ", "x"]
)
def test_a_large_file_is_never_held(tmp_path, line):
    """30 MB, in lines, in words without a newline, and in one endless word."""
    path, size = tmp_path / "large.txt", 30_000_000
    with open(path, "w") as file:
        for _ in range(size // 1_000_000):
            file.write((line * (1_000_000 // len(line) + 1))[:1_000_000])
    seen, longest = 0, 0
    tracemalloc.start()
    for piece in pieces([path], section=4000):
        seen, longest = seen + len(piece.text), max(longest, len(piece.text))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000
    assert longest <= max(4 * 4000, CHUNK)
    assert 0.99 * size < seen <= size


def test_reading_stops_where_the_reader_stops(tmp_path):
    """What lies behind the last piece that was wanted is not even looked at.

    Here it is not text.
    """
    path = tmp_path / "mixed.txt"
    path.write_bytes(b"good words \n\n" * 50_000 + b"\xff\xff")
    stream = pieces([path], section=100)
    assert all(next(stream).text.startswith("good words") for _ in range(100))
    with pytest.raises(EigenlensError, match="not UTF-8"):
        list(stream)


def test_a_file_is_cut_into_sections_at_blank_lines(tmp_path):
    written = paragraphs(40)
    found = documents([write(tmp_path / "book.txt", "\n\n".join(written))], section=1000)
    assert len(found) > 5
    assert [p for section in found for p in section.split("\n\n")] == written
    assert all(len(section) >= 1000 for section in found[:-1])


@pytest.mark.parametrize("between", ["\n", " "])
def test_sections_without_blank_lines_lose_nothing(tmp_path, between):
    content = between.join(f"word{i}" for i in range(20_000))
    found = documents([write(tmp_path / "flat.txt", content)], section=1000)
    assert len(found) > 20
    assert max(map(len, found)) <= 4000
    assert between.join(section.strip() for section in found) == content


def test_nine_files_are_cut_and_ten_are_documents(tmp_path):
    body = "\n\n".join(paragraphs(30))
    for i in range(9):
        write(tmp_path / f"{i}.md", f"file {i}\n\n{body}")
    assert len(documents([tmp_path])) > 9
    write(tmp_path / "9.rst", f"file 9\n\n{body}")
    found = documents([tmp_path])
    assert len(found) == 10
    assert {re.match(r"file (\d)", d)[1] for d in found} == set("0123456789")
    assert all("paragraph 0 " in d and "paragraph 29 " in d for d in found)


def test_a_folder_gives_its_text_files_and_only_those(tmp_path):
    (tmp_path / "inner").mkdir()
    write(tmp_path / "a.txt", "alpha")
    write(tmp_path / "inner" / "b.rst", "beta")
    write(tmp_path / "program.py", "gamma")
    assert sorted(documents([tmp_path])) == ["alpha", "beta"]
    assert documents([tmp_path / "inner"]) == ["beta"]
    assert sorted(documents([tmp_path / "a.txt", tmp_path / "inner"])) == ["alpha", "beta"]


def test_every_line_of_a_jsonl_file_is_a_document(tmp_path):
    texts = ["first", "second\nwith a line", "größer"]
    path = write(
        tmp_path / "a.jsonl", "\n\n".join(json.dumps({"text": t, "other": 1}) for t in texts)
    )
    assert documents([path]) == texts


@pytest.mark.parametrize("line", ["{", '{"body": "x"}', '{"text": 3}', '["text"]', '"text"'])
def test_a_bad_line_of_a_jsonl_file_is_named(tmp_path, line):
    path = write(tmp_path / "a.jsonl", f'{{"text": "good"}}\n{line}\n')
    with pytest.raises(EigenlensError, match=r"a\.jsonl, line 2"):
        documents([path])


@pytest.mark.parametrize(
    ("lines", "field", "wanted"),
    [
        (['{"text": "a", "body": "b"}', "", "  ", '{"body": "d", "text": "c"}'], "", ["a", "c"]),
        (['{"text": "a", "body": "b"}', '{"body": "d", "text": "c"}', ""], ":body", ["b", "d"]),
        (['{"id": 1, "review": "a"}', '{"id": 2, "review": "b", "more": "c"}'], "", ["a", "b"]),
        (['{"id": 1, "a:b": "x"}'], "", ["x"]),
        ([], "", []),
    ],
)
def test_the_field_of_a_jsonl_file_can_be_chosen(tmp_path, lines, field, wanted):
    path = write(tmp_path / "a.jsonl", "\n".join(lines))
    assert documents([f"{path}{field}"]) == wanted


def test_two_fields_of_one_file_are_two_texts(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"title": "one", "body": "two"}\n')
    assert sorted(documents([f"{path}:title", f"{path}:body"])) == ["one", "two"]


def test_a_file_whose_name_has_a_colon_is_that_file(tmp_path):
    assert documents([write(tmp_path / "a.jsonl:body", "plain words")]) == ["plain words"]


@pytest.mark.parametrize(
    ("lines", "field", "said"),
    [
        (
            ['{"a": "x", "b": "y"}'],
            "",
            (
                r"line 1: no field 'text', but strings in a, b; name one after the file name, such as"
                r" .*a\.jsonl:a$"
            ),
        ),
        (['{"a": 1}'], "", r"line 1: none of its fields holds a string: a$"),
        (["{}"], "", r"line 1: none of its fields holds a string: there are none$"),
        (
            ['{"body": "x"}'],
            ":bdy",
            r"line 1: no field 'bdy' \(did you mean body\?\); its fields are body$",
        ),
        (
            ['{"text": "x"}', "", '{"body": "x"}'],
            "",
            r"line 3: no field 'text'; its fields are body$",
        ),
        (
            ['{"text": "x"}', '{"text": null}'],
            "",
            r"line 2: the field 'text' is not a string but 'None'$",
        ),
        (['{"text": "x"}', "[" * 100_000], "", r"line 2: this is not JSON"),
        (['{"text": "x"', ""], "", r"line 1: this is not JSON: .*delimiter"),
        (["3"], "", r"line 1: this is not a JSON object"),
    ],
)
def test_a_line_without_the_field_is_named_with_the_fields_it_has(tmp_path, lines, field, said):
    path = write(tmp_path / "a.jsonl", "\n".join(lines))
    with pytest.raises(EigenlensError, match=r"a\.jsonl, " + said):
        documents([f"{path}{field}"])


def test_standard_input_is_text(monkeypatch):
    monkeypatch.setattr(
        sys, "stdin", SimpleNamespace(buffer=io.BytesIO("größere Dinge\r\nund mehr".encode()))
    )
    assert documents(["-"]) == ["größere Dinge\nund mehr"]
    with pytest.raises(EigenlensError, match="named twice"):
        documents(["-", "-"])


def test_a_named_set_gives_all_its_documents_in_an_order_drawn_from_the_seed():
    found = documents(["python-docs"])
    assert sorted(found) == sorted(text("python-docs"))
    assert found == documents(["python-docs"])
    other = documents(["python-docs"], seed=1)
    assert other != found
    assert sorted(other) == sorted(found)


def test_the_seed_orders_files_but_not_what_is_in_them(tmp_path):
    body = paragraphs(12)
    for i in range(12):
        write(tmp_path / f"{i:02}.txt", "\n\n".join(f"{i} {p}" for p in body))
    orders = {tuple(d.split()[0] for d in documents([tmp_path], seed=seed)) for seed in range(4)}
    assert len(orders) > 1
    assert {frozenset(order) for order in orders} == {frozenset(map(str, range(12)))}
    alone = "".join(p.text for p in pieces([tmp_path / "03.txt"], 1000, seed=5)).replace("\n\n", "")
    assert alone == "".join(f"3 {p}" for p in body)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("Straße".encode("latin-1"), "not UTF-8.*0xdf"),
        ("text".encode("utf-16"), "not UTF-8"),
        (b"\x7fELF\x02\x01\0\0\0", "binary"),
        (b"a" * 200_000 + b"\0", "binary"),
        (b"cut in a character \xc3", "not UTF-8"),
    ],
)
def test_what_is_not_text_is_refused(tmp_path, content, message):
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    with pytest.raises(EigenlensError, match=rf"a\.txt is {message}"):
        documents([path])


@pytest.mark.parametrize("content", ["", "\n\n \n"])
def test_an_empty_file_has_no_documents(tmp_path, content):
    assert documents([write(tmp_path / "a.txt", content)]) == []


def test_data_that_is_not_there_is_named(tmp_path):
    with pytest.raises(
        EigenlensError, match=r"no such data: '.*nowhere\.txt'.*python-docs, wikipedia, reviews"
    ):
        documents([tmp_path / "nowhere.txt"])
    with pytest.raises(EigenlensError, match=r"has no text files \(\.jsonl, \.md, \.rst, \.txt\)"):
        documents([tmp_path])

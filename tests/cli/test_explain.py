"""`eigenlens explain` as a user types it: what it prints, what it writes, and how it refuses."""

import io
import json
import re
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from eigenlens import Explanation
from eigenlens.cli.terminal import show
from eigenlens.explanations.methods import METHODS
from explanations.handmade import handmade
from tiny import of_catalogue, tiny_bert, tiny_llama

FEW = ("--methods", "attention,gradient × input,random")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    home = tmp_path_factory.mktemp("explain")
    return SimpleNamespace(
        home=home, bert=tiny_bert(home / "bert"), llama=tiny_llama(home / "llama")
    )


@pytest.fixture
def explain(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return partial(run, "explain")


def strict(text):
    """JSON as the standard has it: no NaN, no infinity."""

    def refuse(constant):
        raise ValueError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_it_prints_tokens_areas_and_a_sentence_and_writes_a_folder_and_a_page(
    explain, world, tmp_path
):
    done = explain(world.bert, "The cat sat on the mat.", "--against", "A dog")
    assert done.code == 0
    made = Explanation.open(tmp_path / "explanation")
    assert made.methods == list(METHODS)
    for name in made.methods:
        [line] = [line for line in done.out.splitlines() if line.startswith(f"{name}: ")]
        first = made.strongest(name)[0]
        assert made.tokens[first].strip() in line and f"{made.scores[name][first]:.3g}" in line
    assert made.sentence in done.out
    assert "low area when the most relevant go first (positive)" in done.out
    for row in made.areas():
        assert any(
            row["method"] in line and f"{row['positive']:.3f}" in line
            for line in done.out.splitlines()
        )
    page = (tmp_path / "explanation" / "explanation.html").read_text(encoding="utf-8")
    assert "Which tokens decide?" in page and "explanation.html" in done.out
    assert "\x1b" not in done.out


def test_as_json(explain, world, tmp_path):
    done = explain(world.llama, "the house of", "--no-deletion", *FEW, "-o", "e", "--json")
    assert done.code == 0
    record = strict(done.out)
    assert record == {**Explanation.open(tmp_path / "e").record(), "page": "e/explanation.html"}
    assert list(record["scores"]) == ["attention", "gradient × input", "random"]
    assert record["deletion"] == []
    listed = (
        (Path(__file__).parents[2] / "docs" / "reference" / "commands.md")
        .read_text()
        .partition("\n## explain\n")[2]
        .partition("\n## ")[0]
    )
    fields = {
        field
        for row in re.findall(r"^\| (`.*?) \|", listed, re.MULTILINE)
        for field in re.findall(r"`(\w+)`", row)
    }
    assert set(record) == fields  # the page of commands leaves nothing out
    assert record["model"]["fingerprint"] and record["versions"]["eigenlens"]


def test_a_text_from_standard_input(explain, world, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"the house of\r\n")))
    assert explain(world.llama, "-", "--no-deletion", *FEW, "-o", "e").code == 0
    assert Explanation.open(tmp_path / "e").facts.data.name == "the house of"


def test_standard_input_that_is_no_utf8(explain, world, tmp_path, monkeypatch):
    """In some locales Python reads such bytes as halves of characters, which no tokenizer takes."""
    monkeypatch.setattr(
        sys, "stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9"), "utf-8", "surrogateescape")
    )
    done = explain(world.bert, "-", "--against", "x")
    assert done.code == 2 and "standard input is no text in UTF-8" in done.err


def test_a_target_by_name(explain, world, tmp_path):
    assert (
        explain(
            world.llama, "the house of", "--target", "dog", "--no-deletion", *FEW, "-o", "e"
        ).code
        == 0
    )
    assert "'dog'" in Explanation.open(tmp_path / "e").name


@pytest.mark.download
def test_a_picture(explain, tmp_path):
    of_catalogue("dinov2-small")
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 255, (60, 80, 3), dtype=np.uint8)).save(tmp_path / "a.png")
    done = explain("dinov2-small", "a.png", "--target", "output", "--no-deletion", *FEW, "-o", "e")
    assert done.code == 0
    made = Explanation.open(tmp_path / "e")
    assert (
        made.grid == (16, 16)
        and made.tokens[:2] == ["cls", "0,0"]
        and made.special == [True] + [False] * 256
    )
    assert made.stored["picture"].startswith("data:image/jpeg;base64,")
    assert "attention: patch " in done.out


def coloured(monkeypatch, capsys, made):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    capsys.readouterr()
    show(made)
    return capsys.readouterr().out


def test_on_a_terminal_tokens_have_a_colour_behind_them(monkeypatch, capsys):
    out = coloured(monkeypatch, capsys, handmade())
    assert "48;2;240;120;96m sat " in out  # the full red of the largest score
    assert "48;2;110;170;235m [SEP] " in out  # the full blue of the most negative
    assert "48;2;255;255;255m the " in out  # the least has white paper
    assert "[CLS]" in out and handmade().sentence in " ".join(out.split())


def test_on_a_terminal_patches_are_maps(monkeypatch, capsys):
    out = coloured(monkeypatch, capsys, handmade(("cls", "0,0", "0,1", "1,0", "1,1"), grid=[2, 2]))
    assert out.count("▀") == 3 * 2  # two columns, and two rows in one character, for three methods
    assert "240;120;96" in out


BAD = {
    "too long": ("bert", ("cat " * 100, "--against", "dog"), "102 tokens"),
    "no such token": ("llama", ("the house", "--target", "unbelievably good"), "not one token"),
    "nothing to compare with": (
        "bert",
        ("the house",),
        "a second text to compare with, against (--against)",
    ),
    "empty": ("bert", ("", "--against", "dog"), "empty"),
    "unknown method": (
        "bert",
        ("cat", "--against", "dog", "--methods", "relevence"),
        "no method 'relevence'",
    ),
    "no method": ("bert", ("cat", "--against", "dog", "--methods", ","), "no method"),
    "unknown model": ("nothing-like-that", ("cat",), "no such model"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_it_refuses_it_names_in_one_sentence(explain, world, tmp_path, what):
    model, given, message = BAD[what]
    done = explain(getattr(world, model, model), *given)
    assert done.code == 2
    assert done.out == ""
    last = done.err.strip().splitlines()[-1]
    assert last.startswith("eigenlens: ") and message in last
    assert "Traceback" not in done.err
    assert not (tmp_path / "explanation").exists()


@pytest.mark.parametrize("text", ["-5 degrees", "-oh no"])
def test_a_text_that_begins_with_a_minus(explain, world, tmp_path, text):
    """Taken for options it is refused with the way to give it, and that way works."""
    done = explain(world.llama, text, "--no-deletion", *FEW)
    message = " ".join(done.err.split())
    assert (
        done.code == 2
        and "a text that begins with - comes last, behind --" in message.lower()
        and "Traceback" not in message
    )
    assert explain(world.llama, "--no-deletion", *FEW, "-o", "e", "--", text).code == 0
    assert Explanation.open(tmp_path / "e").facts.data.name == text


def test_a_limit_of_memory(explain, world):
    done = explain(world.llama, "cat " * 100, "--max-memory", "0.0001")
    assert done.code == 2 and "102 tokens takes 0.000666 GB" in done.err


@pytest.mark.download
def test_a_vision_model_given_text(explain):
    of_catalogue("dinov2-small")
    done = explain("dinov2-small", "a cat sleeps")
    assert done.code == 2 and "picture" in done.err and "Traceback" not in done.err


def test_an_existing_folder_is_overwritten_only_with_force(explain, world, tmp_path):
    given = (world.llama, "the house of", "--no-deletion", *FEW, "-o", "e")
    assert explain(*given).code == 0
    before = (tmp_path / "e" / "explanation.json").read_bytes()
    again = explain(*given)
    assert again.code == 2 and "already exists" in again.err and "--overwrite" in again.err
    assert (tmp_path / "e" / "explanation.json").read_bytes() == before
    assert explain(world.llama, "another house", *given[2:], "--overwrite").code == 0
    assert Explanation.open(tmp_path / "e").facts.data.name == "another house"


def test_a_text_that_wants_to_be_code_is_harmless(explain, world, tmp_path):
    done = explain(world.llama, "<script>alert(1)</script> house", "--no-deletion", *FEW, "-o", "e")
    assert done.code == 0
    page = (tmp_path / "e" / "explanation.html").read_text(encoding="utf-8")
    assert "<script>alert" not in page
    assert page.count("<script") == 4  # the page's own: data, arrays, library, script

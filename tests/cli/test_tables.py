"""How tables are printed: names stay whole, text stands left, notes are broken between words."""

from eigenlens.cli import terminal
from eigenlens.run.result import TitledTable


class Shown:
    """A result of one table."""

    title, sentence, notes = "A result", "It ends here.", ()

    def __init__(self, *tables):
        self.tables = tables

    def printed(self):
        return self.tables

    def view(self, width):
        return []

    def remarks(self):
        return []


def test_headings_are_broken_before_names_are(capsys):
    heading = "a heading of many words"
    row = {"mechanism": "spectral-gap-removal", **{f"{heading} {i}": 0.5 for i in range(8)}}
    terminal.print_table("Wide", [row])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= terminal.WIDTH
    assert any(line.startswith("spectral-gap-removal ") for line in lines)


def test_text_stands_left_and_numbers_right(capsys):
    rows = [
        {"published": "0", "measured": 1.0},
        {"published": "5", "measured": 20.0},
        {"published": "not so in the authors' code", "measured": None},
    ]
    terminal.print_table("", rows)
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith("0 ") and lines[2].rstrip().endswith("  1.000")
    assert lines[3].startswith("5 ") and lines[3].rstrip().endswith(" 20.000")


def test_a_row_without_a_column_keeps_the_others_in_their_places(capsys):
    terminal.print_table("", [{"a": "x", "b": 1, "c": 2}, {"a": "y", "c": 3}])
    assert [line.split() for line in capsys.readouterr().out.splitlines()[2:4]] == [
        ["x", "1", "2"],
        ["y", "–", "3"],
    ]


def test_notes_below_a_table_are_broken_between_words_and_indented(capsys):
    below = "\n".join(f"{i}. {'a word and another ' * 9}".strip() for i in (9, 10))
    terminal.show(Shown(TitledTable("T", [{"a": 1}], below)))
    out = capsys.readouterr().out
    lines = out[out.index("9. ") : out.index("It ends here.")].splitlines()
    assert max(map(len, lines)) <= terminal.WIDTH and " ".join(" ".join(lines).split()) in (
        " ".join(below.split())
    )
    assert lines[1].startswith("   a") or lines[1].startswith("   w")
    assert [line[:4] for line in lines if line[:1].isdigit()] == ["9. a", "10. "]


def test_long_tables_are_printed_when_all_is_asked_for(capsys, tmp_path):
    result = Shown(TitledTable("Long", [{"a": 1, "b": 2}], columns=["a"], long=True))
    terminal.show(result, folder=tmp_path)
    out = capsys.readouterr().out
    assert "Long" not in out and f"eigenlens show {tmp_path} --full" in out
    terminal.show(result, full=True, folder=tmp_path)
    out = capsys.readouterr().out
    assert "Long" in out and "a  b" in out and "--full" not in out

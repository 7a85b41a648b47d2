"""What the terminal prints of a result: lines that fit, and everything where it is asked for."""

from rich.cells import cell_len

from eigenlens.cli import terminal


def check_printed(result, capsys):
    """By default no line of a table or below it is wider than a page; `full` prints every table."""
    capsys.readouterr()
    terminal.show(result)
    sentences = {result.title, result.sentence, *(f"Note: {note}." for note in result.notes)}
    wide = [
        line for line in capsys.readouterr().out.splitlines() if cell_len(line) > terminal.WIDTH
    ]
    assert set(wide) <= sentences, [line for line in wide if line not in sentences]
    terminal.show(result, full=True)
    everything = capsys.readouterr().out
    words = " ".join(everything.split())
    titles = [title for title, name in result.shown if result.tables[name]]
    assert titles and all(title in words for title in titles)
    for table in result.printed():
        assert set(table.columns) <= set(table.rows[0])
        head = next(
            line for line in everything.split(f"{table.title}\n", 1)[1].splitlines() if line.split()
        )
        assert all(name.replace("_", " ") in head for name in table.rows[0]), head

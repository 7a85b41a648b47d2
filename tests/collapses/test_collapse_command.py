"""The command `collapse`: what it prints, draws and refuses."""

import json

import pytest

from eigenlens import cli


@pytest.mark.slow
def test_the_command_prints_draws_and_refuses(world, tmp_path, capsys, monkeypatch):
    model, text = world

    def command(*args):
        monkeypatch.setattr("sys.argv", ["eigenlens", "collapse", *map(str, args)])
        try:
            cli.main()
        except SystemExit as end:
            return end.code, capsys.readouterr()
        return 0, capsys.readouterr()

    small = (
        "--max-inputs",
        4,
        "--max-length",
        12,
        "--paths",
        1,
        "--bounds",
        1,
        "-o",
        tmp_path / "out",
    )
    code, said = command(model, text, *small)
    assert not code, said.err
    assert (
        "(relative residual) after each block" in said.out and "would" in said.out.splitlines()[-5]
    )
    pictures = {path.name for path in (tmp_path / "out" / "pictures").iterdir()}
    assert pictures >= {
        "residual.png",
        "paths.svg",
        "path-residuals.png",
        "bounds.png",
        "metrics.png",
    }
    for by in ("both", "mlp"):
        code, said = command(model, text, *small, "--overwrite", "--variants", "SAN", "--by", by)
        assert not code and "mlp hops" in said.out
    code, said = command(model, text, *small, "--overwrite", "--json", "--variants", "SAN")
    found = json.loads(said.out)
    assert not code and set(found["curves"]) == {"full", "SAN"} and found["sentence"]
    code, said = command(model, text, *small, "--variants", "SAM")
    assert (
        code == 2 and "no variant 'SAM'; there are SAN" in said.err and "Traceback" not in said.err
    )
    code, said = command(model, text, *small)
    assert code == 2 and "already holds a collapse run" in said.err

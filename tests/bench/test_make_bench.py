"""Every bench end to end in its quick form with few mechanisms, and the command."""

import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest
from typer.testing import CliRunner

from eigenlens.attention import registry
from eigenlens.bench import (
    SCALES,
    Bench,
    assigned,
    damage,
    make_bench,
    quality,
    run_bench,
    spectra,
    speed,
)
from eigenlens.bench.assigned import ChoiceScale
from eigenlens.bench.damage import DamageScale
from eigenlens.bench.speed import SpeedScale
from eigenlens.bench.training import LabScale
from eigenlens.cli import app
from eigenlens.errors import EigenlensError
from printed import check_printed

MINE = Path(__file__).parent / "all_alike.py"
NAMES = ["softmax", "window", "sinkhorn", "gated-delta"]
LAB = LabScale(
    ("next bytes", "digits"),
    (0, 1),
    4,
    4,
    length=16,
    width=16,
    layers=1,
    windows=4,
    characters=20_000,
)
TINY = {
    "speed": SpeedScale((16, 32, 64), 2, 4, recurrence=32, seconds=0.0, rounds=2),
    "quality": LAB,
    "damage": DamageScale(("minilm",), 3, 24, (4,)),
    "spectra": LAB,
    "choose": ChoiceScale(
        LabScale(("next bytes",), (0,), 4, 4, length=32, width=16, windows=4, characters=20_000),
        (0.9,),
        ("softmax", "local"),
        2,
    ),
}


@pytest.fixture(scope="module")
def tiny():
    patch = pytest.MonkeyPatch()
    patch.setattr(make_bench, "SCALES", {name: (scale, scale) for name, scale in TINY.items()})
    yield
    patch.undo()


@pytest.fixture(scope="module")
def whole(tiny, tmp_path_factory):
    """All benches, run once."""
    out = tmp_path_factory.mktemp("bench")
    return out, {
        name: run_bench(name, out, quick=True, mechanisms=None if name == "choose" else NAMES)
        for name in SCALES
    }


@pytest.mark.parametrize("name", SCALES)
def test_what_is_printed_fits_a_page(whole, name, capsys):
    check_printed(whole[1][name], capsys)


def test_sizes_are_plain_data_that_a_request_can_be_told_by():
    for pair in SCALES.values():
        assert len({json.dumps(asdict(scale)) for scale in pair}) == len(pair)


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_a_bench_has_rows_a_sentence_and_pictures(whole, name):
    out, found = whole
    result = found[name]
    assert result.rows() and result.sentence.endswith(".") and result.name == name
    charts = result.charts()
    assert all(chart.to_dict() for chart in charts.values()) and "<svg" in result._repr_html_()
    again = Bench.open(out / name)
    assert again.record() == result.record() and again.rows() == result.rows()
    for _, table in result.shown:
        assert result.rows(table) is not None
    with pytest.raises(EigenlensError, match="no table 'other'"):
        result.rows("other")


def test_speed_has_every_length_and_the_yardstick_of_both_directions(whole):
    rows = whole[1]["speed"].rows("lengths")
    assert {row["tokens"] for row in rows} == {16, 32, 64}
    keys = {(row["mechanism"], row["direction"]) for row in rows}
    assert keys == {
        ("torch SDPA", "causal"),
        ("torch SDPA", "both ways"),
        ("softmax", "causal"),
        ("window", "causal"),
        ("sinkhorn", "both ways"),
        ("gated-delta", "causal"),
    }
    assert all(row["milliseconds"] > 0 and row["megabytes"] > 0 for row in rows)
    dense = {row["tokens"]: row["megabytes"] for row in rows if row["mechanism"] == "sinkhorn"}
    # at least the matrix of two heads
    assert dense[64] > 64 * 64 * 2 * 4 / 1e6 and dense[64] > 2 * dense[32]


def test_quality_has_a_row_for_each_that_fits_with_the_spread_of_its_seeds(whole):
    rows = whole[1]["quality"].rows()
    assert [(r["task"], r["mechanism"]) for r in rows] == [
        ("next bytes", "softmax"),
        ("next bytes", "window"),
        ("next bytes", "gated-delta"),
        ("digits", "softmax"),
        ("digits", "window"),
        ("digits", "sinkhorn"),
    ]
    assert all(
        row["loss_low"] <= row["loss"] <= row["loss_high"] and row["share_of_full"] > 0
        for row in rows
    )
    assert any(row["loss_low"] < row["loss_high"] for row in rows)


def test_spectra_look_at_the_models_of_quality(whole, monkeypatch, tmp_path):
    out, found = whole
    assert len(found["spectra"].rows()) == 6 and len(found["spectra"].rows("heads")) == 6 * 4
    stored = list((out / "models").glob("*.safetensors"))
    assert len(stored) >= 6


def test_choices_are_held_against_chance_at_the_same_cost(whole):
    rows = {row["way"]: row for row in whole[1]["choose"].rows()}
    assert len(rows) == len(whole[1]["choose"].rows())
    assert set(rows) == {"all full", "all local", "chosen", "shuffled"}
    assert (
        rows["chosen"]["share"] == pytest.approx(rows["shuffled"]["share"])
        and rows["chosen"]["share"] <= 0.9
    )
    assert rows["all full"]["share"] == 1


@pytest.mark.parametrize(
    ("name", "module", "measuring"),
    [
        ("speed", speed, "_length"),
        ("quality", quality, "_one"),
        ("damage", damage, "_model"),
        ("spectra", spectra, "_one"),
        ("choose", assigned, "_one"),
    ],
)
def test_a_run_that_goes_on_does_not_measure_again(whole, monkeypatch, name, module, measuring):
    out, found = whole
    monkeypatch.setattr(module, measuring, lambda *_: pytest.fail("measured again"))
    again = run_bench(
        name, out, quick=True, mechanisms=None if name == "choose" else NAMES, resume=True
    )
    assert again.record() == found[name].record()


def test_a_folder_of_another_request_is_not_gone_on_with(whole):
    out, _ = whole
    with pytest.raises(EigenlensError, match="another mechanisms"):
        run_bench("damage", out, quick=True, mechanisms=["softmax"], resume=True)
    with pytest.raises(EigenlensError, match="already holds a bench"):
        run_bench("damage", out, quick=True, mechanisms=NAMES)


def test_what_does_not_exist_is_named(tmp_path):
    with pytest.raises(
        EigenlensError, match="no bench 'beauty'; there are speed, quality, damage, spectra, choose"
    ):
        run_bench("beauty", tmp_path)
    with pytest.raises(EigenlensError, match="no mechanism 'hardmax'"):
        run_bench("speed", tmp_path, mechanisms=["hardmax"])
    with pytest.raises(EigenlensError, match="from 2 on, not 1"):
        run_bench("speed", tmp_path, lengths=[1])
    with pytest.raises(EigenlensError, match=r"is not a bench: it has no bench\.json"):
        Bench.open(tmp_path)
    (tmp_path / "bench.json").write_text('{"format": 1}')
    with pytest.raises(EigenlensError, match="is damaged"):
        Bench.open(tmp_path)


def test_the_command_prints_saves_and_takes_a_users_file(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_known", dict(registry._known))
    monkeypatch.setattr(registry, "_aliases", dict(registry._aliases))
    out = tmp_path / "out"
    call = [
        "bench",
        "speed",
        "--quick",
        "-o",
        str(out),
        "--mechanisms",
        "softmax,local",
        "--load",
        str(MINE),
    ]
    done = CliRunner().invoke(app, [*call, "--lengths", "16,32", "--json"])
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout)
    assert {row["mechanism"] for row in record["tables"]["summary"]} == {
        "torch SDPA",
        "softmax",
        "local",
        "all-alike",
    }
    assert {row["tokens"] for row in record["tables"]["lengths"]} == {16, 32}
    section = (
        (Path(__file__).parents[2] / "docs" / "reference" / "commands.md")
        .read_text()
        .split("\n## bench\n")[1]
        .split("\n## ")[0]
    )
    listed = section.split("| JSON field | |")[1]
    assert set(record) == {
        name
        for row in listed.splitlines()
        if "|" in row
        for name in re.findall(r"`(\w+)`", row.split("|")[1])
    }
    assert [path.rsplit("/", 1)[1] for path in record["pictures"]] == [
        "time.png",
        "time.svg",
        "memory.png",
        "memory.svg",
    ]
    shown = CliRunner().invoke(app, [*call, "--lengths", "16,32", "--resume"])
    assert "all-alike" in shown.stdout and record["sentence"][:40] in shown.stdout
    for extra, message in (
        (["--lengths", "a"], "whole numbers"),
        (["speech"], "no bench 'speech'"),
    ):
        wrong = CliRunner().invoke(app, [*call, *extra])
        assert isinstance(wrong.exception, EigenlensError) and message in str(wrong.exception)


def test_a_mechanism_of_a_user_goes_through_the_trained_benches(tiny, tmp_path, monkeypatch):
    from eigenlens.bench import load_file

    monkeypatch.setattr(registry, "_known", dict(registry._known))
    monkeypatch.setattr(registry, "_aliases", dict(registry._aliases))
    load_file(MINE)
    rows = run_bench("spectra", tmp_path / "out", mechanisms=["softmax", "all-alike"]).rows()
    mine = next(row for row in rows if (row["task"], row["mechanism"]) == ("digits", "all-alike"))
    assert mine["effective_rank"] == pytest.approx(1, abs=1e-3) and mine[
        "entropy"
    ] == pytest.approx(1)

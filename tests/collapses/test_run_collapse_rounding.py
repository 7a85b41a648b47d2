"""Residuals of a collapse run that are below what its precision can tell."""

import json

import numpy as np
import pytest
import torch
from transformers import (
    BertConfig,
    BertModel,
)

import eigenlens as el
from collapses.small_runs import SMALL
from eigenlens.cli.terminal import show


@pytest.fixture(scope="module")
def collapsing(world, tmp_path_factory):
    """Runs in float32 and float64 of a BERT that attention alone makes one vector: small weights,
    three blocks.
    """
    folder = tmp_path_factory.mktemp("collapsing")
    torch.manual_seed(0)
    shape = {
        "num_hidden_layers": 3,
        "hidden_size": 32,
        "num_attention_heads": 2,
        "intermediate_size": 64,
    }
    made = BertModel(
        BertConfig(vocab_size=30_522, max_position_embeddings=64, initializer_range=0.1, **shape),
        add_pooling_layer=False,
    )
    made.save_pretrained(folder / "model")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / "model" / name).write_bytes((world[0] / name).read_bytes())
    return {
        double: el.collapse(
            folder / "model", world[1], folder / f"run {double}", float64=double, **SMALL
        )
        for double in (False, True)
    }


def test_what_rounding_hides_is_called_so_and_float64_shows_it(collapsing, capsys, tmp_path):
    """A residual below 8ε of float32 is no figure there; the same run in float64 has the figure,
    far below.
    """
    single, double = collapsing[False], collapsing[True]
    floor = 8 * np.finfo(np.float32).eps
    hidden = single.curves["SAN"].curve("residual")[-1]["mean"]
    true = double.curves["SAN"].curve("residual")[-1]["mean"]
    assert 0 < hidden < floor and true < hidden / 100
    assert "below rounding without both skips" in single.sentence
    assert "below rounding" not in double.sentence
    printed = {}
    for name, made in (("single", single), ("double", double)):
        show(made)
        printed[name] = capsys.readouterr().out
    assert "below rounding" in printed["single"] and f"{hidden:.1e}" not in printed["single"]
    assert f"{true:.1e}" in printed["double"]
    page = single._repr_html_() + single.curves["SAN"]._repr_html_()
    assert "below rounding" in page and f"{hidden:.3g}" not in page
    report = el.report(single, output=tmp_path / "page.html").read_text()
    assert "below rounding" in report and f"<td>{hidden:.4g}</td>" not in report


def test_records_keep_the_number_and_say_that_it_is_rounding(collapsing, tmp_path):
    run = collapsing[False]
    floor = 8 * np.finfo(np.float32).eps
    record = json.loads(json.dumps(run.record()))
    points = [row for rows in record["curves"].values() for row in rows]
    flagged = [row for row in points if row["below_rounding"]]
    assert flagged and all(
        row["metric"] in ("residual", "high_frequency") and 0 <= row["mean"] < floor
        for row in flagged
    )
    residuals = [row for row in points if row["metric"] == "residual"]
    assert all(row["below_rounding"] == (row["mean"] < floor) for row in residuals)
    for rows in (record["paths"]["lengths"], record["paths"]["single"]):
        assert rows and all(row["below_rounding"] == (row["residual"] < floor) for row in rows)
    assert (
        record["facts"]["precision"] == "float32"
        and collapsing[True].stored["precision"] == "float64"
    )


def test_double_precision_has_no_floor(world):
    model, text = world
    deep = el.load(model)
    deep.module = BertModel(
        deep.config.__class__(
            **{**deep.config.to_dict(), "num_hidden_layers": 12, "initializer_range": 0.1}
        )
    )
    deep.module.eval()
    options = {**SMALL, "paths": 0, "bounds": 0, "variants": ["SAN"]}
    single = el.collapse(deep, text, **options).curves["SAN"].curve("residual")
    double = el.collapse(deep, text, **options, float64=True).curves["SAN"].curve("residual")
    assert min(point["mean"] for point in single) > 1e-9  # rounding of float32
    assert double[-1]["mean"] < 1e-12
    assert next(deep.module.parameters()).dtype == torch.float32  # the model in hand is left alone
    assert single[1]["mean"] == pytest.approx(double[1]["mean"], rel=1e-3)

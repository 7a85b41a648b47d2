"""The catalogue and studies as a user types them: what the commands print and what they write."""

import re
import subprocess
import sys
from itertools import combinations

import numpy as np
import pytest
from safetensors.torch import load_file

from cli.commands.typed import SMALL, strict
from eigenlens.data.datasets import DATASETS
from eigenlens.models.catalogue import MODELS
from tiny import some_text, tiny_bert


def test_models_lists_the_catalogue(run):
    listed = strict(run("models", "--json").out)
    assert [m["name"] for m in listed["models"]] == list(MODELS)
    assert [d["name"] for d in listed["data"]] == list(DATASETS)
    for m in listed["models"]:
        entry = MODELS[m["name"]]
        assert (m["kind"], m["layers"], m["heads"]) == (entry.kind, entry.layers, entry.heads)
        assert m["here"] in (True, False)
    table = run("models").out
    assert all(name in table for name in [*MODELS, *DATASETS])


def test_version(run):
    from eigenlens._version import __version__

    assert run("--version").out.strip() == __version__


@pytest.mark.slow
def test_a_study_of_real_weights_is_made_shown_and_drawn(run, tmp_path):
    """From one command to tables and pictures, with every number of every head in the JSON."""
    folder, pictures = tmp_path / "minilm", tmp_path / "pictures"
    made = run("study", "minilm", some_text(tmp_path / "docs.txt"), "-o", folder, *SMALL, "--json")
    assert made.code == 0
    record = strict(made.out)
    assert {"model", "data", "length", "inputs", "seconds", "versions", "heads", "layers"} <= set(
        record
    )
    assert record["model"]["name"] == "minilm"
    assert record["data"]["name"] == "docs.txt"
    assert (record["length"], record["inputs"]) == (16, 24)
    assert {"eigenlens", "torch", "transformers"} <= set(record["versions"])
    assert [(h["layer"], h["head"]) for h in record["heads"]] == [
        (i, j) for i in range(6) for j in range(12)
    ]
    assert [layer["layer"] for layer in record["layers"]] == list(range(6))
    for head in record["heads"]:
        assert 1 <= head["rows_centred_dimension_50"] <= head["rows_centred_dimension_90"] <= 16
        assert 0 < head["rows_centred_held_out_at_1"] <= head["rows_centred_held_out_at_4"] <= 1
        assert head["rows_raw_samples"] == record["data"]["inputs_fit"] * 16
        assert head["matrices_centred_samples"] == record["data"]["inputs_fit"]
    shown = run("show", folder, "--json")
    assert {**record, "pictures": []} == strict(shown.out)
    drawn = run("show", folder, "--pictures", pictures)
    assert drawn.code == 0
    assert "minilm on docs.txt: 24 inputs of 16 tokens" in drawn.out
    assert re.search(r"need \S+ of 16 dimensions for 90 %", drawn.out)
    files = sorted(pictures.iterdir())
    assert f"{len(files)} pictures" in drawn.out
    assert len(files) >= 8
    for file in files:
        start = {".png": b"\x89PNG\r\n\x1a\n", ".svg": b"<svg"}[file.suffix]
        assert file.read_bytes().startswith(start)
        assert file.stat().st_size > 1000


def test_progress_goes_to_standard_error_and_json_alone_to_standard_output(world, warm, tmp_path):
    done = warm(
        "--threads",
        1,
        "study",
        world.model,
        "-",
        "-o",
        tmp_path / "s",
        *SMALL,
        "--json",
        input=world.text.read_text(),
    )
    assert done.returncode == 0
    record = strict(done.stdout)
    assert re.search(r"^reading \d+ texts$", done.stderr, re.MULTILINE)
    same = {k: v for k, v in world.record.items() if k in ("heads", "layers", "stacks", "sites")}
    assert same == {k: record[k] for k in same}


@pytest.mark.slow
def test_what_show_prints_can_be_cut_off(world):
    """`eigenlens show DIR | head -1` ends quietly: no traceback, no complaint."""
    command = f"{sys.executable} -m eigenlens.cli show {world.study} | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.startswith("tiny on a.txt")


def test_only_what_was_asked_for_is_measured(run, world, tmp_path):
    made = run(
        "study", world.model, world.text, "-o", tmp_path / "s", *SMALL, "--only", "rows", "--json"
    )
    heads = strict(made.out)["heads"]
    places = {"stack", "layer", "head"}
    expected = [
        {k: v for k, v in head.items() if k.startswith("rows") or k in places}
        for head in world.record["heads"]
    ]
    assert heads == expected
    assert run("show", tmp_path / "s").code == 0
    again = run(
        "study",
        world.model,
        world.text,
        "-o",
        tmp_path / "m",
        *SMALL,
        "--only",
        "matrices",
        "--json",
    )
    kept = {k for head in strict(again.out)["heads"] for k in head if k.startswith("rows")}
    assert again.code == 0
    assert not kept
    assert run("show", tmp_path / "m").code == 0


def leading(folder, rank):
    """The leading centred eigenvectors of the rows of every head, from the stored moments
    themselves.
    """
    tensors = load_file(folder / "rows.safetensors")
    found = []
    for layer in range(2):
        part = {
            k.rpartition("/")[2]: x
            for k, x in tensors.items()
            if k.startswith(f"fit:encoder/{layer}/")
        }
        mean = part["first"].double() / part["count"]  # (H, n, 1)
        covariance = part["second"].double() / part["count"] - mean @ mean.mT
        found += [np.linalg.eigh(c)[1][:, ::-1][:, :rank] for c in covariance.numpy()]
    return found


def test_compare_says_how_far_eigenspaces_overlap(run, world, tmp_path):
    other = tiny_bert(tmp_path / "other", seed=1)
    folders = [world.study, tmp_path / "a", tmp_path / "b"]
    for folder, model in ((folders[1], world.model), (folders[2], other)):
        assert run("study", model, world.text, "-o", folder, *SMALL, "--only", "rows").code == 0
    found = run("compare", *folders, "--ranks", "4", "--json")
    assert found.code == 0
    record = strict(found.out)
    assert [s["length"] for s in record["studies"]] == [16] * 3
    pairs = [pair for pair in record["pairs"] if pair["level"] == "head"]
    assert len(pairs) == 3
    assert pairs[0]["same_place"] == pytest.approx(1)
    assert pairs[1]["same_place"] < 0.95
    for pair, (one, two) in zip(pairs, combinations(folders, 2)):
        overlaps = np.array(
            [[np.square(a.T @ b).sum() / 4 for b in leading(two, 4)] for a in leading(one, 4)]
        )
        assert pair["overlap"] == pytest.approx(overlaps.mean(), abs=1e-6)
        assert pair["same_place"] == pytest.approx(overlaps.diagonal().mean(), abs=1e-6)
        assert pair["chance"] == pytest.approx(4 / 16)
    assert "best partner" in run("compare", *folders[:2], "--ranks", "4").out

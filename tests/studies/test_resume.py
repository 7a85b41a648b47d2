"""A study that is killed goes on and ends with the identical numbers.

What is there is never lost, never half.
"""

import json
import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel

from eigenlens import EigenlensError, Study, load, study
from eigenlens.data.inputs import Request, prepare
from eigenlens.run.checkpoints import Checkpoints
from run.processes import PATIENCE
from studies.identical import assert_identical
from tiny import some_text, tiny_bert

EXACT = {
    "max_length": 8,
    "max_inputs": 40,
    "batch_size": 2,
    "shard_size": 2,
    "rank": 16,
    "depth_every": 3,
}
SKETCH = {
    "max_length": 8,
    "max_inputs": 110,
    "batch_size": 8,
    "shard_size": 8,
    "rank": 2,
    "depth_every": 3,
}
"""88 fit inputs of the sketch, over twice its 2 + 16 columns."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("resume")


@pytest.fixture(scope="module")
def model(place):
    return load(tiny_bert(place / "tiny"))


@pytest.fixture(scope="module")
def data(place):
    return some_text(place / "a.txt")


@pytest.fixture(scope="module")
def undisturbed(place, model, data):
    """The studies that nobody killed."""
    made = {
        name: study(model, data, place / name, **o)
        for name, o in (("gram", EXACT), ("sketch", SKETCH))
    }
    assert {name: s.stored["options"]["matrices_by"] for name, s in made.items()} == {
        "gram": "gram",
        "sketch": "sketch",
    }
    return made


def die(place, data, folder, options, moments):
    driver = Path(__file__).with_name("killed.py")
    command = [
        sys.executable,
        driver,
        place / "tiny",
        data,
        folder,
        json.dumps(options),
        json.dumps(moments),
    ]
    scratch = folder.with_name("scratch")  # the killed leave their temporary files behind
    scratch.mkdir()
    environment = {**os.environ, "TMPDIR": str(scratch)}
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=1800, env=environment
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize(("form", "options"), [("gram", EXACT), ("sketch", SKETCH)])
def test_killed_at_random_moments_it_ends_with_the_identical_numbers(
    place, data, undisturbed, tmp_path, form, options
):
    rng = random.Random(form)
    moments = [rng.uniform(0.1, 0.9) for _ in range(10)]
    died = die(place, data, tmp_path / "s", options, moments)
    assert died["kills"] == 10
    for finished in [tmp_path / "s", *tmp_path.glob("s [0-9]*")]:
        assert_identical(undisturbed[form].folder, finished)


@pytest.mark.slow
def test_killed_before_any_change_of_the_folder_it_goes_on(
    place, model, data, undisturbed, tmp_path
):
    """From the empty folder to the last file that is removed, every change is a moment to die
    at.
    """
    request = Request(
        (str(data),), max_length=SKETCH["max_length"], max_inputs=SKETCH["max_inputs"]
    )
    # a group for each group of held-out documents
    last = f"held {len(prepare(model, request, tmp_path).groups) - 2}"
    died = die(place, data, tmp_path / "s", SKETCH, last)
    assert died["kills"] >= 30
    assert {None, "pilot 0", "fit 0", last} <= set(died["stages"])
    assert died["stages"].count(last) >= 10
    assert_identical(undisturbed["sketch"].folder, tmp_path / "s")


class Stop(Exception):
    """The work ends here."""


def stopped(model, data, folder, options, after=12, **changes):
    """A study that ends in the middle with checkpoints written, like one that was killed."""

    def progress(_what, done, _total):
        if done > after:
            raise Stop

    with pytest.raises(Stop):
        study(model, data, folder, **{**options, **changes}, progress=progress)


@pytest.fixture
def often(monkeypatch):
    """A checkpoint after every shard."""
    monkeypatch.setattr(Checkpoints, "due", lambda _: True)


def test_a_half_written_study_is_no_study(model, data, undisturbed, tmp_path, often):
    folder = tmp_path / "s"
    stopped(model, data, folder, EXACT)
    with pytest.raises(EigenlensError, match="was interrupted before it was finished"):
        Study.open(folder)
    with pytest.raises(EigenlensError, match="interrupted; go on with resume=True"):
        study(model, data, folder, **EXACT)
    study(model, data, folder, **EXACT, resume=True)
    assert_identical(undisturbed["gram"].folder, folder)


@pytest.mark.slow
@pytest.mark.parametrize("options", [EXACT, SKETCH], ids=["gram", "sketch"])
def test_twelve_layers_go_on_in_their_order(tmp_path, often, options):
    """By their names 10 and 11 would stand before 2, and the sums of the stack would round
    otherwise.
    """
    torch.manual_seed(0)
    sizes = {
        "num_hidden_layers": 12,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "hidden_size": 16,
    }
    model = BertModel(
        BertConfig(vocab_size=100, initializer_range=0.5, **sizes), add_pooling_layer=False
    )
    options = {**options, "diagnostics_every": 6}
    ids = tmp_path / "ids.npy"
    np.save(ids, torch.randint(100, (options["max_inputs"], 8)).numpy())
    whole = study(model, ids, tmp_path / "whole", **options)
    for after in (12, options["max_inputs"] - 4):  # while it fits, and among held-out inputs
        folder = tmp_path / f"stopped {after}"
        stopped(model, ids, folder, options, after)
        study(model, ids, folder, **options, resume=True)
        assert_identical(whole.folder, folder)


def test_all_files_but_the_record_are_no_study(undisturbed, tmp_path):
    for file in undisturbed["gram"].folder.glob("*.safetensors"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(EigenlensError, match=r"no study\.json"):
        Study.open(tmp_path)


def test_a_study_is_overwritten_only_by_force(model, data, undisturbed, tmp_path):
    folder = tmp_path / "s"
    study(model, data, folder, **EXACT)
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    for options in ({}, {"resume": True}):
        with pytest.raises(EigenlensError, match="already holds a study"):
            study(model, data, folder, **EXACT, **options)
    with pytest.raises(EigenlensError, match="over the maximum"):
        study(model, data, folder, **{**EXACT, "max_length": 999}, overwrite=True)
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before
    study(model, data, folder, **{**EXACT, "seed": 1}, only=["rows"], overwrite=True)
    assert Study.open(folder).stored["options"]["request"]["seed"] == 1
    assert {p.name for p in folder.iterdir()} == {
        "study.json",
        "spectra.safetensors",
        "rows.safetensors",
    }


def test_an_interrupted_study_is_begun_anew_by_force(model, data, undisturbed, tmp_path, often):
    folder = tmp_path / "s"
    stopped(model, data, folder, EXACT, seed=5)
    study(model, data, folder, **EXACT, overwrite=True)
    assert_identical(undisturbed["gram"].folder, folder)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"seed": 1}, r"another seed \(--seed\): 0 then, 1 now;"),
        ({"max_length": 9}, r"another max_length \(--max-length\): 8 then, 9 now;"),
        ({"max_inputs": 41}, r"another max_inputs \(--max-inputs\): 40 then, 41 now;"),
        ({"held_out": 0.3}, r"another held_out \(--held-out\): 0.2 then, 0.3 now;"),
        ({"rank": 15}, r"another rank \(--rank\): 16 then, 15 now;"),
        ({"only": ["rows"]}, r"another only \(--only\): .* then, \['rows'\] now;"),
        ({"of": "pattern"}, r"another of \(--of\): scores then, pattern now;"),
        ({"depth_every": 1}, r"another depth_every \(--depth-every\): 3 then, 1 now;"),
    ],
)
def test_a_resumed_study_must_be_the_same_study(model, data, tmp_path, often, changed, message):
    folder = tmp_path / "s"
    stopped(model, data, folder, EXACT)
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    with pytest.raises(EigenlensError, match=message):
        study(model, data, folder, **{**EXACT, **changed}, resume=True)
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before


def test_other_weights_cannot_go_on(data, tmp_path, often):
    def live(seed):
        torch.manual_seed(seed)
        sizes = {
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 16,
            "hidden_size": 16,
        }
        return BertModel(BertConfig(vocab_size=100, **sizes))

    ids = torch.randint(100, (40, 8))
    stopped(live(0), ids, tmp_path / "s", EXACT)
    with pytest.raises(EigenlensError, match="another weights"):
        study(live(1), ids, tmp_path / "s", **EXACT, resume=True)
    study(live(0), ids, tmp_path / "s", **EXACT, resume=True)


def test_a_study_without_checkpoints_yet_is_resumed_from_its_inputs(
    model, data, undisturbed, monkeypatch, tmp_path
):
    monkeypatch.setattr(Checkpoints, "due", lambda _: False)
    folder = tmp_path / "s"
    stopped(model, data, folder, EXACT)
    assert not list((folder / "unfinished").glob("checkpoint-*"))
    study(model, data, folder, **EXACT, resume=True)
    assert_identical(undisturbed["gram"].folder, folder)


@pytest.mark.parametrize("second", [{"resume": True}, {"overwrite": True}])
def test_two_processes_never_share_a_folder(place, model, data, undisturbed, tmp_path, second):
    """A second study in the folder of a running one is refused, and the first one ends
    undisturbed.
    """
    folder = tmp_path / "s"
    begun, go_on, failed = threading.Event(), threading.Event(), []

    def progress(_what, done, _total):
        begun.set()
        go_on.wait(PATIENCE)

    def first():
        try:
            study(load(place / "tiny"), data, folder, **EXACT, progress=progress)
        except Exception as error:
            failed.append(error)

    running = threading.Thread(target=first)
    running.start()
    try:
        assert begun.wait(PATIENCE)
        with pytest.raises(EigenlensError, match="another process is working"):
            study(model, data, folder, **EXACT, **second)
    finally:
        go_on.set()
        running.join()
    assert not failed
    assert_identical(undisturbed["gram"].folder, folder)

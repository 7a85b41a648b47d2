"""The commands as a user types them: what they print, what they write, and how they refuse."""

import json
import math
import os
import re
import shutil
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from eigenlens import Evaluation, Study, plan, study
from eigenlens.data.datasets import DATASETS
from eigenlens.models.catalogue import MODELS
from tiny import some_text, tiny_bert

SMALL = ("--max-inputs", "24", "--max-length", "16")


def strict(text):
    """JSON as the standard has it: no NaN, no infinity."""

    def refuse(constant):
        raise ValueError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A tiny model, a text, and finished studies of it at lengths 16 and 12."""
    home = tmp_path_factory.mktemp("world")
    made = SimpleNamespace(
        home=home, model=tiny_bert(home / "tiny"), text=some_text(home / "a.txt")
    )
    for name, length in (("study", 16), ("shorter", 12)):
        found = study(made.model, made.text, home / name, max_inputs=24, max_length=length)
        setattr(made, name, found.folder)
    made.plan = home / "plan"
    plan(made.study, budget=0.3, max_inputs=4, output_dir=made.plan)
    made.bare = study(
        made.model, made.text, home / "bare", max_inputs=24, max_length=16, only=["rows"]
    ).folder
    made.other = tiny_bert(home / "other", seed=1)
    made.record = strict(json.dumps(Study.open(made.study).record()))
    return made


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


def test_a_plan_is_made_shown_and_evaluated(run, world, tmp_path):
    made = run(
        "plan", world.study, "--budget", 0.4, "-o", tmp_path / "plan", "--max-inputs", 4, "--json"
    )
    assert made.code == 0
    record = strict(made.out)
    assert {"model", "length", "target", "heads", "curve", "parts", "pictures"} <= set(record)
    assert [(h["layer"], h["head"]) for h in record["heads"]] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert all(Path(path).stat().st_size > 1000 for path in record["pictures"])
    shown = run(
        "plan",
        world.study,
        "--error",
        0.1,
        "-o",
        tmp_path / "plan",
        "--max-inputs",
        4,
        "--overwrite",
    ).out
    assert re.search(r"4 heads \(.*\) take \S+ % of the work of exact scores", shown)
    again = run("show", tmp_path / "plan", "--pictures", tmp_path / "pictures").out
    assert again.startswith(shown.partition("\nThe plan is in")[0])
    assert {path.name for path in (tmp_path / "pictures").iterdir()} == {"plan.png", "plan.svg"}
    record = strict(run("show", tmp_path / "plan", "--json").out)
    assert record["heads"] == strict((tmp_path / "plan" / "plan.json").read_text())["heads"]
    assert record["pictures"] == []
    found = strict(
        run("evaluate", world.model, world.text, "--plan", tmp_path / "plan", "--json").out
    )
    assert {row["measure"] for row in found["summary"]} >= {
        "cosine of the embeddings",
        "KL of the patterns",
    }
    assert not (tmp_path / "evaluation").exists()
    table = run(
        "evaluate", world.model, "--plan", tmp_path / "plan", "-o", tmp_path / "evaluation"
    ).out
    assert "total variation of the patterns" in table and "seconds of the whole passes" in table
    assert (
        Evaluation.open(tmp_path / "evaluation").sentence in table
        and str(tmp_path / "evaluation") in table
    )
    forced = run(
        "evaluate",
        world.model,
        "--plan",
        world.plan,
        "-o",
        tmp_path / "evaluation",
        "--overwrite",
        "--json",
    )
    assert strict(forced.out) == Evaluation.open(tmp_path / "evaluation").record()


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_plan_is_evaluated_on_one_to_three_inputs_of_other_data_or_another_length(
    run, world, tmp_path, number
):
    other = some_text(tmp_path / "other.txt", documents=5)
    for given in ((other,), (world.text, "--max-length", 12), (other, "--padding")):
        done = run(
            "evaluate", world.model, *given, "--plan", world.plan, "--max-inputs", number, "--json"
        )
        assert done.code == 0, done.err
        found = strict(done.out)
        assert found["inputs"] == number and found["length"] == (
            12 if "--max-length" in given else 16
        )
        assert (
            0
            < next(
                row
                for row in found["summary"]
                if row["measure"] == "total variation of the patterns"
            )["planned"]
            < 1
        )


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
    assert "fit inputs: " in done.stderr
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


def damaged(world, tmp_path, name, change):
    """A copy of the finished study with one file changed."""
    folder = tmp_path / "damaged"
    shutil.copytree(world.study, folder)
    file = folder / name
    file.write_bytes(change(file.read_bytes()))
    return folder


def flipped(content, at=-100):
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


def model_with(world, tmp_path, change):
    """A copy of the model with other weights."""
    folder = tmp_path / "changed"
    shutil.copytree(world.model, folder)
    change(folder / "model.safetensors")
    return folder


def with_nan(path):
    weights = load_file(path)
    weights["encoder.layer.1.attention.self.query.weight"][3, 5] = math.nan
    save_file(weights, path, metadata={"format": "pt"})


def without_a_layer(path):
    weights = load_file(path)
    save_file(
        {k: x for k, x in weights.items() if "layer.1" not in k}, path, metadata={"format": "pt"}
    )


def as_pickle(path):
    """Weights that would run a command if they were unpickled."""

    class Command:
        def __reduce__(self):
            return (os.mkdir, (str(path.parent / "ran"),))

    path.unlink()
    torch.save({"embeddings": Command()}, path.with_name("pytorch_model.bin"))


def text_of(tmp_path, content):
    path = tmp_path / "given.txt"
    path.write_bytes(content)
    return path


def folder_with(path, **files):
    path.mkdir()
    for name, content in files.items():
        (path / name).write_text(content)
    return path


def interrupted(tmp_path):
    (tmp_path / "half").mkdir()
    return folder_with(tmp_path / "half" / "unfinished", **{"request.json": "{}"}).parent


def cut(content):
    return content[: len(content) // 2]


def other_format(content):
    return content.replace(b'"format": 4', b'"format": 99')


def other_plan(world, tmp_path):
    folder = shutil.copytree(world.plan, tmp_path / "plan")
    (folder / "plan.json").write_text(
        (folder / "plan.json").read_text().replace('"format": 1', '"format": 99')
    )
    return folder


BAD = {
    "no such model": (
        lambda w, t: ("study", "no-such-model", w.text),
        "no such model: 'no-such-model'",
    ),
    "no such hub id": (
        lambda w, t: ("study", "nobody/nothing", w.text),
        "no such model: 'nobody/nothing'",
    ),
    "no model's name": (
        lambda w, t: ("study", "what is this?", w.text),
        "no such model: 'what is this\\?'",
    ),
    "model is a file": (
        lambda w, t: ("study", w.text, w.text),
        "is a file; give the model's folder",
    ),
    "folder without config": (
        lambda w, t: ("study", folder_with(t / "m"), w.text),
        "no config.json",
    ),
    "folder without weights": (
        lambda w, t: ("study", model_with(w, t, Path.unlink), w.text),
        "holds a config but no weights",
    ),
    "config of no model": (
        lambda w, t: (
            "study",
            folder_with(t / "m", **{"config.json": "{", "model.safetensors": ""}),
            w.text,
        ),
        "damaged or cut short|cannot be read",
    ),
    "weights cut short": (
        lambda w, t: (
            "study",
            model_with(w, t, lambda p: p.write_bytes(cut(p.read_bytes()))),
            w.text,
        ),
        r"model\.safetensors is damaged or cut short",
    ),
    "weights with NaN": (
        lambda w, t: ("study", model_with(w, t, with_nan), w.text),
        "hold NaN or infinity, in encoder.layer.1.attention.self.query.weight",
    ),
    "weights missing": (
        lambda w, t: ("study", model_with(w, t, without_a_layer), w.text),
        "lacks 16 of its weights",
    ),
    "weights that run code": (
        lambda w, t: ("study", model_with(w, t, as_pickle), w.text),
        "cannot be loaded",
    ),
    "empty text": (lambda w, t: ("study", w.model, text_of(t, b"")), "the text is empty"),
    "short text": (
        lambda w, t: ("study", w.model, text_of(t, b"a few words")),
        "the text is too short",
    ),
    "binary text": (
        lambda w, t: ("study", w.model, text_of(t, b"\0\1\2" * 999)),
        r"given\.txt is binary",
    ),
    "no UTF-8": (
        lambda w, t: ("study", w.model, text_of(t, b"Stra\xdfe " * 999)),
        r"given\.txt is not UTF-8",
    ),
    "no such text": (lambda w, t: ("study", w.model, t / "nowhere.txt"), "no such data"),
    "standard input twice": (
        lambda w, t: ("study", w.model, "-", "-"),
        "standard input is named twice",
    ),
    "length over the maximum": (
        lambda w, t: ("study", w.model, w.text, "--max-length", 65),
        "a length of 65 is over the maximum of tiny, 64 tokens",
    ),
    "length of nothing": (
        lambda w, t: ("study", w.model, w.text, "--max-length", 0),
        "a length of 0 is too short",
    ),
    "place is a study": (
        lambda w, t: ("study", w.model, w.text, "-o", w.study),
        "already holds a study",
    ),
    "place is a study, resumed": (
        lambda w, t: ("study", w.model, w.text, "-o", w.study, "--resume"),
        "nothing to resume",
    ),
    "place is another folder": (
        lambda w, t: ("study", w.model, w.text, "-o", folder_with(t / "x", a="1"), "--overwrite"),
        "exists and is not a study",
    ),
    "place is a file": (
        lambda w, t: ("study", w.model, w.text, "-o", text_of(t, b"x")),
        "is a file",
    ),
    "place is under a file": (
        lambda w, t: ("study", w.model, w.text, "-o", text_of(t, b"x") / "study"),
        "cannot be written",
    ),
    "place is interrupted": (
        lambda w, t: ("study", w.model, w.text, "-o", interrupted(t)),
        "interrupted; go on with resume=True",
    ),
    "unknown statistic": (
        lambda w, t: ("study", w.model, w.text, "--only", "rows,ranks"),
        "no statistic 'ranks'",
    ),
    "no statistic": (
        lambda w, t: ("study", w.model, w.text, "--only", ","),
        "no statistic is left",
    ),
    "of something": (lambda w, t: ("study", w.model, w.text, "--of", "values"), "not of 'values'"),
    "share of 0": (
        lambda w, t: ("study", w.model, w.text, "--held-out", 0),
        "between 0 and 1, not 0",
    ),
    "share of 1.5": (
        lambda w, t: ("study", w.model, w.text, "--held-out", 1.5),
        "between 0 and 1, not 1.5",
    ),
    "no such device": (lambda w, t: ("study", w.model, w.text, "--device", "abacus"), "device"),
    "no rotary embedding": (
        lambda w, t: ("study", w.model, w.text, "--before-rope"),
        "no rotary embedding",
    ),
    "show nothing": (lambda w, t: ("show", t / "nowhere"), "no such study"),
    "show another folder": (lambda w, t: ("show", folder_with(t / "x", a="1")), "is no study"),
    "show an interrupted study": (
        lambda w, t: ("show", interrupted(t)),
        "was interrupted before it was finished",
    ),
    "show another version": (
        lambda w, t: ("show", damaged(w, t, "study.json", other_format)),
        r"has format 99, written by eigenlens 0\.2\.0, and eigenlens 0\.2\.0 reads format 4",
    ),
    "show a flipped byte": (
        lambda w, t: ("show", damaged(w, t, "spectra.safetensors", flipped)),
        r"is damaged: spectra\.safetensors has changed",
    ),
    "show a file cut short": (
        lambda w, t: ("show", damaged(w, t, "moments.safetensors", cut)),
        r"is damaged: moments\.safetensors is missing or has another size",
    ),
    "show a record cut short": (
        lambda w, t: ("show", damaged(w, t, "study.json", cut)),
        r"study\.json cannot be read",
    ),
    "show a record of nothing": (
        lambda w, t: ("show", damaged(w, t, "study.json", lambda _: b'{"format": 4}')),
        r"is damaged: study\.json",
    ),
    "draw over a file": (
        lambda w, t: ("show", w.study, "--pictures", text_of(t, b"x")),
        "cannot be written",
    ),
    "compare lengths": (
        lambda w, t: ("compare", w.study, w.shorter),
        "different lengths cannot be compared: .*16.*12",
    ),
    "compare one": (lambda w, t: ("compare", w.study), "at least two"),
    "compare another version": (
        lambda w, t: ("compare", w.study, damaged(w, t, "study.json", other_format)),
        "has format 99",
    ),
    "compare damage": (
        lambda w, t: ("compare", w.study, damaged(w, t, "rows.safetensors", flipped)),
        r"is damaged: rows\.safetensors has changed",
    ),
    "compare too much": (
        lambda w, t: ("compare", w.study, w.study, "--ranks", "17"),
        "17 is more than the 16",
    ),
    "compare nothing": (
        lambda w, t: ("compare", w.study, w.study, "--ranks", "4,x"),
        "whole numbers",
    ),
    "budget of 0": (
        lambda w, t: ("plan", w.study, "--budget", 0),
        "budget must lie above 0 and at most at 1, not 0",
    ),
    "budget of 1.5": (lambda w, t: ("plan", w.study, "--budget", 1.5), "at most at 1, not 1.5"),
    "budget of nothing": (lambda w, t: ("plan", w.study), "either a budget or an error"),
    "budget and error": (
        lambda w, t: ("plan", w.study, "--budget", 0.5, "--error", 0.1),
        "either a budget or an error",
    ),
    "plan without moments": (
        lambda w, t: ("plan", w.bare, "--budget", 0.5),
        "was made without moments",
    ),
    "plan of nothing": (lambda w, t: ("plan", t / "nowhere", "--budget", 0.5), "no such study"),
    "plan for another model": (
        lambda w, t: ("plan", w.study, "--budget", 0.5, "--model", w.other),
        "and other has weights",
    ),
    "plan over a plan": (
        lambda w, t: ("plan", w.study, "--budget", 0.5, "-o", w.plan),
        "already exists",
    ),
    "plan by magic": (
        lambda w, t: ("plan", w.study, "--budget", 0.5, "--estimators", "magic"),
        "no estimator 'magic'",
    ),
    "evaluate nothing": (lambda w, t: ("evaluate", w.model, "--plan", t / "nowhere"), "is no plan"),
    "evaluate another model": (
        lambda w, t: ("evaluate", w.other, "--plan", w.plan),
        "the plan was made for tiny",
    ),
    "evaluate another length": (
        lambda w, t: ("evaluate", w.model, w.text, "--plan", w.plan, "--max-length", 20),
        "up to 16 tokens and 20 are asked for",
    ),
    "evaluate over a plan": (
        lambda w, t: ("evaluate", w.model, "--plan", w.plan, "-o", w.plan, "--overwrite"),
        "is the folder of a plan; name another folder for the evaluation",
    ),
    "evaluate into a full folder": (
        lambda w, t: ("evaluate", w.model, "--plan", w.plan, "-o", w.model),
        "already exists; name another folder",
    ),
    "evaluate another version": (
        lambda w, t: ("evaluate", w.model, "--plan", other_plan(w, t)),
        r"has format 99, written by eigenlens 0\.2\.0, and eigenlens 0\.2\.0 reads format 1",
    ),
    "compare somehow": (
        lambda w, t: ("compare", w.study, w.study, "--centring", "off"),
        "no centring 'off'",
    ),
}


def contents(*folders):
    return {
        p: p.read_bytes() if p.is_file() else None
        for folder in folders
        for p in sorted(folder.rglob("*"))
    }


def command_of(case, world, tmp_path):
    """The arguments of a case; a study that names no place gets one that is not there."""
    args = BAD[case][0](world, tmp_path)
    if args[0] == "plan" and "-o" not in args:
        args = (*args, "-o", tmp_path / "out")
    if args[0] == "study":
        place = () if "-o" in args else ("-o", tmp_path / "out")
        args = (*args, *place, *(() if "--max-length" in args else SMALL))
    return args


@pytest.mark.parametrize("case", BAD)
def test_bad_input_ends_with_one_sentence_and_nothing_written(run, world, tmp_path, case):
    args = command_of(case, world, tmp_path)
    before = contents(tmp_path, world.home)
    ended = run(*args)
    assert ended.code == 2
    assert ended.out == "" or args[0] == "show"
    assert ended.err.count("\n") == 1, ended.err
    assert re.match(rf"eigenlens: .*({BAD[case][1]})", ended.err), ended.err
    assert contents(tmp_path, world.home) == before


@pytest.mark.parametrize("case", ["no such model", "weights with NaN"])
def test_bad_input_in_a_shell(world, warm, tmp_path, case):
    """The same in a process of its own, where libraries warn on standard error if they are let."""
    args = command_of(case, world, tmp_path)
    ended = warm("--threads", 1, *args)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert re.fullmatch(rf"eigenlens: .*({BAD[case][1]}).*\n", ended.stderr), ended.stderr
    assert not (tmp_path / "out").exists()


def test_any_flipped_bit_of_the_record_is_noticed(run, world, tmp_path):
    size = (world.study / "study.json").stat().st_size
    for at in np.random.default_rng(0).integers(0, size, 25).tolist():
        folder = damaged(world, tmp_path, "study.json", lambda content, at=at: flipped(content, at))
        ended = run("show", folder)
        shutil.rmtree(folder)
        assert (ended.code, ended.err.count("\n")) == (2, 1), (at, ended)


@pytest.fixture
def disk(tmp_path):
    """A small disk of its own: `disk(size)` mounts or resizes it."""
    place = tmp_path / "disk"
    place.mkdir()

    def mount(size, *options):
        how = ",".join(["remount"] * place.is_mount() + [f"size={size}", *options])
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", how, "tmpfs", place], capture_output=True, text=True
        )
        if done.returncode:
            pytest.skip(f"a disk of a given size cannot be mounted here: {done.stderr.strip()}")
        return place

    yield mount
    if place.is_mount():
        subprocess.run(["umount", "--lazy", place], check=True)


def test_a_disk_too_full_to_begin_is_said_and_left_empty(run, world, disk):
    place = disk("8k")
    ended = run(
        "study",
        world.model,
        world.text,
        "-o",
        place / "out",
        "--max-inputs",
        200,
        "--max-length",
        16,
    )
    assert ended.code == 2
    assert re.fullmatch(r"eigenlens: the disk is full: .*\n", ended.err)
    assert list(place.iterdir()) == []


def test_a_disk_that_fills_up_is_said_and_the_study_goes_on_when_there_is_space(run, world, disk):
    place = disk("40k")
    ended = run("study", world.model, world.text, "-o", place / "out", *SMALL)
    assert ended.code == 2
    assert ended.err.splitlines()[-1].startswith("eigenlens: the disk is full: ")
    assert "Traceback" not in ended.err
    assert "was interrupted" in run("show", place / "out").err
    disk("8m")
    ended = run("study", world.model, world.text, "-o", place / "out", *SMALL, "--resume", "--json")
    assert ended.code == 0
    assert strict(ended.out)["heads"] == world.record["heads"]


def test_a_full_place_for_temporary_files_is_said(world, tmp_path, disk, warm):
    place = disk("16k")
    args = (
        "study",
        world.model,
        world.text,
        "-o",
        tmp_path / "out",
        "--max-inputs",
        600,
        "--max-length",
        16,
    )
    ended = warm("--threads", 1, *args, env={**os.environ, "TMPDIR": str(place)})
    assert ended.returncode == 2
    assert re.fullmatch(r"eigenlens: the disk is full: .*\n", ended.stderr), ended.stderr
    assert not (tmp_path / "out").exists()


def test_a_disk_that_is_read_only_is_said(run, world, disk):
    disk("1m")
    place = disk("1m", "ro")
    ended = run("study", world.model, world.text, "-o", place / "out", *SMALL)
    assert ended.code == 2
    assert re.fullmatch(r"eigenlens: .*/out cannot be written: Read-only file system\n", ended.err)

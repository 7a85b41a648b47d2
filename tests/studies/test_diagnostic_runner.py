"""Diagnostics in the one pass of a study: what they see, what is kept, what is shown."""

import json
import math

import numpy as np
import pytest
import torch

from eigenlens import EigenlensError, Study, compare, load, study
from eigenlens.captures import capture
from eigenlens.cli.terminal import show
from eigenlens.diagnostics import DIAGNOSTICS, CallView, find_diagnostic
from eigenlens.studies.plots import draw
from tiny import of_catalogue, tiny_llama

SMALL = {"max_length": 16, "max_inputs": 24, "batch_size": 5, "rank": 4}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("diagnosing")


@pytest.fixture(scope="module")
def data(text):
    return text


@pytest.fixture(scope="module")
def llama(llama):
    return load(llama)


@pytest.fixture(scope="module")
def made(place, llama, data):
    return study(llama, data, place / "study", **SMALL, diagnostics_every=3)


def finite(record):
    """JSON refuses NaN and infinity."""
    return json.loads(json.dumps(record, allow_nan=False))


def test_a_study_holds_every_diagnostic(made):
    found = Study.open(made.folder).diagnostics
    assert set(found) == {*DIAGNOSTICS, "entropy", "gap"}
    assert all(finding.applies for finding in found.values()), found
    record = finite(made.record())
    assert len(record["heads"]) == 8 and [layer["layer"] for layer in record["layers"]] == [0, 1]
    for finding in found.values():
        where = record["heads"] if finding.level == "head" else record["layers"]
        assert any(f"{finding.name}_{name}" in entry for entry in where for name in finding.words)
        assert finding.sentence.strip().endswith(".")
    assert [entry["name"] for entry in record["diagnostics"]] == list(found)


def test_they_see_every_nth_input_of_all(place, llama, data, made):
    """Fit and held-out inputs count through; batches of 5 and inputs one in 3 do not fit each
    other.
    """
    sinks = made.diagnostics["sinks"]
    assert {n.number for n in sinks.numbers if n.name == "strength"} == {8}
    every = study(llama, data, **SMALL, diagnostics_every=1, only=["sinks"]).diagnostics["sinks"]
    assert {n.number for n in every.numbers if n.name == "strength"} == {24}
    alone = find_diagnostic("sinks")()
    ids = torch.from_numpy(np.concatenate(list(_ids(llama, data))))

    def see(call):
        alone.update(CallView(call))

    with torch.no_grad(), capture(llama.backbone, see):
        llama.backbone(input_ids=ids[::3])
    for a, b in zip(alone.result().numbers, sinks.numbers, strict=True):
        assert (a.at, a.name, a.number) == (b.at, b.name, b.number)
        assert a.mean == pytest.approx(b.mean, abs=1e-6)


def _ids(model, data):
    """The inputs of the study in the order in which it runs them."""
    import tempfile
    from pathlib import Path

    from eigenlens.data.inputs import Request, prepare

    with tempfile.TemporaryDirectory() as folder:
        inputs = prepare(model, Request((str(data),), 16, 24), Path(folder))
        for group in inputs.groups:
            for _, batch in inputs.batches(group, 24):
                yield batch["input_ids"].numpy()


def test_single_diagnostics_and_thresholds(place, llama, data):
    strict = study(llama, data, **SMALL, only=["sinks"], thresholds={"sinks": {"epsilon": 0.99}})
    loose = study(llama, data, **SMALL, only=["sinks"], thresholds={"sinks": {"epsilon": 1e-9}})
    assert (
        list(strict.diagnostics) == ["sinks"] and not strict.has("rows") and not strict.has("depth")
    )
    assert strict.diagnostics["sinks"].settings["epsilon"] == 0.99
    rates = [sum(s.diagnostics["sinks"].values("rate").values()) for s in (strict, loose)]
    assert rates[0] < rates[1] == 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"only": ["sink"]},
            (
                "no statistic 'sink' .did you mean sinks.*; there are rows, .*, and of diagnostics"
                " sinks"
            ),
        ),
        ({"thresholds": {"sinks": {"epsilon": "much"}}}, "epsilon is a number"),
        ({"thresholds": {"sinks": {"eps": 0.1}}}, "sinks has no setting 'eps'"),
        ({"thresholds": {"snks": {}}}, "no diagnostic 'snks'"),
        ({"diagnostics_every": 0}, "every n-th input, with n at least 1, not 0"),
        ({"thresholds": {"sinks": 0.3}}, "the thresholds of sinks are settings by name"),
        ({"thresholds": {"spikes": {"size": math.inf}}}, "size"),
        ({"thresholds": {"induction": {"seed": 10**30}}}, "a seed is a whole number"),
        (
            {"only": ["keys"], "thresholds": {"sinks": {"epsilon": 0.2}}},
            "not among the statistics that were asked for",
        ),
    ],
)
def test_bad_requests_are_refused(llama, data, options, message):
    with pytest.raises(EigenlensError, match=message):
        study(llama, data, **{**SMALL, **options})


def test_how_inputs_are_cut_into_batches_does_not_matter(llama, data):
    """Dear parts see inputs by their place among all, not by their place in a batch."""
    found = [
        study(
            llama, data, **{**SMALL, "batch_size": size}, diagnostics_every=2, only=["diagnostics"]
        ).diagnostics
        for size in (3, 5)
    ]
    for name in DIAGNOSTICS:
        for one, other in zip(found[0][name].numbers, found[1][name].numbers, strict=True):
            assert (one.at, one.name, one.number) == (
                other.at,
                other.name,
                other.number,
            ), name
            assert one.mean == pytest.approx(other.mean, rel=1e-4, abs=1e-6), name
    # of 24 inputs one in 2, of these every second
    assert {n.number for n in found[0]["relevance"].numbers} == {6}


def test_half_precision(llama, data):
    """The default study of a model in bfloat16 runs; what diagnostics find is near what they find
    in float32.
    """
    import copy
    from dataclasses import replace

    half = replace(llama, module=copy.deepcopy(llama.module).to(torch.bfloat16))
    one, other = (study(model, data, **SMALL, diagnostics_every=1) for model in (half, llama))
    finite(one.record())
    assert one.has("matrices") and one.diagnostics["amplifier"].applies
    for place, value in one.diagnostics["sinks"].values("strength").items():
        assert value == pytest.approx(
            other.diagnostics["sinks"].values("strength")[place], abs=0.02
        )


def test_a_window_has_sinks_too():
    """Where no key is seen by half of the queries, those that are seen most count."""
    from transformers import MistralConfig, MistralModel

    shape = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    config = MistralConfig(vocab_size=60, intermediate_size=32, sliding_window=4, **shape)
    ids = np.random.default_rng(0).integers(5, 60, (12, 16))
    found = finite(
        study(
            MistralModel(config).eval(), ids, max_length=16, max_inputs=12, diagnostics_every=1
        ).record()
    )
    assert all(0 < head["sinks_weight"] <= 1 for head in found["heads"])


def test_few_token_ids_make_no_induction_heads():
    """With fewer ids than the block has tokens, tokens would repeat inside it, and chance would
    look like induction.
    """
    from transformers import LlamaConfig, LlamaModel

    shape = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "intermediate_size": 32,
    }
    for vocabulary, applies in ((6, False), (20, True)):
        model = LlamaModel(
            LlamaConfig(vocab_size=vocabulary, bos_token_id=0, eos_token_id=1, **shape)
        ).eval()
        ids = np.random.default_rng(0).integers(2, vocabulary, (12, 16))
        found = study(model, ids, max_length=16, max_inputs=12, only=["induction"]).diagnostics[
            "induction"
        ]
        assert found.applies == applies
        if applies:
            assert max(found.values("prefix").values()) < 0.14
        else:
            assert "too few for a block" in found.note


def test_what_does_not_apply_says_why_and_the_study_goes_on(bert, data, capsys):
    made = study(load(bert), data, **SMALL, only=["diagnostics"])
    assert "gate" in made.diagnostics["amplifier"].note
    finite(made.record())
    show(made)
    printed = capsys.readouterr().out
    assert "Not applicable: Quadratic amplifiers" in printed and "Diagnostics" in printed


def test_scores_before_the_rotary_embedding_leave_the_patterns_as_they_are(llama, data, made):
    before = study(
        llama, data, **SMALL, diagnostics_every=3, before_rope=True, only=["rows", "diagnostics"]
    )
    for name in DIAGNOSTICS:
        assert before.diagnostics[name].numbers == made.diagnostics[name].numbers, name


def test_padding_changes_no_number_of_a_model_that_ignores_it(place, llama, data):
    padded = study(
        llama,
        data,
        max_length=24,
        max_inputs=12,
        padding=True,
        diagnostics_every=1,
        only=["diagnostics", "depth"],
    )
    finite(padded.record())


def test_inputs_of_two_tokens_give_no_nan(llama):
    ids = np.random.default_rng(0).integers(1000, 2000, (8, 2))
    finite(
        study(
            llama,
            ids,
            max_length=2,
            max_inputs=8,
            diagnostics_every=1,
            only=["diagnostics", "depth"],
        ).record()
    )


def test_the_command_takes_thresholds(run, place, data):
    folder = tiny_llama(place / "command")
    asked = (
        "study",
        folder,
        data,
        "--max-length",
        16,
        "--max-inputs",
        24,
        "--only",
        "sinks",
        "--json",
    )
    done = run(*asked, "-o", place / "thresholds", "--thresholds", "sinks.epsilon=1e-9")
    assert done.code == 0 and all(head["sinks_rate"] == 1 for head in json.loads(done.out)["heads"])
    for wrong, message in (
        ("epsilon=0", "such as sinks.epsilon=0.2"),
        ("sinks.epsilon=x", "epsilon is a number"),
    ):
        done = run(*asked, "-o", place / "wrong", "--thresholds", wrong)
        assert (done.code, message in done.err, (place / "wrong").exists()) == (2, True, False)


def test_compare_says_what_changed(run, place, llama, data, made):
    other = study(
        load(tiny_llama(place / "other", seed=1)),
        data,
        place / "other-study",
        **SMALL,
        diagnostics_every=3,
    )
    rows = compare(made, other).changes()
    assert {row["diagnostic"] for row in rows} == set(made.diagnostics)
    row = next(row for row in rows if (row["diagnostic"], row["number"]) == ("sinks", "strength"))
    values = [list(s.diagnostics["sinks"].values("strength").values()) for s in (made, other)]
    assert row["left"] == pytest.approx(np.mean(values[0])) and row["right"] == pytest.approx(
        np.mean(values[1])
    )
    assert row["change"] == pytest.approx(np.mean(np.abs(np.subtract(*values))))
    done = run("compare", made.folder, other.folder)
    assert done.code == 0 and "Diagnostics: the first study" in done.out
    assert finite(json.loads(run("compare", made.folder, other.folder, "--json").out))["changes"]
    alone = [study(llama, data, **SMALL, only=["sinks"]) for _ in range(2)]
    same = compare(*alone)
    assert not same.pairs and all(
        row["change"] == 0 and row["settings"] is None for row in same.changes()
    )
    strict = study(llama, data, **SMALL, only=["sinks"], thresholds={"sinks": {"epsilon": 0.9}})
    assert "but with epsilon 0.3 and 0.9" in compare(alone[0], strict).sentence or not any(
        row["left"] for row in same.changes() if row["number"] == "rate"
    )
    assert compare(alone[0], strict).changes()[0]["settings"] == "epsilon 0.3 and 0.9"
    with pytest.raises(EigenlensError, match="nothing in common"):
        compare(strict, study(llama, data, **SMALL, only=["keys"]))


@pytest.mark.slow
def test_pictures_of_every_diagnostic(made, place):
    names = {path.stem for path in draw(made, place / "pictures")}
    assert names >= {f"diagnostic-{name}" for name in made.diagnostics}


@pytest.mark.parametrize(
    "name",
    [
        "minilm",
        "smollm2",
        "stories15m",
        "dinov2-small",
        "flan-t5-small",
        "whisper-tiny-en",
        "distilbert-gec",
    ],
)
def test_every_model_of_the_catalogue(name, tmp_path):
    model = of_catalogue(name)
    given = {"max_length": 32}
    sound = None
    if name == "whisper-tiny-en":
        sound = _sound(tmp_path / "a.wav")
    made = study(
        model,
        sound,
        max_inputs=3,
        depth_every=3,
        diagnostics_every=3,
        only=["diagnostics", "depth"],
        **({} if name == "dinov2-small" else given),
    )
    record = finite(made.record())
    reads_tokens, gated = (
        model.kind not in {"vision", "audio"},
        name in {"smollm2", "stories15m", "flan-t5-small"},
    )
    for finding in made.diagnostics.values():
        expected = {"induction": reads_tokens, "amplifier": gated}.get(finding.name, True)
        assert finding.applies == expected, (finding.name, finding.note)
        assert bool(finding.note) != expected
        assert all(math.isfinite(number.mean) for number in finding.numbers)
    assert len(record["heads"]) == sum(site.heads for site in made.sites.values())


def _sound(path):
    import wave

    rate = 16_000
    t = np.arange(91 * rate) / rate
    tone = 0.3 * np.sin(2 * np.pi * (200 + 50 * np.sin(2 * np.pi * 0.5 * t)) * t)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((tone * 32767).astype(np.int16).tobytes())
    return path

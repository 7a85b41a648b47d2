"""Diagnostics in the one pass of a study: what they see, and what is kept."""

import numpy as np
import pytest
import torch

from eigenlens import Study, load, study
from eigenlens.captures import capture
from eigenlens.cli.terminal import show
from eigenlens.diagnostics import DIAGNOSTICS, CallView, find_diagnostic
from studies.diagnostic_runner.small import SMALL, finite


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

"""Induction scores of real weights against a loop over eager attention, and a control."""

import json
from functools import cache

import pytest
import torch

from diagnostics.induction_by_loop import NAMES, by_loop
from diagnostics.passes import diagnosed
from eigenlens import load
from eigenlens.captures import Head
from eigenlens.diagnostics import Induction
from eigenlens.diagnostics.induction_probe import uniform_scores
from tiny import of_catalogue


@pytest.fixture(scope="module")
def models():
    """Models of the catalogue, each loaded once."""
    return cache(of_catalogue)


def eager(model, batch):
    """Patterns by layer (B, H, T, T), from the library itself."""
    model.module.set_attn_implementation("eager")
    with torch.no_grad():
        out = model.backbone(**batch, output_attentions=True, use_cache=False)
    model.module.set_attn_implementation("sdpa")
    return out.attentions


@pytest.mark.parametrize("name", ["smollm2", "stories15m"])
def test_scores_of_real_decoders_are_a_loop_over_eager_attention(name, models):
    model = models(name)
    diagnostic = Induction(block=20, inputs=2)
    diagnosed(model, [], diagnostic)
    finding = diagnostic.result()
    (batch,) = diagnostic.batches(model)
    ids, first = batch["input_ids"], len(diagnostic.layout.before)
    assert torch.equal(ids[:, first : first + 20], ids[:, first + 20 : first + 40])
    patterns = eager(model, batch)
    for layer in (0, len(patterns) // 2, len(patterns) - 1):
        for head in range(0, patterns[layer].shape[1], 4):
            loops = [
                by_loop(patterns[layer][b, head], ids[b].tolist(), 20, first) for b in range(2)
            ]
            for score in NAMES:
                expected = sum(found[score] for found in loops) / 2
                assert finding.value(score, "self", layer, head) == pytest.approx(
                    expected, abs=1e-5
                )


@pytest.mark.download
def test_smollm2_has_clear_induction_and_tokens_that_come_once_have_none(models):
    model = models("smollm2")
    diagnostic, control = Induction(inputs=2), Induction(inputs=2, repeated=False)
    diagnosed(model, [], diagnostic)
    diagnosed(model, [], control)
    found, without = diagnostic.result(), control.result()
    prefix = found.values("prefix")
    best = max(prefix, key=prefix.get)
    assert prefix[best] > 0.6 and len(diagnostic.above(found, "prefix")) >= 5
    assert f"(L{best.layer}H{best.head} " in found.sentence and "do induction" in found.sentence
    assert max(without.values("prefix").values()) < 3 * uniform_scores(50, 2)["prefix"]
    assert (
        "Control, every token comes only once" in without.sentence
        and "none of 270 heads" in without.sentence
    )
    table = found.tables["Heads above a threshold"]
    assert {
        Head(r["stack"], r["layer"], r["head"]) for r in table if "prefix" in r["above"]
    } == set(diagnostic.above(found, "prefix"))
    (ids,) = (batch["input_ids"] for batch in control.batches(model))
    assert all(len(set(row.tolist())) == ids.shape[1] for row in ids)
    json.dumps(found.record(), allow_nan=False)
    assert found.plot().to_dict()


def test_an_encoder_that_sees_both_ways_is_scored_by_what_lies_before():
    model = load("minilm")
    diagnostic = Induction(block=12, inputs=2)
    diagnosed(model, [], diagnostic)
    finding = diagnostic.result()
    (batch,) = diagnostic.batches(model)
    ids = batch["input_ids"]
    assert (
        ids[:, 0].tolist() == [101, 101]
        and ids[:, -1].tolist() == [102, 102]
        and ids.shape == (2, 26)
    )
    patterns = eager(model, batch)
    for layer in (0, 5):
        for head in (2, 7):
            loops = [
                by_loop(patterns[layer][b, head, :25, :25], ids[b, :25].tolist(), 12, 1)
                for b in range(2)
            ]
            for score in NAMES:
                expected = sum(found[score] for found in loops) / 2
                assert finding.value(score, "encoder", layer, head) == pytest.approx(
                    expected, abs=1e-5
                )
    assert (
        finding.sentence.startswith("None of 72 heads does induction")
        and "L0H2" in finding.sentence
    )


@pytest.mark.download
def test_an_encoder_decoder_is_probed_on_both_sides_and_cross_attention_is_left_out():
    model = of_catalogue("flan-t5-small")
    diagnostic = Induction(block=16, inputs=2)
    diagnosed(model, [], diagnostic)
    finding = diagnostic.result()
    assert finding.stacks == ("decoder", "encoder")
    (batch,) = diagnostic.batches(model)
    assert batch["input_ids"][0, -1] == 1 and batch["decoder_input_ids"][0, 0] == 0
    assert torch.equal(batch["input_ids"][:, :32], batch["decoder_input_ids"][:, 1:])
    model.module.set_attn_implementation("eager")
    with torch.no_grad():
        out = model.backbone(**batch, output_attentions=True, use_cache=False)
    model.module.set_attn_implementation("sdpa")
    for stack, patterns, ids, first in (
        ("encoder", out.encoder_attentions, batch["input_ids"], 0),
        ("decoder", out.decoder_attentions, batch["decoder_input_ids"], 1),
    ):
        T = first + 32
        for layer, head in ((0, 1), (5, 1), (6, 4)):
            loops = [
                by_loop(patterns[layer][b, head, :T, :T], ids[b, :T].tolist(), 16, first)
                for b in range(2)
            ]
            expected = sum(found["prefix"] for found in loops) / 2
            assert finding.value("prefix", stack, layer, head) == pytest.approx(expected, abs=1e-5)

"""Head relevance: against what the output projection is given, and torch's MultiheadAttention."""

import json
import math

import numpy as np
import pytest
import torch
from torch import nn

from diagnostics.passes import diagnosed, subject_of
from diagnostics.split import assert_parts_make_the_whole
from eigenlens.captures import capture
from eigenlens.diagnostics import CallView
from eigenlens.diagnostics.relevance import Relevance
from tiny import of_catalogue, small_bert, small_llama


def by_loop(given, projection, heads):
    """The median over tokens for each head of what goes into the output projection, (T, H·E), whose
    weight is (C, H·E).
    """
    shares = []
    for token in given:
        parts = token.reshape(heads, -1)
        E = parts.shape[1]
        sizes = np.array(
            [np.abs(projection[:, h * E : h * E + E] @ part).sum() for h, part in enumerate(parts)]
        )
        shares.append(sizes / sizes.sum())
    return np.median(shares, 0)


def given_to(projection, run):
    """What goes into a module in a pass, (B, T, H·E)."""
    kept = []
    hook = projection.register_forward_pre_hook(
        lambda _, given: kept.append(given[0].detach().double().numpy())
    )
    with torch.no_grad():
        run()
    hook.remove()
    return kept[0]


def weighed(model, *batches):
    relevance = Relevance()
    studied = diagnosed(model, batches, relevance)
    return relevance.result(studied.notes["relevance"])


def assert_inputs(finding, stack, layer, projection, run, heads, inputs=None):
    given = given_to(projection, run)
    weight = projection.weight.detach().double().numpy()
    wanted = np.mean([by_loop(given[b], weight, heads) for b in inputs or range(len(given))], 0)
    found = [finding.value("mean", stack, layer, head) for head in range(heads)]
    np.testing.assert_allclose(found, wanted, rtol=1e-4)


def test_an_encoders_heads_are_weighed_by_their_own_projection():
    model = of_catalogue("minilm")
    batch = {"input_ids": torch.randint(1000, 20_000, (3, 10))}
    finding = weighed(model, batch)
    dense = model.backbone.encoder.layer[3].attention.output.dense
    assert_inputs(finding, "encoder", 3, dense, lambda: model.backbone(**batch), 12)
    assert {number.number for number in finding.numbers} == {3}


def test_only_dear_inputs_are_measured_wherever_they_stand():
    model, ids = small_bert(), torch.randint(1, 50, (5, 7))
    studied, relevance = subject_of(model, {"input_ids": ids}), Relevance()
    relevance.begin(studied)
    for chosen, sampled in ((slice(0, 2), []), (slice(2, 5), [0, 2])):
        with (
            torch.no_grad(),
            capture(
                model,
                lambda call, sampled=sampled: relevance.update(CallView(call, sampled=sampled)),
            ),
        ):
            model(input_ids=ids[chosen])
    finding = relevance.result()
    assert {number.number for number in finding.numbers} == {2}
    dense = model.encoder.layer[1].attention.output.dense
    assert_inputs(finding, "encoder", 1, dense, lambda: model(input_ids=ids), 4, [2, 4])


@pytest.mark.download
def test_heads_that_share_values_and_cross_attention():
    model = of_catalogue("smollm2")
    batch = {"input_ids": torch.randint(100, 20_000, (2, 8))}
    projection = model.backbone.layers[20].self_attn.o_proj
    assert_inputs(weighed(model, batch), "self", 20, projection, lambda: model.backbone(**batch), 9)
    model = of_catalogue("flan-t5-small")
    ids = torch.randint(5, 999, (2, 7))
    batch = {"input_ids": ids, "decoder_input_ids": ids[:, :5]}
    projection = model.backbone.decoder.block[2].layer[1].EncDecAttention.o
    assert_inputs(
        weighed(model, batch), "decoder.cross", 2, projection, lambda: model.backbone(**batch), 6
    )


@pytest.mark.download
def test_a_picture_models_heads():
    model = of_catalogue("dinov2-small")
    batch = {"pixel_values": torch.randn(1, 3, 56, 56)}
    finding = weighed(model, batch)
    outputs = [
        m
        for name, m in model.backbone.named_modules()
        if name.endswith(("attention.output.dense", "o_proj"))
    ]
    assert_inputs(finding, "encoder", 5, outputs[5], lambda: model.backbone(**batch), 6)


def test_the_terms_are_those_of_torchs_attention_with_one_head_at_a_time():
    model, ids = small_bert(), torch.randint(1, 50, (1, 9))
    finding = weighed(model, {"input_ids": ids})
    with torch.no_grad():
        H = model.embeddings(ids)
        part, dense = (
            model.encoder.layer[0].attention.self,
            model.encoder.layer[0].attention.output.dense,
        )
        theirs = nn.MultiheadAttention(32, 4, batch_first=True)
        theirs.in_proj_weight.copy_(
            torch.cat([part.query.weight, part.key.weight, part.value.weight])
        )
        theirs.in_proj_bias.copy_(torch.cat([part.query.bias, part.key.bias, part.value.bias]))
        sizes = []
        for head in range(4):
            only = torch.zeros(32)
            only[head * 8 : head * 8 + 8] = 1
            theirs.out_proj.weight.copy_(dense.weight * only)
            theirs.out_proj.bias.zero_()
            sizes.append(theirs(H, H, H)[0].abs().sum(2)[0])
        shares = torch.stack(sizes) / torch.stack(sizes).sum(0)  # (H, T)
    np.testing.assert_allclose(
        [finding.value("mean", "encoder", 0, h) for h in range(4)],
        np.median(shares.numpy(), 1),
        rtol=1e-5,
    )


@pytest.mark.parametrize("number", [1, 7, 8])
def test_the_median_over_inputs_is_right_to_half_a_bin(number):
    model, ids = small_llama(), torch.randint(1, 50, (number, 9))
    batches = [{"input_ids": row[None]} for row in ids]
    finding = weighed(model, *batches)
    projection = model.model.layers[1].self_attn.o_proj
    weight = projection.weight.detach().double().numpy()
    medians = [
        by_loop(given_to(projection, lambda batch=batch: model(**batch))[0], weight, 4)
        for batch in batches
    ]
    for head in range(4):
        assert (
            abs(finding.value("median", "self", 1, head) - np.median(medians, 0)[head])
            <= 0.0005 + 1e-6
        )
        assert finding.value("mean", "self", 1, head) == pytest.approx(
            np.mean(medians, 0)[head], rel=1e-4
        )


def test_padding_does_not_count():
    model, ids = small_bert(), torch.randint(1, 50, (1, 6))
    wide, mask = (
        torch.cat([ids, torch.ones(1, 3, dtype=torch.long)], 1),
        (torch.arange(9) < 6).long()[None],
    )
    alone, padded = (
        weighed(model, {"input_ids": ids}),
        weighed(model, {"input_ids": wide, "attention_mask": mask}),
    )
    assert padded.values("mean") == pytest.approx(alone.values("mean"), rel=1e-4)


def test_one_token_and_heads_that_give_nothing():
    model = small_bert()
    one = weighed(model, {"input_ids": torch.tensor([[5]])})
    assert sum(one.values("mean").values()) == pytest.approx(2)  # the shares of two layers
    nn.init.zeros_(model.encoder.layer[0].attention.output.dense.weight)
    nothing = weighed(model, {"input_ids": torch.tensor([[5, 6]])})
    assert [nothing.value("mean", "encoder", 0, head) for head in range(4)] == [0.25] * 4
    json.dumps(nothing.record(), allow_nan=False)


def test_the_evenness_of_a_layer_is_the_entropy_of_its_medians():
    finding = weighed(of_catalogue("minilm"), {"input_ids": torch.randint(1000, 20_000, (1, 10))})
    (rows,) = finding.tables.values()
    for row in rows:
        each = [finding.value("median", row["stack"], row["layer"], head) for head in range(12)]
        p = np.array(each) / sum(each)
        assert row["evenness"] == pytest.approx(-(p * np.log(p)).sum() / math.log(12))
        assert (row["least"], row["most"], row["heads"]) == (min(each), max(each), 12)
    least = min(rows, key=lambda row: row["evenness"])
    assert f"in L{least['layer']} (evenness {least['evenness']:.2f}" in finding.sentence


def test_a_family_that_is_not_known_is_told():
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1).eval()
    studied = subject_of(model, {"x": torch.randn(1, 3, 8)})
    assert "are not known" in Relevance().begin(studied)


def test_a_pass_in_parts_is_the_pass_whole():
    batches = [{"input_ids": torch.randint(1, 50, (2, 7))} for _ in range(3)]
    assert_parts_make_the_whole(Relevance, small_llama(), batches)

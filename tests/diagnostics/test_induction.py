"""Induction heads: exact scores of heads made by hand, of real weights against a loop over eager
attention, and a control.
"""

import json
from functools import cache

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from diagnostics.passes import diagnosed
from eigenlens import EigenlensError, load
from eigenlens.captures import AttentionCall, Head, Site
from eigenlens.diagnostics import DIAGNOSTICS, CallView, Induction
from eigenlens.diagnostics.induction import scores
from eigenlens.diagnostics.induction_probe import layout_of, probe_batch, uniform_scores
from tiny import of_catalogue, small_bert, small_llama

NAMES = ("stripe", "prefix", "duplicate", "previous")


@pytest.fixture(scope="module")
def models():
    """Models of the catalogue, each loaded once."""
    return cache(of_catalogue)


def by_loop(A, ids, n, first):
    """The definitions, pair by pair: A (T, T), ids (T,), the tokens of the probe from `first`
    on.
    """
    T = len(ids)
    sums, counts = dict.fromkeys(NAMES, 0.0), dict.fromkeys(NAMES, 0)
    for i in range(first, T):
        if i > first:
            sums["previous"] += float(A[i, i - 1])
            counts["previous"] += 1
        if i >= first + n - 1:
            sums["stripe"] += float(A[i, i - n + 1])
            counts["stripe"] += 1
        if i < first + n:
            continue
        for name in ("prefix", "duplicate"):
            counts[name] += 1
        for j in range(first, i):
            if ids[j] == ids[i]:
                sums["duplicate"] += float(A[i, j])
                sums["prefix"] += float(A[i, j + 1])
    return {name: sums[name] / counts[name] for name in NAMES}


def of_pattern(A, ids, n):
    return dict(zip(NAMES, scores(A[None, None].double(), ids[None], n)[0, :, 0].tolist()))


def block_ids(n, repeats):
    return torch.randperm(1000)[:n].repeat(repeats)


def test_a_head_that_always_looks_behind_the_same_place_has_stripe_and_prefix_one():
    n, ids, A = 50, block_ids(50, 2), torch.zeros(100, 100)
    for i in range(100):
        A[i, i - n + 1 if i >= n - 1 else i] = 1
    assert of_pattern(A, ids, n) == {
        "stripe": 1.0,
        "prefix": 1.0,
        "duplicate": 0.0,
        "previous": 0.0,
    }


def test_the_stripe_is_the_whole_diagonal_and_the_prefix_leaves_out_the_first_entry():
    """As TransformerLens averages it: 51 entries of a block of 50 twice, the first of them of the
    first block.
    """
    n, ids = 50, block_ids(50, 2)
    A = torch.rand(100, 100).double().tril().softmax(1)
    diagonal = torch.diagonal(A, offset=1 - n)
    found = of_pattern(A, ids, n)
    assert len(diagonal) == n + 1 and found["stripe"] == pytest.approx(
        float(diagonal.mean()), rel=1e-12
    )
    assert found["prefix"] == pytest.approx(float(diagonal[1:].mean()), rel=1e-12)
    rests = torch.zeros(100, 100)
    rests[:, 0] = 1  # a head that rests on the first token, and does no induction
    assert (
        of_pattern(rests, ids, n)["stripe"] == pytest.approx(1 / 51)
        and of_pattern(rests, ids, n)["prefix"] == 0.0
    )


def test_heads_that_do_one_other_thing_score_one_there():
    ids = block_ids(50, 2)
    copy, before = torch.zeros(100, 100), torch.zeros(100, 100)
    for i in range(100):
        copy[i, max(i - 50, 0)] = before[i, max(i - 1, 0)] = 1
    assert (
        of_pattern(copy, ids, 50)["duplicate"] == 1.0 and of_pattern(copy, ids, 50)["prefix"] == 0.0
    )
    assert (
        of_pattern(before, ids, 50)["previous"] == 1.0
        and of_pattern(before, ids, 50)["stripe"] == 0.0
    )


@pytest.mark.parametrize(("n", "repeats"), [(50, 2), (20, 3), (8, 4)])
def test_uniform_attention_scores_what_is_said(n, repeats):
    T = n * repeats
    A, ids = torch.ones(T, T).tril() / torch.arange(1, T + 1)[:, None], block_ids(n, repeats)
    assert of_pattern(A, ids, n) == pytest.approx(by_loop(A, ids, n, 0), rel=1e-6)
    assert uniform_scores(n, repeats) == pytest.approx(by_loop(A, ids, n, 0), rel=1e-6)


def test_uniform_attention_over_a_block_of_50_is_about_014_and_thresholds_are_ten_times_that():
    exact = sum(1 / t for t in range(51, 101)) / 50
    found = uniform_scores(50, 2)
    assert found["prefix"] == pytest.approx(exact) and round(exact, 3) == 0.014
    assert found["stripe"] == pytest.approx((50 * exact + 1 / 50) / 51)
    settings = Induction().settings
    for name in NAMES:
        assert getattr(settings, name) == pytest.approx(10 * found[name], abs=0.005)
    assert uniform_scores(50, 2, before=1)["stripe"] == pytest.approx(
        sum(1 / t for t in range(51, 102)) / 51
    )


def test_random_patterns_with_chance_repeats_are_the_loop():
    A, ids = torch.rand(30, 30).softmax(1), torch.randint(6, (15,)).repeat(2)
    assert of_pattern(A, ids, 15) == pytest.approx(by_loop(A, ids, 15, 0), rel=1e-6)


def test_of_three_blocks_the_stripe_is_the_nearest_and_the_prefix_all():
    ids, A = block_ids(10, 3), torch.zeros(30, 30)
    for i in range(30):
        A[i, i - 19 if i >= 19 else i] = 1
    found = of_pattern(A, ids, 10)
    # behind the occurrence before the last, which half of them have
    assert found["stripe"] == 0.0 and found["prefix"] == 0.5
    assert found == pytest.approx(by_loop(A, ids, 10, 0))


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
    assert "a control" in without.sentence and "none of 270 heads" in without.sentence
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


@pytest.mark.parametrize("name", ["dinov2-small", "whisper-tiny-en"])
def test_models_that_read_no_tokens_are_told_apart(name):
    model = of_catalogue(name)
    diagnostic = Induction()
    assert diagnostic.batches(model) == ()
    assert "reads no tokens" in layout_of(model, 50, 2)


def test_a_module_without_a_config_is_not_probed():
    model = load(torch.nn.TransformerEncoderLayer(8, 2, batch_first=True))
    assert "reads no tokens" in layout_of(model, 50, 2)


def test_special_ids_and_rows_nobody_trained_are_never_drawn():
    model = load("minilm")
    layout = layout_of(model, 50, 2)
    names = model.tokenizer.convert_ids_to_tokens(layout.ordinary.tolist())
    assert not set(model.tokenizer.all_special_ids) & set(layout.ordinary.tolist())
    assert not any(name.startswith("[unused") for name in names) and len(names) > 29_000
    batch = probe_batch(layout, 3, seed=1)
    again = probe_batch(layout, 3, seed=1)
    assert torch.equal(batch["input_ids"], again["input_ids"])
    assert not torch.equal(batch["input_ids"], probe_batch(layout, 3, seed=2)["input_ids"])
    assert not torch.equal(batch["input_ids"][0], batch["input_ids"][1])


def test_the_block_shrinks_to_what_the_model_reads(bert):
    model = load(bert)  # 64 tokens, 2 of them special
    layout = layout_of(model, 50, 2)
    assert layout.block == 31 and probe_batch(layout, 1, 0)["input_ids"].shape == (1, 64)
    diagnostic = Induction(inputs=1)
    diagnosed(model, [], diagnostic)
    assert (
        len(diagnostic.result().values("stripe")) == 4
        and float(diagnostic.peaks["probe/block"]) == 31
    )
    small = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=50,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=4,
            max_position_embeddings=15,
        )
    )
    assert "reads 15 tokens" in layout_of(load(small), 50, 2)


def test_a_model_without_a_tokenizer_is_probed_by_its_ids():
    for module in (small_llama(), small_bert()):
        diagnostic = Induction(block=10, inputs=3)
        studied = diagnosed(module, [], diagnostic)
        assert studied.notes == {"induction": ""}
        finding = diagnostic.result()
        assert len(finding.numbers) == 2 * 4 * 4 and all(
            0 <= n.mean <= 1 and n.number == 3 for n in finding.numbers
        )
    layout = layout_of(load(small_llama()), 50, 2)
    # fewer ids than places: the block shrinks, and no token comes twice in it
    assert layout.block == len(layout.ordinary) < 50
    batch = probe_batch(layout, 2, 0)["input_ids"]
    assert batch.shape == (2, 2 * layout.block) and all(
        len(set(row.tolist())) == layout.block for row in batch
    )


def seen_of(A, ids, special):
    """A call whose pattern is A (B, H, T, T): its scores are the logarithms."""
    B, H, T, _ = A.shape
    eye = torch.eye(T).expand(B, H, T, T)
    return CallView(
        AttentionCall(Site("self", 0), "self", "x", A.clamp_min(1e-30).log(), eye, eye, 1.0),
        ids,
        50,
    )


def test_splits_merge_to_one_pass_and_a_state_is_read_back_exactly():
    model = load(small_llama())
    layout = layout_of(model, 12, 2)
    ids = probe_batch(layout, 6, 0)["input_ids"]
    A = torch.rand(6, 3, 24, 24).tril()
    A = A / A.sum(-1, keepdim=True)

    def fed(*parts):
        made = Induction(block=12)
        made.begin(type("StudiedModel", (), {"model": model})())
        for part in parts:
            made.update(seen_of(A[part], ids[part], layout.special))
        return made

    whole = fed(slice(0, 6))
    left, middle, right = fed(slice(0, 2)), fed(slice(2, 3)), fed(slice(3, 6))
    left.merge(middle)
    left.merge(right)
    other, last = fed(slice(2, 3)), fed(slice(3, 6))
    other.merge(last)
    first = fed(slice(0, 2))
    first.merge(other)
    for name, x in whole.sums.items():
        torch.testing.assert_close(left.sums[name], x)
        torch.testing.assert_close(first.sums[name], x)
    again = Induction.from_state(left.state(), block=12)
    assert again.result().record() == left.result().record()
    loops = [by_loop(A[b, 1], ids[b].tolist(), 12, 0)["prefix"] for b in range(6)]
    assert whole.result().value("prefix", "self", 0, 1) == pytest.approx(sum(loops) / 6, rel=1e-5)


def test_cross_attention_and_calls_without_ids_are_skipped():
    model = load(small_llama())
    made = Induction(block=12)
    A, ids = (
        torch.rand(1, 2, 24, 24).softmax(-1),
        probe_batch(layout_of(model, 12, 2), 1, 0)["input_ids"],
    )
    with pytest.raises(EigenlensError, match="begin"):
        made.update(seen_of(A, ids, ()))
    made.begin(type("StudiedModel", (), {"model": model})())
    made.update(seen_of(A, None, ()))
    short = seen_of(A[:, :, :10, :10], ids[:, :10], ())
    made.update(short)
    assert not made.sums


def test_settings_are_checked_and_it_is_registered():
    assert DIAGNOSTICS["induction"] is Induction
    for wrong in (
        {"block": 3},
        {"repeats": 1},
        {"inputs": 0},
        {"prefix": 0.0},
        {"previous": 1.5},
        {"blok": 3},
    ):
        with pytest.raises(EigenlensError):
            Induction(**wrong)

"""Plans of blocks for long inputs: made from a study, kept, applied and evaluated."""

import json
import shutil

import numpy as np
import pytest
import torch

import eigenlens as el
from eigenlens.attention.blocks import block_attention
from tiny import some_text


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("long")


@pytest.fixture(scope="module")
def study(place, llama):
    return el.study(
        llama,
        some_text(place / "text.txt", documents=40),
        place / "study",
        max_length=32,
        max_inputs=20,
        only=["moments", "rows"],
    )


@pytest.fixture(scope="module")
def blocks(place, study):
    return el.plan(study, budget=0.6, blocks=True, max_length=768, output_dir=place / "blocks")


def ids(length):
    return torch.randint(1000, 20_000, (1, length), generator=torch.Generator().manual_seed(1))


def test_every_head_has_a_threshold_and_the_budget_is_kept(blocks):
    assert len(blocks.choices) == 8 and blocks.work <= 0.6 + 1e-9
    pairs = [(c.layer, c.head // 2, c.settings["threshold"]) for c in blocks.choices]
    assert len(set(pairs)) == 4  # one threshold per key-value head


def test_a_budget_for_everything_is_dense(study, llama):
    dense = el.plan(study, budget=1.0, blocks=True, max_length=640)
    assert {choice.estimator for choice in dense.choices} <= {"exact", "blocks"}
    model = el.load(llama).module
    with torch.no_grad():
        before = model(ids(700)).logits
        with dense.applied(model):
            after = model(ids(700)).logits
    assert (after - before).abs().max() < 0.05 * before.abs().max()


def test_the_planned_model_is_the_block_attention_of_every_layer(place, blocks, llama):
    """Against a forward in which every layer is the dense masked reference with the settings of the
    plan.
    """
    again, model = el.Plan.open(place / "blocks"), el.load(llama).module
    assert again.blocks == blocks.blocks and again.rows() == blocks.rows()

    def reference(call):
        return block_attention(
            call.q, call.k, call.v, again.blocks.sites[call.site], call.scale, form="reference"
        )

    with torch.no_grad():
        plain = model(ids(768)).logits
        with el.replace_attention(model.model, reference):
            expected = model(ids(768)).logits
        with again.applied(model):
            planned = model(ids(768)).logits
        short = model(ids(100)).logits
        with again.applied(model):
            torch.testing.assert_close(model(ids(100)).logits, short)  # nothing to save there
    torch.testing.assert_close(planned, expected, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(planned, plain, atol=1e-3)


def test_registered_it_stays_with_the_model(blocks, llama):
    model = el.load(llama).module
    with torch.no_grad():
        with blocks.applied(model):
            expected = model(ids(768)).logits
        el.attention.register("blocks-in-a-test", blocks.mechanism(model))
        model.set_attn_implementation("blocks-in-a-test")
        assert torch.equal(model(ids(768)).logits, expected)
        padded = torch.ones(1, 768, dtype=torch.long)
        padded[:, :9] = 0
        masked = model(ids(768), attention_mask=padded).logits
        model.set_attn_implementation("sdpa")
        # a mask: exact
        torch.testing.assert_close(
            masked[:, 9:], model(ids(768), attention_mask=padded).logits[:, 9:]
        )


def test_it_is_evaluated_beside_the_unchanged_model(place, blocks, llama):
    found = el.evaluate(llama, plan=place / "blocks", max_inputs=1)
    rows = {row["measure"]: row for row in found.rows()}
    assert 0 < rows["relative error of the attention output"]["planned"] < 1
    assert rows["perplexity"]["plain"] > 1 and rows["perplexity"]["change"] is not None
    assert found.facts.length == 768 and len(found.heads) == 8
    found.plot().to_dict()
    blocks.plot().to_dict()


@pytest.mark.slow
@pytest.mark.parametrize("length", [1024, 1100])
def test_the_sentence_has_the_work_that_was_done_beside_the_planned(place, blocks, llama, length):
    """With the identity for values the output is the pattern.

    The pairs worked on are those that are not zero.
    """
    token_ids = np.random.default_rng(0).integers(1000, 1010, (2, length))
    np.save(place / "few_words.npy", token_ids)
    found = el.evaluate(
        llama, place / "few_words.npy", plan=blocks, max_inputs=2, max_length=length
    )
    shares = []

    def count(call):
        settings = blocks.blocks.sites[call.site]
        block, T = settings.query_block, call.q.shape[2]
        whole = -(-T // block) * block  # zeros fill the last block
        q, k = (torch.nn.functional.pad(x, (0, 0, 0, whole - T)) for x in (call.q, call.k))
        unit = torch.eye(whole).expand(len(q), k.shape[1], whole, whole)
        pattern = block_attention(q, k, unit, settings, call.scale, form="reference")
        own = whole // block * block * (block + 1) / 2
        past = (pattern != 0).sum((2, 3)).double().mean(0) - own  # (H,)
        sampled = whole**2 / 2 * settings.samples / block / 2
        share = (past + whole * block / 2 + sampled) / (T**2 / 2)
        shares.append(
            torch.where(torch.tensor(settings.thresholds).repeat_interleave(2) > 0, share, 1.0)
        )

    model = el.load(llama)
    with torch.no_grad(), el.capture(model.backbone, count):
        model.module(torch.from_numpy(token_ids))
    counted = torch.cat(shares)
    torch.testing.assert_close(
        torch.tensor([head["work"] for head in found.heads]).double(), counted, atol=1e-6, rtol=1e-6
    )
    assert abs(counted.mean() - blocks.work) > 0.01
    assert (
        f"This takes {100 * counted.mean():.1f} % of the work of causal attention"
        f" ({100 * blocks.work:.1f} % were planned)" in found.sentence
    )
    assert found.value("share of the work of causal attention, at fitting") == pytest.approx(
        blocks.work
    )


def test_inputs_too_short_for_blocks_take_all_of_the_work(place, blocks, llama):
    found = el.evaluate(llama, place / "text.txt", plan=blocks, max_inputs=1, max_length=256)
    assert {head["work"] for head in found.heads} == {
        1.0
    } and "This takes 100.0 % of the work" in found.sentence


def test_generation_goes_on_with_the_model_s_own_attention(blocks, llama):
    model = el.load(llama).module
    with torch.no_grad(), blocks.applied(model):
        out = model.generate(ids(600), max_new_tokens=3, do_sample=False)
    assert out.shape[1] == 603


def test_what_cannot_be_planned_is_refused(place, study, bert):
    with pytest.raises(el.EigenlensError, match="saves nothing at 512 tokens"):
        el.plan(study, budget=0.5, blocks=True, max_length=512)
    with pytest.raises(el.EigenlensError, match="must be above 0"):
        el.plan(study, budget=0.0, blocks=True)
    encoder = el.study(
        bert, place / "text.txt", max_length=24, max_inputs=20, only=["rows", "moments"]
    )
    with pytest.raises(el.EigenlensError, match="causal language models, and bert is none"):
        el.plan(encoder, budget=0.5, blocks=True)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"blocks": True}, r"needs a budget, such as budget=0\.3 \(--budget 0\.3\)"),
        ({"blocks": True, "error": 0.1}, "takes only a budget, and no error"),
        ({"blocks": True, "budget": 0.5, "error": 0.1}, "takes only a budget, and no error"),
        (
            {"blocks": True, "budget": 0.5, "estimators": "mean", "seed": 1},
            "takes only a budget, and no estimators and no seed",
        ),
        ({"budget": 0.5, "max_length": 640}, "a plan has the length of its study"),
    ],
    ids=["no budget", "an error", "both", "estimators", "a length without blocks"],
)
def test_options_that_make_no_sense_together_are_refused(study, given, said):
    with pytest.raises(el.EigenlensError, match=said):
        el.plan(study, **given)


def test_a_plan_that_calls_a_threshold_a_bar_is_still_opened(place, blocks, tmp_path):
    """As version 0.1.0 wrote it."""
    shutil.copytree(place / "blocks", tmp_path / "old")
    record = json.loads((tmp_path / "old" / "plan.json").read_text())
    for head in record["heads"]:
        head["settings"] = {"bar": head["settings"].pop("threshold")}
    (tmp_path / "old" / "plan.json").write_text(json.dumps(record))
    old = el.Plan.open(tmp_path / "old")
    assert old.rows() == blocks.rows() and old.blocks == blocks.blocks

"""Patterns kept with a plan: the model's own, and those of every candidate, with the tokens they
belong to.
"""

import json
import shutil
import wave
from dataclasses import astuple, replace

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import (
    Dinov2WithRegistersConfig,
    Dinov2WithRegistersModel,
    T5Config,
    T5ForConditionalGeneration,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)

import eigenlens as el
from eigenlens.captures import Head
from eigenlens.data.facts import DataFacts
from eigenlens.data.inputs import Inputs, Request, prepare
from eigenlens.data.split import FIT
from eigenlens.data.token_text import token_texts
from eigenlens.models.facts import ModelFacts
from eigenlens.models.load import Model
from eigenlens.plans.held_out import HeldOut
from tiny import VOCABULARY, of_catalogue, small_llama, some_text, tiny_bert, tiny_llama

HOSTILE = [
    "</script><script>alert(1)</script>",
    "datum.x'] + \"",
    "\u202eabc",
    "\n",
    "",
    "\ud800",
    "👩‍👩‍👧",
    "x" * 10_000,
    "[PAD]",
    " a",
]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("examples")


@pytest.fixture(scope="module")
def bert(place):
    """A model of two layers, its study, and a plan whose examples are all of the inputs it was
    chosen on.
    """
    folder, text = tiny_bert(place / "bert"), some_text(place / "text.txt", documents=30)
    study = el.study(folder, text, place / "study", max_length=24, max_inputs=120, rank=8)
    return folder, study, el.plan(study, budget=0.4, max_inputs=3, output_dir=place / "plan")


def held_out_ids(plan, model, scratch):
    """The ids of every held-out input the plan may have seen, with its document, and those of the
    fit inputs.
    """
    stored = plan.stored["study"]["request"]
    scratch.mkdir()
    inputs = prepare(model, Request.from_record(stored), scratch)
    rows = [
        np.flatnonzero(np.isin(inputs.buckets, plan.stored["groups"])),
        np.flatnonzero(inputs.buckets == FIT),
    ]
    return [(inputs.make(np.array([row])), inputs.documents[row]) for row in rows[0]], [
        inputs.make(rows[1])
    ]


def words(tokenizer, ids):
    return tuple(tokenizer.decode([i]) for i in ids)


def matched(plan, model, scratch, name="input_ids", stack="encoder"):
    """For each example the one batch of a held-out input that has its tokens."""
    batches, _ = held_out_ids(plan, model, scratch)
    found = []
    for tokens in plan.examples.tokens:
        n = len(tokens[stack])
        same = [
            (b, d)
            for b, d in batches
            if words(model.tokenizer, b[name][0].tolist())[:n] == tokens[stack]
        ]
        assert len(same) == 1
        found += same
    return found


def check_patterns(plan, model, batches, attentions):
    """True patterns against the model's eager attention, reconstructed ones against the plan's
    scores, head by head.
    """
    examples, moved = plan.examples, 0.0
    n = examples.true.shape[-1]
    for i, batch in enumerate(batches):
        own = attentions(batch)  # stack → layers of (1, H, T, T)
        with torch.no_grad(), el.capture(model.backbone) as calls:
            model.backbone(**batch)
        for p, (stack, layer, head) in enumerate(map(astuple, examples.heads)):
            torch.testing.assert_close(
                examples.true[i, p].float(),
                own[stack][layer][0, head, :n, :n],
                atol=6e-4,
                rtol=1e-3,
            )
            call = next(
                call for call in calls if (call.site.stack, call.site.layer) == (stack, layer)
            )
            scores = (
                plan.scores(call)
                .scores[0, head]
                .masked_fill(~call.valid().expand(1, call.heads, -1, -1)[0, head], -1e30)
            )
            expected = (
                torch.softmax(scores, -1) * call.valid().expand(1, call.heads, -1, -1)[0, head]
            )
            true, made = examples.patterns(i, p)
            torch.testing.assert_close(made, expected[:n, :n], atol=6e-4, rtol=1e-3)
            moved = max(moved, float((true - made).abs().max()))
    assert moved > 0.01  # the plan does change patterns, so the two checks above are two


def eager_of(model, stacks=("encoder",)):
    model.module.set_attn_implementation("eager")
    names = ("attentions",) if len(stacks) == 1 else ("encoder_attentions", "decoder_attentions")

    def attentions(batch):
        with torch.no_grad():
            out = model.module(**batch, output_attentions=True)
        return {stack: out[name] for stack, name in zip(stacks, names)}

    return attentions


def test_patterns_and_tokens_are_those_of_the_model(bert, tmp_path):
    folder, _, plan = bert
    model = el.load(folder)
    found = matched(plan, model, tmp_path / "spool")
    check_patterns(plan, model, [batch for batch, _ in found], eager_of(el.load(folder)))


def test_the_inputs_are_held_out(bert, tmp_path):
    folder, _, plan = bert
    model = el.load(folder)
    assert len(matched(plan, model, tmp_path / "spool")) == 3
    _, (fit,) = held_out_ids(plan, model, tmp_path / "again")
    fitted = {words(model.tokenizer, row) for row in fit["input_ids"].tolist()}
    assert len(fitted) > 50 and not fitted & {tokens["encoder"] for tokens in plan.examples.tokens}


@pytest.mark.parametrize(
    ("documents", "number", "expected"),
    [
        ([0, 1, 1, 1, 2, 3], 6, [1, 4, 5]),  # one of each document
        # the plan saw two documents only: a second input of one of them
        ([0, 1, 1, 1, 2, 3], 3, [1, 4, 2]),
        ([0, 5, 5, 5, 4, 4], 6, [1, 4, 2]),
        ([0, 1, 2, 2, 2, 2], 2, [1, 4]),
    ],
)
def test_the_inputs_are_of_different_documents_where_possible(documents, number, expected):
    """Input 0 is fit, 1 to 3 are one held-out group, 4 and 5 another; the plan takes them in
    turn.
    """
    inputs = Inputs(
        np.array([FIT, 0, 0, 0, 1, 1]),
        np.array(documents),
        8,
        lambda rows: {"rows": torch.from_numpy(rows)},
        DataFacts("none"),
    )
    held = HeldOut(Model(ModelFacts("none"), torch.nn.Identity()), inputs, [0, 1], 1, [])
    assert held.apart(number, 3)["rows"].tolist() == expected


def test_every_candidate_s_patterns_lose_what_its_figure_says(bert):
    """The examples are all inputs of this plan and whole ones: ½ Σ|p̂ − p| over their rows is each
    candidate's figure.
    """
    examples = bert[2].examples
    I, P, C, n, _ = examples.estimated.shape
    assert (I, P, n) == (3, 4, 24) and len(examples.candidates) == C > 25
    lost = (examples.estimated.double() - examples.true.double()[:, :, None]).abs().sum(
        (0, 3, 4)
    ) / (2 * I * n)
    np.testing.assert_allclose(examples.total_variation, lost.numpy(), atol=1e-3)
    for p, choice in enumerate(sorted(bert[2].choices, key=lambda choice: choice.total_variation)):
        assert examples.heads[p] == Head(choice.stack, choice.layer, choice.head)
        chosen = examples.chosen[p]
        assert choice.estimator == ("exact" if chosen is None else examples.candidates[chosen][0])
        if chosen is not None:
            assert examples.work[p, chosen] == choice.work
            assert examples.total_variation[p, chosen] == choice.total_variation


@pytest.mark.slow
def test_heads_are_spread_from_the_best_to_the_worst(place):
    """Real weights, 72 heads: six of them at the fifths of what the plan leaves."""
    model = of_catalogue("minilm")
    study = el.study(
        model, place / "text.txt", max_length=64, max_inputs=24, only=["rows", "moments"]
    )
    plan = el.plan(study, budget=0.3, model=model, max_inputs=4, estimators=["joint", "adaptive"])
    left = sorted(choice.total_variation for choice in plan.choices)
    of = {choice.at: choice.total_variation for choice in plan.choices}
    lost = [of[head] for head in plan.examples.heads]
    assert len(set(plan.examples.heads)) == 6 and plan.examples.true.shape[2:] == (48, 48)
    for i, value in enumerate(lost):
        assert left[int(71 * i / 5)] <= value <= left[-(-71 * i // 5)]
    rows = plan.examples.true.float().sum(-1)
    assert 0.5 < float(rows.mean()) <= 1.001  # 48 of 64 keys


def test_the_best_within_a_budget_is_found_by_looking_at_all(bert):
    examples = bert[2].examples
    for head in range(len(examples.heads)):
        for budget in (0.0, 0.03, 0.1, 0.25, 0.4, 1.0):
            within = [
                (examples.total_variation[head, c], c)
                for c in range(len(examples.candidates))
                if examples.work[head, c] <= budget + 1e-9
            ]
            assert examples.best(head, budget) == (min(within)[1] if within else None)
    index = examples.at(0, "joint", 0.25)
    assert examples.candidates[index] == ("joint", 0.25)
    assert examples.at(0, "joint", 0.26) is None and examples.candidates[
        examples.at(0, "mean", None)
    ] == ("mean", None)


def test_rows_are_the_tensors_with_their_tokens(bert):
    examples = bert[2].examples
    candidate = examples.at(1, "key-pca", 0.1)
    rows = examples.rows(2, 1, candidate)
    assert len(rows) == 24 * 24
    row = rows[5 * 24 + 7]
    assert (row["query"], row["key"]) == (5, 7)
    tokens = examples.tokens[2]["encoder"]
    assert (row["query_token"], row["key_token"]) == (tokens[5], tokens[7])
    assert row["true"] == float(examples.true[2, 1, 5, 7])
    assert row["reconstructed"] == float(examples.estimated[2, 1, candidate, 5, 7])
    assert row["difference"] == pytest.approx(row["reconstructed"] - row["true"])


def test_wrong_indices_are_refused(bert):
    examples = bert[2].examples
    for wrong, says in (
        ({"input": 3}, "no input 3"),
        ({"head": -1}, "no head -1"),
        ({"candidate": 999}, "no candidate 999"),
    ):
        with pytest.raises(el.EigenlensError, match=says):
            examples.rows(**wrong)


def test_causal_models_with_grouped_queries(place, tmp_path):
    folder = tiny_llama(place / "llama")
    model = el.load(folder)
    study = el.study(model, place / "text.txt", max_length=20, max_inputs=60, rank=8)
    plan = el.plan(study, budget=0.4, model=model, max_inputs=6)
    examples = plan.examples
    assert not examples.true.triu(1).any()
    assert not torch.nan_to_num(examples.estimated).triu(1).any()
    # not for causal models
    unable = [c for c, (name, _) in enumerate(examples.candidates) if name == "cur"]
    assert (
        examples.estimated[:, :, unable].isnan().all() and np.isinf(examples.work[:, unable]).all()
    )
    assert examples.at(0, "cur", 0.25) is None and examples.best(0, 1.0) not in unable
    with pytest.raises(el.EigenlensError, match=r"cur at .* cannot serve this head"):
        examples.rows(candidate=unable[0])
    stack = examples.heads[0].stack
    found = matched(plan, model, tmp_path / "spool", stack=stack)
    check_patterns(plan, model, [batch for batch, _ in found], eager_of(el.load(folder), (stack,)))


def test_padding_has_no_pattern(place, tmp_path):
    folder, text = tiny_bert(place / "padded", seed=2), tmp_path / "short"
    text.mkdir()
    for i in range(30):
        (text / f"{i}.txt").write_text(
            " ".join(["one", "word", "after", "another"][j % 4] for j in range(4 + i % 7)) + f" {i}"
        )
    study = el.study(folder, text, max_length=16, max_inputs=30, padding=True, rank=4)
    examples = el.plan(study, budget=0.5, max_inputs=4).examples
    for i, tokens in enumerate(examples.tokens):
        real = [word != "[PAD]" for word in tokens["encoder"]]
        assert 0 < sum(real) < 16
        for pattern in (examples.true[i, 0], examples.patterns(i, 0)[1]):
            sums = pattern.float().sum(-1)
            torch.testing.assert_close(
                sums, torch.tensor(real, dtype=torch.float), atol=5e-3, rtol=0
            )
            assert not pattern[:, ~torch.tensor(real)].any()


def test_both_stacks_of_an_encoder_decoder_have_their_tokens(place, tmp_path):
    tokenizer = of_catalogue("minilm").tokenizer
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=VOCABULARY,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
    )
    module = T5ForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(2.5 if parameter.ndim == 2 else 1)
    model = el.load(module, tokenizer=tokenizer)
    study = el.study(
        model, place / "text.txt", max_length=16, max_inputs=40, rank=4, only=["rows", "moments"]
    )
    plan = el.plan(study, budget=0.4, model=model, max_inputs=5)
    assert {head.stack for head in plan.examples.heads} == {"encoder", "decoder"}
    first = matched(plan, model, tmp_path / "a")
    second = matched(plan, model, tmp_path / "b", "decoder_input_ids", "decoder")
    assert [b["input_ids"].tolist() for b, _ in first] == [
        b["input_ids"].tolist() for b, _ in second
    ]
    assert all(
        tokens["encoder"][0] == "[CLS]" and tokens["decoder"][0] == "[PAD]"
        for tokens in plan.examples.tokens
    )
    check_patterns(
        plan, model, [batch for batch, _ in first], eager_of(model, ("encoder", "decoder"))
    )


def test_pictures_are_named_by_their_patches(tmp_path):
    rng = np.random.default_rng(0)
    for i in range(24):
        Image.fromarray(rng.integers(0, 255, (20, 20, 3), dtype=np.uint8)).save(
            tmp_path / f"{i}.png"
        )
    config = Dinov2WithRegistersConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=16,
        patch_size=4,
        num_register_tokens=2,
    )
    model = Dinov2WithRegistersModel(config).eval()
    study = el.study(model, tmp_path, max_inputs=24, rank=4)
    examples = el.plan(study, budget=0.5, model=model, max_inputs=4).examples
    patches = [f"{row},{column}" for row in range(4) for column in range(4)]
    assert all(
        tokens["encoder"] == ("cls", "register 0", "register 1", *patches)
        for tokens in examples.tokens
    )
    assert examples.true.shape == (3, 6, 19, 19)
    torch.testing.assert_close(
        examples.true.float().sum(-1), torch.ones(3, 6, 19), atol=5e-3, rtol=0
    )


def test_sound_is_named_by_its_frames(tmp_path):
    rng = np.random.default_rng(0)
    for i in range(10):
        with wave.open(str(tmp_path / f"{i}.wav"), "wb") as file:
            file.setparams((1, 2, 16_000, 0, "NONE", ""))
            file.writeframes((3000 * rng.normal(size=16_000)).astype("<i2").tobytes())
    small = {
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
    }
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3}
    config = WhisperConfig(
        vocab_size=99,
        num_mel_bins=8,
        d_model=32,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_source_positions=60,
        max_target_positions=32,
        suppress_tokens=None,
        begin_suppress_tokens=None,
        **small,
        **special,
    )
    model = el.load(WhisperForConditionalGeneration(config).eval())
    # 30 s in 120 frames, 60 behind the convolutions
    model.processor = WhisperFeatureExtractor(feature_size=8, hop_length=4000)
    study = el.study(
        model, tmp_path, max_length=12, max_inputs=10, rank=4, only=["rows", "moments"]
    )
    examples = el.plan(
        study, budget=0.5, model=model, max_inputs=2, estimators=["joint", "adaptive"]
    ).examples
    n = examples.true.shape[-1]
    assert n == min(site.queries for site in study.sites.values() if site.kind == "self") == 12
    for tokens in examples.tokens:
        assert tokens["encoder"] == tuple(f"frame {i}" for i in range(12))
        assert tokens["decoder"][0] == "3" and all(
            0 <= int(word) < 99 for word in tokens["decoder"]
        )
    assert {head.stack for head in examples.heads} == {"encoder", "decoder"}


def test_without_a_tokenizer_tokens_are_ids():
    ids = np.random.default_rng(0).integers(0, 50, (60, 16))
    model = small_llama()
    examples = el.plan(
        el.study(model, ids, max_inputs=60, max_length=16),
        budget=0.5,
        model=model,
        data=ids,
        max_inputs=6,
    ).examples
    rows = {tuple(map(str, row)) for row in ids.tolist()}
    assert all(set(tokens.values()) <= rows for tokens in examples.tokens)


class Odd:
    """A tokenizer with an empty token, a part of a character, and ids that are no tokens."""

    def decode(self, ids):
        return {0: "", 1: "\ufffd", 2: " word", 3: "a\ufffd"}.get(ids[0], "")

    def convert_ids_to_tokens(self, ids):
        return [{0: "<s>", 1: "<0xE2>", 3: "aÃ"}.get(i) for i in ids]


@pytest.mark.parametrize(
    ("batch", "stack", "length", "expected"),
    [
        (
            {"input_ids": torch.tensor([[0, 1, 2, 3, 9]])},
            "self",
            5,
            ["<s>", "<0xE2>", " word", "aÃ", "9"],
        ),
        ({"input_ids": torch.tensor([[2, 2, 2, 2]])}, "decoder", 4, [" word"] * 4),
        ({"input_ids": torch.tensor([[2, 2, 2, 2]])}, "pooled", 2, ["position 0", "position 1"]),
        ({"input_features": torch.zeros(1, 8, 6)}, "encoder", 3, ["frame 0", "frame 1", "frame 2"]),
        (
            {"input_features": torch.zeros(1, 8, 6), "decoder_input_ids": torch.tensor([[0, 2]])},
            "decoder",
            2,
            ["<s>", " word"],
        ),
        ({"pixel_values": torch.zeros(1, 3, 32, 16)}, "encoder", 3, ["cls", "0,0", "1,0"]),
        ({"pixel_values": torch.zeros(1, 3, 32, 16)}, "encoder", 2, ["0,0", "1,0"]),
        ({"pixel_values": torch.zeros(1, 3, 32, 16)}, "merged", 1, ["position 0"]),
    ],
)
def test_what_tokens_are_called(batch, stack, length, expected):
    model = Model(ModelFacts("odd", "encoder"), torch.nn.Identity(), Odd())
    assert token_texts(model, batch, stack, length) == [expected]


def same(a, b):
    assert (a.tokens, a.heads, a.candidates, a.chosen) == (
        b.tokens,
        b.heads,
        b.candidates,
        b.chosen,
    )
    for name in ("true", "estimated"):
        assert getattr(a, name).dtype == torch.float16
        # to the bit, NaN too
        assert torch.equal(getattr(a, name).view(torch.int16), getattr(b, name).view(torch.int16))
    for name in ("work", "total_variation"):
        assert getattr(a, name).dtype == np.float64 and np.array_equal(
            getattr(a, name), getattr(b, name)
        )


def test_a_plan_read_again_has_the_same_examples(bert, place):
    same(el.Plan.open(place / "plan").examples, bert[2].examples)


def test_hostile_tokens_survive_and_stay_data(bert, tmp_path):
    plan = el.Plan.open(bert[2].save(tmp_path / "plan"))
    tokens = tuple(HOSTILE + [f"{t}!" for t in HOSTILE] + ["a"] * 4)
    plan.examples = replace(plan.examples, tokens=({"encoder": tokens},) * 3)
    again = el.Plan.open(plan.save(tmp_path / "hostile")).examples
    assert again.tokens[0]["encoder"] == tokens
    chart = again.plot().to_dict()

    def without_data(part):
        if isinstance(part, dict):
            return {
                key: without_data(value)
                for key, value in part.items()
                if key not in {"data", "datasets"}
            }
        return [without_data(value) for value in part] if isinstance(part, list) else part

    assert "alert" in json.dumps(chart) and "alert" not in json.dumps(without_data(chart))
    labels = {row["query token"] for row in _values(chart)}
    assert (
        len(labels) == 24
        and {"0 </script><script>alert(1… (34 characters)", r"2 \u202eabc", r"3 \n", "9 ␣a"}
        <= labels
    )
    assert "<script" not in again._repr_html_()


def _values(part):
    if isinstance(part, dict):
        if isinstance(part.get("data"), dict) and "values" in part["data"]:
            return part["data"]["values"]
        return next((found for value in part.values() if (found := _values(value))), None)
    return (
        next((found for value in part if (found := _values(value))), None)
        if isinstance(part, list)
        else None
    )


def test_the_picture_has_three_maps_of_every_pair(bert):
    import vl_convert

    chart = bert[2].examples.plot(1, 2).to_dict()
    svg = vl_convert.vegalite_to_svg(chart)
    assert all(f">{title}<" in svg for title in ("true", "reconstructed", "difference"))
    assert svg.count('aria-roledescription="rect mark"') >= 3 * 24 * 24


def test_the_record_holds_no_tensors(bert):
    record = bert[2].record()
    assert set(record["examples"]) == {"tokens", "places", "candidates", "chosen"}
    assert len(json.dumps(record, allow_nan=False)) < 200_000


def test_a_plan_without_examples_opens(bert, tmp_path):
    folder = bert[2].save(tmp_path / "plan")
    _edit(folder, lambda record: record.pop("examples"))
    (folder / "examples.safetensors").unlink()
    old = el.Plan.open(folder)
    assert old.examples is None and old.rows() == bert[2].rows()
    bert[2].save(folder)
    old.save(folder)
    assert el.Plan.open(folder).examples is None and not (folder / "examples.safetensors").exists()


def test_a_plan_of_exact_scores_has_true_patterns_only(bert, tmp_path):
    plan = el.plan(
        bert[1], budget=1.0, estimators=["exact"], max_inputs=2, output_dir=tmp_path / "exact"
    )
    examples = el.Plan.open(tmp_path / "exact").examples
    assert (
        examples.candidates == ()
        and set(examples.chosen) == {None}
        and examples.best(0, 1.0) is None
    )
    assert {row["difference"] for row in examples.rows()} == {0.0}
    same(examples, plan.examples)


def _edit(folder, change):
    record = json.loads((folder / "plan.json").read_text())
    change(record)
    (folder / "plan.json").write_text(json.dumps(record))


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: (d / "examples.safetensors").unlink(),
        lambda d: (d / "examples.safetensors").write_bytes(b"no"),
        lambda d: (d / "examples.safetensors").write_bytes(
            (d / "examples.safetensors").read_bytes()[:-1] + b"x"
        ),
        lambda d: _edit(d, lambda r: r["examples"].pop("sha256")),
        lambda d: _edit(d, lambda r: r["examples"].pop("tokens")),
        lambda d: _edit(d, lambda r: r.update(examples=[1])),
        lambda d: _edit(d, lambda r: r["examples"]["tokens"].pop()),
        lambda d: _edit(d, lambda r: r["examples"]["tokens"][0]["encoder"].pop()),
        lambda d: _edit(d, lambda r: r["examples"]["places"].pop()),
        lambda d: _edit(d, lambda r: r["examples"]["places"][0].pop()),
        lambda d: _edit(d, lambda r: r["examples"]["candidates"].pop()),
        lambda d: _edit(d, lambda r: r["examples"]["chosen"].__setitem__(0, 999)),
        lambda d: _edit(d, lambda r: r["examples"]["chosen"].__setitem__(0, "joint")),
    ],
)
def test_damage_is_refused(bert, tmp_path, damage):
    folder = bert[2].save(tmp_path / "plan")
    damage(folder)
    with pytest.raises(el.EigenlensError, match="is damaged"):
        el.Plan.open(folder)
    shutil.rmtree(folder)

"""A mechanism in a model that was trained with another one.

The same call by call, under every mask, and nothing left behind.
"""

import json
import math
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

import eigenlens as el
from eigenlens.attention import make
from eigenlens.captures import AttentionCall, Site
from eigenlens.cli import app
from eigenlens.data.inputs import Request, prepare
from eigenlens.plans.drop_in import attend, terms_of
from eigenlens.plans.tasks import Classes
from tiny import small_bert, small_llama, small_t5, some_text, tiny_bert, tiny_llama


def windowed(call, window, sinks=0):
    """By hand: softmax over the keys of a causal window and the first ones."""
    T, S = call.q.shape[2], call.k.shape[2]
    i, j = torch.arange(T)[:, None] + S - T, torch.arange(S)
    seen = (j <= i) & ((i - j < window) | (j < sinks))
    scores = call.q @ call.keys.transpose(2, 3) * call.scale
    return scores.masked_fill(~seen, -math.inf).softmax(-1) @ call.values


@pytest.mark.parametrize("side", ["none", "left", "right"])
@pytest.mark.parametrize("model", [small_bert, small_llama])
def test_softmax_in_place_of_softmax_changes_nothing(model, side):
    model, ids = model(), torch.randint(1, 50, (2, 9))
    mask = torch.ones(2, 9, dtype=torch.long)
    if side != "none":
        mask[0, slice(0, 4) if side == "left" else slice(5, 9)] = 0
    with torch.no_grad():
        plain = model(ids, attention_mask=mask)[0]
        with el.use_attention(model, "softmax"):
            other = model(ids, attention_mask=mask)[0]
    torch.testing.assert_close(other[mask.bool()], plain[mask.bool()], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("model", [small_bert, small_llama])
def test_a_padded_input_is_taken_apart_for_mechanisms_that_know_no_other_mask(model, side):
    """`window` takes no mask of pairs.

    Only if causality and padding are read from it does it run at all.
    """
    model, ids = model(), torch.randint(1, 50, (2, 9))
    mask = torch.ones(2, 9, dtype=torch.long)
    alone = slice(4, 9) if side == "left" else slice(0, 5)
    mask[0] = 0
    mask[0, alone] = 1
    places = {} if side == "right" else {"position_ids": (mask.cumsum(1) - 1).clamp_min(0)}
    with torch.no_grad(), el.use_attention(model, "window", window=2, sinks=1):
        both = model(ids, attention_mask=mask, **places)[0]
        short = model(ids[:1, alone])[0]
    torch.testing.assert_close(both[:1, alone], short, atol=1e-5, rtol=1e-4)


def test_the_window_of_a_decoder_is_the_one_made_by_hand():
    model, ids = small_llama(), torch.randint(1, 50, (2, 12))
    with torch.no_grad():
        with el.replace_attention(model, lambda call: windowed(call, 3, 1)):
            expected = model(ids).logits
        with el.use_attention(model, "window", window=3, sinks=1) as mechanism:
            found = model(ids).logits
        plain = model(ids).logits
    assert mechanism.settings.window == 3
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    assert float((plain - expected).abs().max()) > 1e-2


def test_generation_with_a_cache_is_generation_without():
    model, ids = small_llama(), torch.randint(1, 50, (1, 7))
    fixed = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    with torch.no_grad(), el.use_attention(model, "window", window=3, sinks=1):
        cached = model.generate(ids, **fixed)
        found = ids
        for _ in range(6):
            found = torch.cat([found, model(found, use_cache=False).logits[:, -1:].argmax(-1)], 1)
    assert torch.equal(cached, found)


def test_a_module_outside_transformers_attends_by_it_too():
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    x = torch.randn(2, 6, 16)
    with torch.no_grad(), el.use_attention(layer, "off-by-one"):
        found = layer(x)

    def by_hand(call):
        e = (call.q @ call.k.transpose(2, 3) * call.scale).exp()
        return e / (1 + e.sum(-1, keepdim=True)) @ call.v

    with torch.no_grad(), el.replace_attention(layer, by_hand):
        torch.testing.assert_close(found, layer(x), atol=1e-5, rtol=1e-4)


def test_a_bias_of_positions_is_honoured_or_refused():
    model = small_t5(d_ff=32, num_layers=2).eval()
    given = {
        "input_ids": torch.randint(1, 50, (2, 8)),
        "decoder_input_ids": torch.randint(1, 50, (2, 5)),
    }
    with torch.no_grad():
        plain = model(**given).logits
        with el.use_attention(model, "softmax"):
            torch.testing.assert_close(model(**given).logits, plain, atol=1e-5, rtol=1e-4)
        with (
            pytest.raises(el.EigenlensError, match="window supports causality and padding"),
            el.use_attention(model, "window"),
        ):
            model(**given)


@pytest.mark.parametrize(
    ("extra", "told"),
    [({"softcap": 5.0}, "cap of the scores"), ({"sinks": torch.zeros(2)}, "sinks")],
)
def test_what_no_mechanism_knows_is_refused(extra, told):
    q = torch.randn(1, 2, 4, 3)
    call = AttentionCall(Site("self", 0), "self", "layers.0", q, q, q, 1.0, causal=True, **extra)
    with pytest.raises(el.EigenlensError, match=f"off-by-one cannot handle .*{told}.* layers.0"):
        attend(make("off-by-one"), call)


def test_masks_of_numbers_and_windows_of_the_model_stay_pairs():
    q = torch.randn(1, 2, 4, 3)
    numbers = torch.randn(1, 2, 4, 4)
    call = AttentionCall(Site("self", 0), "self", "x", q, q, q, 1.0, mask=numbers)
    assert terms_of(make("softmax"), call)[2]["pairs"] is numbers
    band = (torch.arange(4)[:, None] - torch.arange(4)).abs() <= 1
    blocked = torch.zeros(4, 4).masked_fill(~band, torch.finfo(torch.float32).min)
    call = AttentionCall(Site("self", 0), "self", "x", q, q, q, 1.0, mask=blocked)
    terms = terms_of(make("softmax"), call)[2]
    assert torch.equal(terms["pairs"][0, 0], band) and not terms["causal"] and terms["keys"] is None
    torch.testing.assert_close(attend(make("softmax"), call), call.pattern() @ call.values)


def test_the_model_and_its_library_are_left_as_they_were():
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    model, ids = small_llama(), torch.randint(1, 50, (1, 6))
    with torch.no_grad():
        before = model(ids).logits
        known = set(ALL_ATTENTION_FUNCTIONS.valid_keys())
        with pytest.raises(RuntimeError, match="stop"), el.use_attention(model, "off-by-one"):
            model(ids)
            raise RuntimeError("stop")
        assert torch.equal(model(ids).logits, before)
    assert "off-by-one" not in set(ALL_ATTENTION_FUNCTIONS.valid_keys()) - known


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drop-in")
    tiny_bert(folder / "bert")
    tiny_llama(folder / "llama")
    some_text(folder / "text.txt", documents=8)
    return folder


def test_an_evaluation_has_the_numbers_of_two_passes(place, tmp_path):
    found = el.evaluate(
        place / "llama",
        place / "text.txt",
        attention="window",
        settings={"window": 4},
        max_length=24,
        max_inputs=6,
    )
    model = el.load(place / "llama")
    inputs = prepare(model, Request((str(place / "text.txt"),), 24, 6, 0.5, 0, False), tmp_path)
    ids = torch.cat(
        [batch["input_ids"] for group in inputs.groups for _, batch in inputs.batches(group, 9)]
    )
    losses, moved = {}, []

    def compare(call):
        causal = windowed(call, 10**6)
        assert torch.allclose(causal, call.pattern() @ call.values, atol=1e-5)
        A = call.pattern()
        unit = torch.eye(A.shape[3]).expand(*A.shape[:2], -1, -1)
        other = windowed(
            AttentionCall(
                call.site, "self", "", call.q, call.k.repeat_interleave(2, 1), unit, call.scale
            ),
            4,
            4,
        )
        moved.append((A - other).abs().sum(-1).mean((0, 2)) / 2)

    with torch.no_grad():
        with el.capture(model.backbone, compare):
            model.module(ids)
        for key, hand in (("plain", None), ("planned", lambda call: windowed(call, 4, 4))):
            if hand is None:
                logits = model.module(ids).logits
            else:
                with el.replace_attention(model, hand):
                    logits = model.module(ids).logits
            losses[key] = math.exp(
                float(
                    torch.nn.functional.cross_entropy(
                        logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()
                    )
                )
            )
    row = {row["measure"]: row for row in found.rows()}["perplexity"]
    assert row["plain"] == pytest.approx(losses["plain"], rel=1e-4)
    assert row["planned"] == pytest.approx(losses["planned"], rel=1e-4)
    heads = torch.tensor([head["total_variation"] for head in found.heads])
    torch.testing.assert_close(heads, torch.cat(moved), atol=1e-5, rtol=1e-4)
    assert found.stored["plan"]["target"] == {"attention": "window", "window": 4, "sinks": 4}
    assert found.sentence.startswith(
        "With window attention and no training the perplexity goes from"
    )


def test_an_evaluation_is_kept_shown_and_reported(place, tmp_path):
    found = el.evaluate(
        place / "bert",
        place / "text.txt",
        attention="off-by-one",
        max_length=16,
        max_inputs=3,
        padding=True,
        output_dir=tmp_path / "e",
    )
    again = el.Evaluation.open(tmp_path / "e")
    assert again.record() == found.record() and "off-by-one attention" in again._repr_html_()
    page = el.report(tmp_path / "e", output=tmp_path / "page.html")
    assert "off-by-one attention" in page.read_text()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "give one of the two"),
        ({"attention": "softmax", "plan": "plan"}, "give one of the two"),
        ({"plan": "nowhere", "settings": {"window": 3}}, "a plan has its own"),
        ({"attention": "nothing"}, "no mechanism 'nothing'"),
        ({"attention": "window", "settings": {"width": 3}}, "no setting 'width' of window"),
        (
            {"attention": make("window"), "settings": {"window": 3}},
            "only for a mechanism given by name",
        ),
        ({"attention": "softmax", "max_inputs": 0}, "at least one input"),
    ],
)
def test_what_cannot_be_evaluated_is_said(place, given, told):
    with pytest.raises(el.EigenlensError, match=told):
        el.evaluate(place / "bert", place / "text.txt", **given)


def test_a_mechanism_with_weights_is_refused(place):
    with (
        pytest.raises(el.EigenlensError, match="gated has weights of its own"),
        el.use_attention(small_bert(), "gated"),
    ):
        pass


def test_the_command(place, tmp_path):
    call = [
        "evaluate",
        str(place / "llama"),
        str(place / "text.txt"),
        "--attention",
        "window",
        "--max-length",
        "16",
        "--max-inputs",
        "2",
    ]
    done = CliRunner().invoke(
        app, [*call, "--settings", "window=4", "--settings", "sinks=0", "--json"]
    )
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout)
    assert record["plan"]["target"] == {"attention": "window", "window": 4, "sinks": 0}
    shown = CliRunner().invoke(app, [*call, "--settings", "window=4", "-o", str(tmp_path / "e")])
    assert (
        "share of the multiply-adds of full attention" in shown.stdout
        and (tmp_path / "e" / "evaluation.json").is_file()
    )
    wrong = CliRunner().invoke(app, [*call, "--settings", "window"])
    assert isinstance(wrong.exception, el.EigenlensError) and "name=value" in str(wrong.exception)


def test_classes_are_compared_where_tokens_stand():
    torch.manual_seed(0)
    plain, other = (SimpleNamespace(logits=torch.randn(2, 5, 3)) for _ in range(2))
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])
    task = Classes()
    task.add(*(task.observe({"attention_mask": mask}, each) for each in (plain, other)))
    same, overlap = [], []
    for i, j in mask.nonzero().tolist():
        p, q = plain.logits[i, j].softmax(0), other.logits[i, j].softmax(0)
        same.append(int(p.argmax() == q.argmax()))
        overlap.append(1 - 0.5 * float((p - q).abs().sum()))  # one less the total variation
    found = {row["measure"]: row["planned"] for row in task.result()}
    assert found["top-1 agreement"] == sum(same) / 7
    assert found["overlap of the class probabilities"] == pytest.approx(sum(overlap) / 7, abs=1e-6)
    rises = [1 - sum(overlap[:5]) / 5, 1 - sum(overlap[5:]) / 2]
    assert task.rises == pytest.approx(rises, abs=1e-6)

"""A study's spectra within one input, and the six dimensions side by side, against dense matrices."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import Gemma2Config, Gemma2Model

import eigenlens as el
from eigenlens import capture
from eigenlens.captures import Head
from eigenlens.cli.terminal import show
from eigenlens.data.inputs import prepare
from eigenlens.models.forward import forward_of
from eigenlens.studies.side_by_side import MEASURES, dimension_rows
from eigenlens.studies.side_by_side_chart import dimension_chart
from eigenlens.studies.survey import WithinForm
from tiny import SMALL, of_catalogue, small_t5, some_text, tiny_bert, token_ids

SHARES = (0.5, 0.9, 0.95, 0.99)
OLD = Path(__file__).parents[1] / "written_before" / "0.1.0" / "study"


def needed(matrix, share):
    """The least number of singular values that hold a share of the energy."""
    held = np.cumsum(np.linalg.svd(np.asarray(matrix, dtype=np.float64), compute_uv=False) ** 2)
    return int(np.argmax(held >= share * held[-1] * (1 - 1e-9))) + 1


def without_row_mean(S):
    return S - S.mean(-1, keepdims=True)


def calls_of(model, ids):
    with torch.no_grad(), capture(model) as calls:
        model(input_ids=torch.as_tensor(ids))
    return calls


def scores_by_hand(call, head):
    """All products of queries and keys of a head, masked ones too, (B, T, S) in float64."""
    q, k = call.q[:, head].double(), call.k[:, head // call.group].double()
    return (call.scale * q @ k.transpose(1, 2)).numpy()


def median_of(counts):
    """The least count that is enough for half of the inputs."""
    return sorted(counts)[(len(counts) - 1) // 2]


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """A study of the default model on a few real texts, and the calls of the same inputs."""
    model = of_catalogue("minilm")
    found = el.study(model, "python-docs", max_inputs=12, max_length=64, only="rows,within")
    inputs = prepare(model, found.request, tmp_path_factory.mktemp("again"))
    calls = {}
    with torch.no_grad():
        for bucket in inputs.groups:
            for _, batch in inputs.batches(bucket, 12):
                with capture(model.backbone) as some:
                    forward_of(model)(batch)
                for call in some:
                    calls.setdefault(call.layer, []).append(call)
    return model, found, calls


HEADS = [(0, 2), (2, 7), (5, 11)]


@pytest.mark.parametrize(("layer", "head"), HEADS)
def test_components_are_those_of_dense_scores_of_the_same_texts(real, layer, head):
    _, study, calls = real
    S = np.concatenate([scores_by_hand(call, head) for call in calls[layer]])
    P = np.concatenate([call.pattern()[:, head].double().numpy() for call in calls[layer]])
    assert len(S) == 12
    place = {"layer": layer, "head": head}
    for what, matrices in (("scores", S), ("centred", without_row_mean(S))):
        found = study.within.one(what=what, tokens=64, **place)
        assert found.inputs == 12
        for share in SHARES:
            counts = [needed(one, share) for one in matrices]
            assert found.dimension(share) == median_of(counts)
            assert found.mean_dimension(share) == pytest.approx(np.mean(counts))
    first = study.within.one(what="centred", tokens=32, **place)
    among = {n: needed(without_row_mean(one[:32, :32]), 0.9) for n, one in enumerate(S)}
    assert first.inputs == 4 and first.dimension(0.9) in among.values()
    pattern = study.within.one(what="pattern", tokens=64, **place)
    counts = [needed(one, 0.9) for one in P]
    assert pattern.inputs == 4 and min(counts) <= pattern.dimension(0.9) <= max(counts)


@pytest.mark.parametrize(("layer", "head"), HEADS)
def test_the_rank_of_the_weights_is_that_of_their_dense_product(real, layer, head):
    model, study, _ = real
    attention = model.backbone.encoder.layer[layer].attention.self
    W_Q, W_K = (
        part.weight.detach().double().numpy()[32 * head : 32 * head + 32].T
        for part in (attention.query, attention.key)
    )
    found = study.within.one(what="weights", layer=layer, head=head)
    for share in SHARES:
        assert found.dimension(share) == needed(W_Q @ W_K.T, share)


def test_the_dimensions_stand_side_by_side_per_head_and_as_medians(real):
    _, study, calls = real
    by_head = study.dimensions()
    assert len(by_head) == 72
    rows = {row["measure"]: row for row in dimension_rows(study)}
    assert list(rows) == [m.name for m in MEASURES if m.name != "matrices"]
    for name, row in rows.items():
        for share in (50, 90, 95, 99):
            found = [head[f"{name}_{share}"] for head in by_head]
            assert row[f"dimension_{share}"] == np.median(found)
            assert (row[f"dimension_{share}_least"], row[f"dimension_{share}_most"]) == (
                min(found),
                max(found),
            )
    one = next(r for r in by_head if (r["layer"], r["head"]) == (2, 7))
    S = np.concatenate([scores_by_hand(call, 7) for call in calls[2]])
    counts = [needed(without_row_mean(x), 0.95) for x in S]
    assert one["within_centred_95"] == median_of(counts)
    spectrum = study.spectra.one(analysis="rows", level="head", centring="centred", layer=2, head=7)
    assert one["rows_90"] == spectrum.dimension(0.9)
    assert (rows["weights"]["most"], rows["rows"]["most"]) == (32, 64)


def test_the_sentence_says_both_counts(real):
    _, study, _ = real
    middle = np.median([one.dimension(0.9) for one in study.within.whole("centred")])
    assert "of 64 dimensions for 90 % of their held-out variance" in study.sentence
    median = f"row-centred scores of the median head need {middle:g} of 32 for 90 %"
    assert median in study.sentence
    assert "which has components of its own" in study.sentence


def test_every_number_is_in_the_json_and_every_table_is_printed(real, capsys):
    _, study, _ = real
    record = json.loads(json.dumps(study.record()))
    assert len(record["within"]) == 72 * (1 + 3 + 2)  # weights, three kinds, two at 32 tokens
    assert record["dimensions"][0]["measure"] == "weights"
    assert {row["within_centred_90"] for row in record["heads"]} == {
        one.dimension(0.9) for one in study.within.whole("centred")
    }
    show(study, full=True)
    printed = " ".join(capsys.readouterr().out.split())
    for words in ("What is low-dimensional?", "key-pca have one projection for all inputs"):
        assert words in printed
    assert "position bias" not in printed.partition("Roles")[0]


def test_the_picture_has_a_tick_per_head_and_measure(real):
    _, study, _ = real
    drawn = dimension_chart(study).to_dict()
    ticks, full = drawn["layer"]  # no median is beyond what was kept, so no point is hollow
    assert len(ticks["data"]["values"]) == 72 * 5 and len(full["data"]["values"]) == 5
    medians = {row["measure"]: row["dimension"] for row in full["data"]["values"]}
    assert medians == {r["words"]: r["dimension_90"] for r in dimension_rows(study)}
    assert not any(row["beyond"] for row in full["data"]["values"])


def test_a_median_beyond_what_was_kept_is_a_hollow_point_at_the_limit(tmp_path):
    """Whole matrices need more than the two components that are kept."""
    text = some_text(tmp_path / "text.txt", documents=30)
    study = el.study(tiny_bert(tmp_path / "bert"), text, max_length=16, max_inputs=40, rank=2)
    _, full, hollow = dimension_chart(study).to_dict()["layer"]
    drawn = {row["measure"]: row["dimension"] for row in hollow["data"]["values"]}
    assert drawn == {"over inputs: whole matrices": 2}
    assert len(full["data"]["values"]) == 5
    assert (full["mark"]["filled"], hollow["mark"]["filled"]) == (True, False)


def test_grouped_queries_and_rope_before_and_after(llama):
    """Heads that share a key head have spectra of their own; rotation raises the rank of keys."""
    ids = token_ids(6, 20)
    after, before = (
        el.study(str(llama), ids, only="within", before_rope=rope) for rope in (False, True)
    )
    calls = calls_of(el.load(str(llama)).backbone, ids)
    for layer, head in ((0, 0), (0, 1), (1, 3)):
        S = without_row_mean(scores_by_hand(calls[layer], head))
        found = after.within.one(what="centred", layer=layer, head=head, tokens=20)
        counts = [needed(one, 0.9) for one in S]
        assert found.mean_dimension(0.9) == pytest.approx(np.mean(counts))
    assert before.before_rope and not np.array_equal(
        [s.curve for s in before.within.whole("centred")],
        [s.curve for s in after.within.whole("centred")],
    )
    model = el.load(str(llama)).backbone
    with torch.no_grad(), capture(model, before_rope=True) as calls:
        model(input_ids=torch.as_tensor(ids))
    S = without_row_mean(scores_by_hand(calls[1], 2))
    found = before.within.one(what="centred", layer=1, head=2, tokens=20)
    assert found.mean_dimension(0.9) == pytest.approx(np.mean([needed(one, 0.9) for one in S]))


def test_a_model_with_a_position_bias_says_that_scores_are_without_it(capsys):
    """Encoder, decoder and cross-attention of a T5; the pattern has the bias."""
    torch.manual_seed(0)
    model = small_t5(num_layers=2).eval()
    with torch.no_grad():  # a bias that decides the pattern
        for stack in (model.encoder, model.decoder):
            stack.block[0].layer[0].SelfAttention.relative_attention_bias.weight.mul_(50)
    study = el.study(model, token_ids(6, 2 * 12 - 1), only="within")
    assert {site.stack for site in study.sites} == {"encoder", "decoder", "decoder.cross"}
    assert "before mask, position bias and cap" in study.sentence
    show(study, full=True)
    printed = " ".join(capsys.readouterr().out.split())
    assert "without the model's position bias or cap; its pattern has them" in printed
    ids = np.asarray(token_ids(6, 23))
    begin = np.zeros((6, 1), dtype=int)
    with torch.no_grad(), capture(model) as calls:
        model(
            input_ids=torch.as_tensor(ids[:, :12]),
            decoder_input_ids=torch.as_tensor(np.concatenate([begin, ids[:, 12:]], 1)),
        )
    assert {call.site.stack for call in calls} == {"encoder", "decoder", "decoder.cross"}
    for call in calls:
        for head in (0, 1):
            place = {"stack": call.site.stack, "layer": call.layer, "head": head, "tokens": 12}
            counts = [needed(one, 0.9) for one in scores_by_hand(call, head)]
            scores = study.within.one(what="scores", **place)
            assert scores.mean_dimension(0.9) == pytest.approx(np.mean(counts)), place
            assert not scores.linear or call.linear
    encoder = next(call for call in calls if call.site.stack == "encoder")
    counts = [needed(P, 0.99) for P in encoder.pattern()[:, 1].double().numpy()]
    found = study.within.one(what="pattern", stack="encoder", layer=encoder.layer, head=1)
    assert min(counts) <= found.dimension(0.99) <= max(counts)


def test_a_model_with_a_cap_says_so():
    torch.manual_seed(0)
    config = Gemma2Config(
        **SMALL, num_key_value_heads=2, head_dim=8, attn_logit_softcapping=2.0, sliding_window=64
    )
    study = el.study(Gemma2Model(config).eval(), token_ids(4, 10), only="within")
    assert all(not one.linear for one in study.within.whole("centred"))
    assert "cap" in study.sentence


def test_padding_is_left_out(bert, text, tmp_path):
    study = el.study(bert, text, max_length=24, max_inputs=10, padding=True, only="within")
    model = el.load(bert)
    inputs = prepare(model, study.request, tmp_path)
    counts = []
    for bucket in inputs.groups:
        for _, batch in inputs.batches(bucket, 1):
            with torch.no_grad(), capture(model.backbone) as calls:
                forward_of(model)(batch)
            real = int(batch["attention_mask"].sum())
            S = scores_by_hand(calls[1], 0)[0, :real, :real]
            counts.append(needed(without_row_mean(S), 0.9))
    found = study.within.one(what="centred", layer=1, head=0, tokens=24)
    assert found.mean_dimension(0.9) == pytest.approx(np.mean(counts))


def test_a_study_without_other_statistics_is_complete(llama, long_text, tmp_path):
    """It has a sentence, tables, a picture, a page and numbers to compare with another's."""
    folders = [tmp_path / "a", tmp_path / "b"]
    for seed, folder in enumerate(folders):
        asked = {"max_length": 40, "max_inputs": 6, "seed": seed}
        el.study(llama, long_text, folder, only="within", **asked)
    study = el.Study.open(folders[0])
    assert study.sentence.startswith("Within one input of 40 tokens")
    assert "held-out" not in study.sentence
    assert study.rows_to_read() == study.within.growth()
    assert study.printed()[0].title.startswith("What is low-dimensional?")
    study.plot().to_dict()
    found = el.compare(*folders)
    changed = {row["number"]: row for row in found.changes()}
    assert set(changed) == {"scores_90", "centred_90", "pattern_90", "weights_90"}
    assert changed["weights_90"]["change"] == 0 and changed["weights_90"]["left"] == np.mean(
        [one.dimension(0.9) for one in study.within.whole("weights")]
    )
    page = el.report(folders[0], output=tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Within one input" in page and "key-pca have one projection" in page


def test_a_study_of_an_earlier_version_says_what_it_is_without(capsys):
    study = el.Study.open(OLD)
    with pytest.raises(el.EigenlensError, match=r"made without within; make it anew with"):
        study.within  # noqa: B018
    assert study.record()["within"] == [] and "Within one input" not in study.sentence
    assert {row["measure"] for row in study.record()["dimensions"]} == {"rows", "matrices"}
    show(study)
    assert "What is low-dimensional?" not in capsys.readouterr().out


def test_inputs_that_are_not_finite_are_refused_by_name(bert):
    model = el.load(bert)
    with torch.no_grad():
        model.backbone.encoder.layer[0].attention.self.key.weight[0, 0] = torch.nan
    with pytest.raises(el.EigenlensError, match="spectra within one input are not finite"):
        el.study(model.backbone, np.asarray(token_ids(6, 12)), only="within")


def test_a_length_beyond_the_model_is_refused_with_its_longest(run, bert, text):
    ended = run("study", bert, text, "--max-length", 32768, "--only", "within")
    assert ended.code and "32768 tokens is over the maximum" in ended.err and "64" in ended.err


@pytest.mark.parametrize(
    ("length", "inputs", "expected"),
    [
        (128, 1000, (32, 128, 256)),
        (2048, 1000, (2, 8, 16)),
        (8192, 40, (1, 4, 8)),
        (128, 5, (1, 1, 1)),
    ],
)
def test_inputs_are_measured_by_their_length_and_at_least_some(length, inputs, expected):
    form = WithinForm.of(length, inputs)
    assert (form.every, form.growth_every, form.pattern_every) == expected
    assert -(-inputs // form.every) >= min(16, inputs)
    for every in expected[1:]:
        assert every % form.every == 0 and -(-inputs // every) >= min(4, inputs)


def test_a_head_is_found_by_its_label(real):
    found = real[1].within.one(what="weights", layer=3, head=4)
    assert found.at == Head("encoder", 3, 4) and found.label == "L3H4"

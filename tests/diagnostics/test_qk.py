"""Query-key eigenvalues: against the dense C × C matrix, in every build of attention."""

import json

import numpy as np
import pytest
import torch
import transformers as tf

from diagnostics.passes import diagnosed, subject_of
from diagnostics.split import assert_parts_make_the_whole
from eigenlens.anatomy.head_weights import HeadWeights
from eigenlens.captures import Head
from eigenlens.diagnostics import DIAGNOSTICS, StudiedModel
from eigenlens.diagnostics.qk import QueryKey
from tiny import of_catalogue, small_bert, small_llama


def found_in(model, batch):
    qk = QueryKey()
    studied = diagnosed(model, [batch], qk)
    return qk, qk.result(studied.notes["qk"])


def assert_dense(finding, place, W_Q, W_K):
    """All numbers of a head from W itself, (C, D) and (C, D) → (C, C)."""
    W = W_Q.astype(np.float64) @ W_K.astype(np.float64).T
    d, values = len(W), np.linalg.eigvals(W)
    mean = np.trace(W) / d
    variance = (abs(values - mean) ** 2).mean()
    nonzero = values[abs(values).argsort()[-W_Q.shape[1] :]]
    wanted = {
        "concentration": abs(mean) / np.sqrt(variance),
        "mean": mean,
        "variance": variance,
        "trace": np.trace(W),
        "trace_of_square": np.trace(W @ W),
        "square": (W**2).sum(),
        "penalty": (W**2).sum() - np.trace(W) ** 2 / d,
        "complex": (abs(nonzero.imag) > 1e-8 * abs(values).max()).mean(),
    }
    for name, value in wanted.items():
        assert finding.value(name, *place) == pytest.approx(value, rel=1e-6, abs=1e-9), name


def test_the_numbers_of_an_encoders_heads_are_those_of_the_dense_matrix():
    model = of_catalogue("minilm")
    _, finding = found_in(model, {"input_ids": torch.tensor([[101, 2023, 102]])})
    for layer, head in ((0, 7), (4, 0)):
        part = model.backbone.encoder.layer[layer].attention.self
        W_Q, W_K = (
            x.weight.detach()[head * 32 : head * 32 + 32].T.numpy() for x in (part.query, part.key)
        )
        assert_dense(finding, ("encoder", layer, head), W_Q, W_K)
    assert len(finding.values("mean")) == 72 and "rotary" not in finding.sentence


@pytest.mark.download
def test_a_query_head_is_taken_with_the_keys_it_shares_and_before_the_rotation():
    model = of_catalogue("smollm2")
    _, finding = found_in(model, {"input_ids": torch.tensor([[5, 6, 7]])})
    part = model.backbone.layers[11].self_attn
    W_Q, W_K = part.q_proj.weight.detach().numpy(), part.k_proj.weight.detach().numpy()
    for head in (1, 8):
        keys = W_K[(head // 3) * 64 : (head // 3) * 64 + 64].T
        assert_dense(finding, ("self", 11, head), W_Q[head * 64 : head * 64 + 64].T, keys)
    assert (
        len(finding.values("mean")) == 270
        and "before rotary positions are applied" in finding.sentence
    )


@pytest.mark.download
def test_cross_attention_has_eigenvalues_too():
    model = of_catalogue("flan-t5-small")
    ids = torch.tensor([[5, 6, 1]])
    _, finding = found_in(model, {"input_ids": ids, "decoder_input_ids": ids})
    part = model.backbone.decoder.block[3].layer[1].EncDecAttention
    W_Q, W_K = (x.weight.detach()[2 * 64 : 3 * 64].T.numpy() for x in (part.q, part.k))
    assert_dense(finding, ("decoder.cross", 3, 2), W_Q, W_K)
    assert set(finding.stacks) == {"encoder", "decoder", "decoder.cross"}


def test_a_norm_behind_the_projections_leaves_no_matrix():
    config = tf.Qwen3Config(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
    )
    _, finding = found_in(tf.Qwen3Model(config).eval(), {"input_ids": torch.tensor([[5, 6, 7]])})
    assert (
        not finding.applies
        and "norm after its projections (q_norm)" in finding.note
        and not finding.sentence
    )


def test_a_family_that_is_not_known_and_streams_of_two_widths_are_told_not_raised(monkeypatch):
    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList([torch.nn.Linear(8, 24)])

        def forward(self, x):
            q, k, v = self.layers[0](x)[:, None].chunk(3, -1)
            return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    studied = subject_of(Own(), {"x": torch.randn(1, 3, 8)})
    assert "not known" in QueryKey().begin(studied)
    H, D, E = 2, 4, 4
    bias = torch.zeros(H, D)
    apart = HeadWeights(
        torch.randn(H, 8, D),
        torch.randn(H, 6, D),
        torch.randn(H, 6, E),
        torch.randn(H, E, 8),
        bias,
        bias,
        bias,
        torch.zeros(8),
    )
    monkeypatch.setattr(StudiedModel, "weights", lambda *_: apart)
    assert "widths (8 and 6), so W_QK is not square" in QueryKey().begin(studied)


def test_heads_without_weights_give_no_nan():
    model = small_bert()
    torch.nn.init.zeros_(model.encoder.layer[0].attention.self.query.weight)
    _, finding = found_in(model, {"input_ids": torch.tensor([[5, 6, 7]])})
    assert len(finding.values("concentration")) == 4 and len(finding.values("mean")) == 8
    assert finding.value("mean", "encoder", 0, 1) == 0 == finding.value("complex", "encoder", 0, 1)
    json.dumps(finding.record(), allow_nan=False)


def test_constants_stay_as_they_are_through_merges_and_states():
    batches = [{"input_ids": torch.tensor([[5, 6, i]])} for i in (7, 8, 9)]
    whole = assert_parts_make_the_whole(QueryKey, small_llama(), batches)
    empty = QueryKey()
    empty.merge(whole)
    assert empty.result().record() == whole.result().record()


def test_the_eigenvalues_of_two_heads_are_listed_and_drawn():
    model = of_catalogue("minilm")
    qk, finding = found_in(model, {"input_ids": torch.tensor([[101, 2023, 102]])})
    (rows,) = finding.tables.values()
    values = finding.values("concentration")
    for which, extreme in (("most concentrated", max), ("least concentrated", min)):
        some = [row for row in rows if row["which"] == which]
        place = some[0]["stack"], some[0]["layer"], some[0]["head"]
        assert len(some) == 32 and values[Head(*place)] == extreme(values.values())
        assert sum(row["real"] for row in some) == pytest.approx(finding.value("trace", *place))
        assert sum(row["imaginary"] for row in some) == pytest.approx(0, abs=1e-9)
    assert DIAGNOSTICS["qk"] is QueryKey and "imaginary" in json.dumps(finding.plot().to_dict())


def test_what_was_known_first_stays_and_nothing_is_mixed():
    """Of another machine, where eigenvalues come in another order."""
    one, other = QueryKey(), QueryKey()
    studied = subject_of(small_bert(), {"input_ids": torch.arange(1, 6)[None]})
    one.begin(studied)
    other.begin(studied)
    before = {name: x.clone() for name, x in one.state().items()}
    other.peaks = {name: x.flip(0) + 1 for name, x in other.peaks.items()}
    other.peaks |= {
        name.replace("encoder/1", "encoder/2"): x
        for name, x in other.peaks.items()
        if "encoder/1" in name
    }
    one.merge(other)
    one.merge(other)
    after = one.state()
    assert all(torch.equal(after[name], x) for name, x in before.items())
    new = sorted(after.keys() - before.keys())
    assert new == ["peak|encoder/2/eigenvalues", "peak|encoder/2/numbers", "peak|encoder/2/rotary"]


def test_one_matrix_for_all_queries_and_one_key():
    shape = {"n_embd": 32, "n_head": 4, "n_layer": 1, "n_positions": 16, "vocab_size": 20}
    model = tf.GPTBigCodeModel(tf.GPTBigCodeConfig(**shape, multi_query=True)).eval()
    _, finding = found_in(model, {"input_ids": torch.arange(6)[None]})
    W = model.h[0].attn.c_attn.weight.detach().double().numpy()  # (32 + 8 + 8, 32)
    for head in range(4):
        assert_dense(finding, (*finding.stacks, 0, head), W[8 * head : 8 * head + 8].T, W[32:40].T)


def test_one_head_is_named_once():
    model = tf.BertModel(
        tf.BertConfig(
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=1,
            intermediate_size=8,
            vocab_size=20,
        )
    ).eval()
    qk, finding = found_in(model, {"input_ids": torch.arange(5)[None]})
    assert finding.sentence.startswith(
        "The mean eigenvalue of the only head's query-key matrix is "
    )
    assert finding.sentence.count("L0H0") == 1 and "of 1 head" not in finding.sentence
    assert ("not positive" in finding.sentence) == (finding.value("mean", "encoder", 0, 0) <= 0)
    assert qk.tables(finding, {})

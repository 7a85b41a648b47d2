"""A study's metrics along depth.

The numbers of its inputs, whatever the batches, and what is shown of them.
"""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers as tf
from torch import nn

from eigenlens import EigenlensError, Study, study
from eigenlens.captures import Site
from eigenlens.cli.terminal import show
from eigenlens.data.inputs import Request
from eigenlens.stats.depth import ATTENTION_METRICS, TOKEN_METRICS
from eigenlens.studies.options import Options
from eigenlens.studies.tables import depth_rows
from stats.by_hand import attention_by_hand, by_hand
from tiny import some_text, tiny_bert

SMALL = {
    "vocab_size": 50,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
}


def bert():
    torch.manual_seed(0)
    return tf.BertModel(
        tf.BertConfig(**SMALL, initializer_range=0.4, attn_implementation="eager")
    ).eval()


@pytest.fixture(scope="module")
def ids():
    torch.manual_seed(1)
    return torch.randint(50, (24, 8))


@pytest.fixture(scope="module")
def made(ids, tmp_path_factory):
    return study(
        bert(),
        ids,
        tmp_path_factory.mktemp("depth") / "s",
        max_length=8,
        max_inputs=24,
        depth_every=1,
        batch_size=5,
    )


@torch.no_grad()
def test_it_has_the_numbers_of_all_inputs(made, ids):
    """Fit and held-out inputs together, from the model's own hidden states and patterns."""
    out = bert()(ids, output_hidden_states=True, output_attentions=True)
    found = {
        (r["layer"], r["place"], r["tokens"], r["metric"], r["head"]): r for r in made.depth.rows()
    }
    assert len(found) == 3 * 2 * (2 * len(TOKEN_METRICS) + 3 * len(ATTENTION_METRICS))
    for layer in range(3):
        for tokens, first in (("all", 0), ("without sinks", 1)):
            for place, states in (
                ("input", out.hidden_states[layer]),
                ("output", out.hidden_states[layer + 1]),
            ):
                each = [by_hand(x[first:].double().numpy()) for x in states]
                for metric, name in (
                    ("residual", "residual"),
                    ("cosine", "cosine"),
                    ("high_frequency", "high"),
                ):
                    row = found[layer, place, tokens, metric, None]
                    assert row["mean"] == pytest.approx(np.mean([n[name] for n in each]), rel=1e-4)
                    assert row["number"] == 24
                for i, metric in enumerate(
                    ("effective_rank", "stable_rank", "participation_ratio")
                ):
                    mean = np.mean([n["ranks"][i] for n in each])
                    assert found[layer, place, tokens, metric, None]["mean"] == pytest.approx(
                        mean, rel=1e-4
                    )
            for head in range(2):
                patterns = out.attentions[layer][:, head, first:, first:].double()
                patterns = (patterns / patterns.sum(-1, keepdim=True)).numpy()
                streams = out.hidden_states[layer][:, first:].double().numpy()
                means = np.mean(
                    [attention_by_hand(*pair) for pair in zip(patterns, streams)], axis=0
                )
                for metric, mean in zip(("dirichlet", "entropy", "singular_ratio"), means):
                    assert found[layer, "attention", tokens, metric, head]["mean"] == pytest.approx(
                        mean, rel=1e-4
                    )


def test_a_curve_begins_with_what_goes_into_the_first_block(made):
    found = {
        (n.layer, n.place, n.metric): n.mean
        for n in made.depth.numbers
        if n.tokens == "all" and n.head is None
    }
    curve = made.depth.curve("residual")
    assert [point["depth"] for point in curve] == [0, 1, 2, 3]
    outputs = [found[layer, "output", "residual"] for layer in range(3)]
    assert [point["mean"] for point in curve] == [found[0, "input", "residual"], *outputs]
    assert all(point["low"] < point["mean"] < point["high"] for point in curve)
    entropy = made.depth.curve("entropy", "encoder")
    assert [point["depth"] for point in entropy] == [1, 2, 3]
    assert [point["mean"] for point in entropy] == [
        found[layer, "attention", "entropy"] for layer in range(3)
    ]


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        (("rank",), "no metric 'rank'"),
        (("residual", "decoder"), "no stack 'decoder'; there are encoder"),
        (("residual", None, "some"), "not 'some'"),
    ],
)
def test_what_a_curve_cannot_be_of(made, question, answer):
    with pytest.raises(EigenlensError, match=answer):
        made.depth.curve(*question)


@pytest.mark.parametrize("every", [1, 5])
def test_the_choice_of_inputs_does_not_depend_on_the_batches(ids, every):
    options = {"max_length": 8, "max_inputs": 24, "only": ["depth"], "depth_every": every}
    one, other = (study(bert(), ids, **options, batch_size=batch).depth for batch in (1, 7))
    assert {n.number for n in one.numbers} == {-(-24 // every)}
    for a, b in zip(one.numbers, other.numbers, strict=True):
        assert (a.layer, a.place, a.metric, a.head, a.number) == (
            b.layer,
            b.place,
            b.metric,
            b.head,
            b.number,
        )
        assert (a.mean, a.low, a.high) == pytest.approx((b.mean, b.low, b.high), rel=1e-4, abs=1e-6)


def test_patterns_are_the_models_own_also_before_the_rotary_embedding(ids):
    def llama():
        torch.manual_seed(0)
        return tf.LlamaModel(tf.LlamaConfig(**SMALL, initializer_range=0.4)).eval()

    options = {"max_length": 8, "max_inputs": 24, "only": ["rows", "depth"], "depth_every": 3}
    plain = study(llama(), ids, **options)
    before = study(llama(), ids, **options, before_rope=True)
    assert plain.depth.numbers == before.depth.numbers
    assert (
        plain.row_sums()[Site("self", 0)].second.ne(before.row_sums()[Site("self", 0)].second).any()
    )


def test_blocks_of_two_stacks_and_none_of_cross_attention():
    torch.manual_seed(0)
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
    model = tf.T5Model(tf.T5Config(vocab_size=50, **sizes, decoder_start_token_id=0)).eval()
    depth = study(
        model,
        torch.randint(50, (12, 15)),
        max_length=8,
        max_inputs=12,
        only=["depth"],
        depth_every=1,
    ).depth
    assert depth.stacks == ("decoder", "encoder")
    assert [(row["stack"], row["depth"]) for row in depth.table(["residual"])] == [
        (s, d) for s in depth.stacks for d in range(3)
    ]
    with pytest.raises(EigenlensError, match="no stack None; there are decoder, encoder"):
        depth.curve("residual")


class Flat(nn.Module):
    """Attends outside any numbered block."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 8)

    def forward(self, ids):
        x = self.embedding(ids)[:, None]
        return F.scaled_dot_product_attention(x, x, x)


def test_a_model_without_blocks_is_studied_without_depth(ids):
    torch.manual_seed(0)
    found = study(Flat(), ids, max_length=8, max_inputs=24)
    assert any("metrics along depth were left out" in note for note in found.notes)
    assert len(found.spectra)
    assert not found.has("depth")
    with pytest.raises(EigenlensError, match="was made without depth"):
        _ = found.depth
    with pytest.raises(EigenlensError, match="no numbered blocks around its attention"):
        study(Flat(), ids, max_length=8, max_inputs=24, only=["depth"])


def test_special_tokens_are_left_out_as_sinks(tmp_path):
    found = study(
        tiny_bert(tmp_path / "tiny"),
        some_text(tmp_path / "a.txt"),
        max_length=8,
        max_inputs=20,
        only=["depth"],
    )
    assert found.stored["options"]["depth_by"] == {"sinks": [1, 1], "every": 1}
    assert {n.number for n in found.depth.numbers} == {20}  # few inputs are all measured


@pytest.mark.parametrize(
    ("inputs", "length", "every"),
    [
        (1000, 128, 32),
        (1000, 16, 32),
        (1000, 256, 32),
        (1000, 512, 64),
        (3000, 4096, 512),
        (100, 128, 6),
        (100, 16, 6),
        (100, 512, 25),
        (100, 4096, 50),
        (10, 128, 1),
    ],
)
def test_how_many_inputs_are_measured(inputs, length, every):
    """One in 32, in long inputs fewer, but enough of them."""
    assert Options(Request(("a",), length, inputs)).depth_step(length) == every
    assert Options(Request(("a",), length, inputs), depth_every=3).depth_step(length) == 3


def test_what_is_stored_shown_and_drawn(made, capsys):
    again = Study.open(made.folder)
    assert again.depth.numbers == made.depth.numbers
    layers = json.loads(json.dumps(again.record(), allow_nan=False))["layers"]
    assert [layer["layer"] for layer in layers] == [0, 1, 2]
    for layer, point in zip(layers, again.depth.curve("stable_rank")[1:]):
        names = [f"depth_output_stable_rank{end}" for end in ("", "_low", "_high")]
        assert [layer[name] for name in names] == [point["mean"], point["low"], point["high"]]
        assert "depth_attention_entropy_without_sinks" in layer
    show(again, full=True)
    printed = capsys.readouterr().out
    assert "Tokens and patterns along depth, mean over 24 inputs" in printed
    for row, point in zip(depth_rows(again), again.depth.curve("residual"), strict=True):
        assert row["residual"] == point["mean"]
        assert f"{point['mean']:.3f}" in printed
        assert (row["entropy"] is None) == (row["depth"] == 0)
    chart = json.dumps(again.depth.plot().to_dict())
    assert all(name in chart for name in ("relative residual", "without sinks", "Dirichlet energy"))
    assert "effective_rank" in again.depth._repr_html_()


def test_a_study_of_depth_alone_can_be_shown(ids, capsys):
    found = study(bert(), ids, max_length=8, max_inputs=24, only=["depth"])
    show(found)
    assert "along depth" in capsys.readouterr().out
    assert found.sentence == found.depth.sentence != ""
    assert [layer["layer"] for layer in found.record()["layers"]] == [0, 1, 2]
    heads = found.record()["heads"]
    assert (
        len(heads) == 6
        and set(heads[0]) >= {"entropy_all", "gap_all"}
        and "rows_centred_dimensions" not in heads[0]
    )


def test_a_number_of_inputs_below_one_is_refused(ids):
    with pytest.raises(EigenlensError, match="n must be at least 1, not 0"):
        study(bert(), ids, max_length=8, max_inputs=24, depth_every=0)


def test_a_study_in_double_precision(tmp_path):
    """The same numbers, to float32's rounding in what is shared, and below its floor where it has
    one.
    """
    model, text = tiny_bert(tmp_path / "tiny"), some_text(tmp_path / "a.txt")
    single, double = (
        study(model, text, max_length=12, max_inputs=12, depth_every=1, float64=wanted)
        for wanted in (False, True)
    )
    for one, other in zip(single.depth.numbers, double.depth.numbers):
        assert (one.metric, one.place) == (other.metric, other.place)
        assert one.mean == pytest.approx(other.mean, rel=1e-3, abs=1e-5)
    assert any(
        one.mean != other.mean for one, other in zip(single.depth.numbers, double.depth.numbers)
    )
    for one, other in zip(single.spectra, double.spectra):
        assert one.eigenvalues[0] == pytest.approx(other.eigenvalues[0], rel=1e-3)
    assert double.stored["options"]["float64"] and not single.stored["options"]["float64"]

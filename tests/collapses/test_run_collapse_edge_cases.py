"""Collapse runs of models and inputs that do not allow all of it: what is left out is noted, and
the rest goes on.
"""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import (
    BertConfig,
    BertModel,
    GraniteConfig,
    GraniteModel,
    T5Config,
    T5EncoderModel,
)

import eigenlens as el
from collapses.small_runs import SMALL
from eigenlens.collapses.bounds_model import model_bounds
from tiny import small_llama

SIZE = {
    "vocab_size": 50,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}


class Step(nn.Module):
    """Attention whose parts are named as in no known family."""

    def __init__(self):
        super().__init__()
        self.mixer = nn.Linear(16, 48)

    def forward(self, x):
        q, k, v = (
            part.unflatten(-1, (2, 8)).transpose(1, 2) for part in self.mixer(x).chunk(3, -1)
        )
        return x + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


class Wrapped(nn.Module):
    """A layer that holds its attention one level down, so that it has a number in its path."""

    def __init__(self):
        super().__init__()
        self.inner = Step()

    def forward(self, x):
        return self.inner(x)


class Unknown(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(50, 16)
        self.steps = nn.ModuleList(Wrapped() for _ in range(3))

    def forward(self, ids):
        x = self.embed(ids)
        for step in self.steps:
            x = step(x)
        return x


def test_an_unknown_family_is_measured_without_ablations():
    ids = np.random.default_rng(0).integers(0, 50, (6, 12))
    run = el.collapse(Unknown(), ids, max_length=12, max_inputs=6)
    assert list(run.curves) == ["full"] and len(run.curves["full"].curve("residual")) == 4
    assert "Wrapped with inner" in run.notes[0] and "it knows those of BERT" in run.notes[0]
    assert "No ablation was measured" in run.sentence and run.paths == [] and run.bounds == []
    json.dumps(run.record(), allow_nan=False)


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (
            lambda: GraniteModel(GraniteConfig(**SIZE, residual_multiplier=0.5)),
            "not built the way eigenlens expects",
        ),
        (lambda: BertModel(BertConfig(**SIZE, hidden_act="sigmoid")), "not zero at zero"),
    ],
)
def test_what_a_model_does_not_allow_is_noted_and_the_rest_goes_on(model, why):
    run = el.collapse(
        model().eval(),
        np.random.default_rng(0).integers(3, 50, (4, 10)),
        max_length=10,
        max_inputs=4,
        paths=1,
        bounds=1,
    )
    assert len(run.curves["full"].curve("residual")) == 3 and run.paths == []
    assert any(why in note for note in run.notes)


def test_inputs_of_padding_alone_are_left_out(world):
    model = el.load(world[0]).backbone
    mask = torch.ones(3, 8, dtype=torch.long)
    mask[1], mask[2, 5:] = 0, 0
    frozen = el.freeze(model, {"input_ids": torch.randint(5, 900, (3, 8)), "attention_mask": mask})[
        0
    ]
    whole = el.freeze(model, {"input_ids": torch.randint(5, 900, (2, 8))})[0]
    for graph in (frozen, whole):
        lengths = el.decompose_paths(graph)
        assert float(lengths.shares().sum()) == pytest.approx(1, abs=1e-4) and lengths.error < 1e-4
    assert {index for index, _, _ in model_bounds(frozen)} == {0, 2}


def test_a_position_bias_of_one_head_voids_the_cubic_bound():
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=50,
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=1,
        num_heads=2,
        decoder_start_token_id=0,
    )
    model = T5EncoderModel(config).eval()
    table = model.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight
    with torch.no_grad():
        table.zero_()
        table[:, 1] = torch.randn(len(table))
    rows = [
        bound
        for _, _, bound in model_bounds(
            el.freeze(model, {"input_ids": torch.randint(3, 50, (1, 9))})[0]
        )
    ]
    assert not any(head.holds for bound in rows for head in bound.heads)
    # the weights are there all the same
    assert all(head.beta is not None for bound in rows for head in bound.heads)


def test_all_equal_tokens_and_padding_give_numbers(world, tmp_path):
    run = el.collapse(
        small_llama(), np.full((4, 8), 7), max_length=8, max_inputs=4, paths=2, bounds=1
    )
    assert [point["mean"] for point in run.curves["full"].curve("residual")] == pytest.approx(
        [0, 0, 0], abs=1e-6
    )
    json.dumps(run.record(), allow_nan=False)
    lines = [{"text": "word " * number} for number in (3, 8, 20, 5, 12, 30)]
    short = tmp_path / "short.jsonl"
    short.write_text("\n".join(map(json.dumps, lines)))
    padded = el.collapse(
        world[0], short, **{**SMALL, "max_length": 32, "paths": 6, "bounds": 6}, padding=True
    )
    json.dumps(padded.record(), allow_nan=False)
    assert padded.error < 1e-4 and sum(row["share"] for row in padded.paths) == pytest.approx(
        1, abs=1e-4
    )

"""Mechanisms in models that were trained without them.

The models' own measures, and refusals as rows.
"""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import eigenlens as el
from eigenlens.bench.damage import DamageScale, changes_of, damage, measured, own_text, sentence
from eigenlens.data.inputs import Request, prepare
from eigenlens.plans.held_out import HeldOut
from eigenlens.run.parts import Parts
from eigenlens.run.progress import silent
from tiny import of_catalogue, some_text, tiny_bert, tiny_llama


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("damage")
    tiny_bert(folder / "bert")
    tiny_llama(folder / "llama")
    some_text(folder / "text.txt", documents=8)
    return folder


def held_of(place, name, length=16):
    model = el.load(place / name)
    inputs = prepare(model, Request((str(place / "text.txt"),), length, 6, 0.5, 0, False), place)
    return HeldOut(model, inputs, inputs.groups, 2, [])


def test_the_figures_are_those_of_two_passes(place):
    held = held_of(place, "bert")
    changes = changes_of(held.model, ["softmax", "sinkhorn", "gated", "off-by-one"], [2])
    assert list(changes) == [("sinkhorn", ""), ("off-by-one", ""), ("query-key rank", "rank 2")]
    rows = {row["mechanism"]: row for row in measured(held, 4, changes, silent)}
    ids = torch.cat([batch["input_ids"] for batch in held.batches(4)])
    with torch.no_grad():
        plain = held.model.module(ids).last_hidden_state.mean(1)
        with el.use_attention(held.model, "sinkhorn"):
            other = held.model.module(ids).last_hidden_state.mean(1)
    cosine = float(F.cosine_similarity(plain, other).mean())
    assert (
        rows["sinkhorn"]["changed"] == rows["sinkhorn"]["kept"] == pytest.approx(cosine, abs=1e-5)
    )
    assert (
        rows["sinkhorn"]["plain"] == 1 and rows["sinkhorn"]["measure"] == "cosine of the embeddings"
    )
    assert rows["query-key rank"]["kept"] < 1


def test_a_direction_that_does_not_fit_is_a_row_with_the_reason(place):
    held = held_of(place, "llama")
    rows = measured(held, 3, changes_of(held.model, ["sinkhorn", "window"], []), silent)
    assert "cannot be causal" in rows[0]["refused"] and rows[0]["kept"] is None
    assert rows[1]["refused"] == "" and rows[1]["measure"] == "perplexity" and rows[1]["plain"] > 1
    assert rows[1]["kept"] == 1  # a window of 32 is all of 16 tokens
    assert "llama window" in sentence(rows[1:])


def test_a_model_that_is_not_here_is_a_row_with_the_reason(place, tmp_path):
    parts = Parts.begin(tmp_path / "run", {}, what="bench")
    scale = DamageScale((str(place / "nowhere"), str(place / "bert")), 3, 16, ())
    found = damage(scale, parts, ["off-by-one"], silent)
    assert len(found.rows()) == 1 and len(found.rows("refused")) == 1
    assert "the model cannot be loaded" in found.rows("refused")[0]["refused"]
    assert found.plot().to_dict()["title"]


@pytest.mark.download
def test_own_text_is_what_the_model_finds_likely():
    model = of_catalogue("stories15m")
    ids = own_text(model, 3, 24)
    assert ids.shape == (3, 24) and torch.equal(ids, own_text(model, 3, 24))
    with torch.no_grad():
        own = F.cross_entropy(model.module(ids).logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        chance = torch.from_numpy(np.random.default_rng(0).integers(3, 32000, (3, 24)))
        random = F.cross_entropy(
            model.module(chance).logits[:, :-1].flatten(0, 1), chance[:, 1:].flatten()
        )
    assert float(own) < 0.5 * float(random)

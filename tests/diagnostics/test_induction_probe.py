"""The tokens that induction heads are probed by: which models are, with which ids, how many."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from diagnostics.passes import diagnosed
from eigenlens import load
from eigenlens.diagnostics import Induction
from eigenlens.diagnostics.induction_probe import layout_of, probe_batch
from tiny import of_catalogue, small_bert, small_llama


@pytest.mark.parametrize("name", ["dinov2-small", "whisper-tiny-en"])
def test_models_that_read_no_tokens_are_told_apart(name):
    model = of_catalogue(name)
    diagnostic = Induction()
    assert diagnostic.batches(model) == ()
    assert "does not read tokens" in layout_of(model, 50, 2)


def test_a_module_without_a_config_is_not_probed():
    model = load(torch.nn.TransformerEncoderLayer(8, 2, batch_first=True))
    assert "does not read tokens" in layout_of(model, 50, 2)


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

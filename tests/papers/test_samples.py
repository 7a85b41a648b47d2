"""A decoder's own text begins where its tokenizer begins documents."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from eigenlens.errors import EigenlensError
from eigenlens.papers.samples import sample_ids
from tiny import small_llama


@dataclass
class Tokenizer:
    bos_token_id: int | None
    eos_token_id: int | None
    all_special_ids: tuple[int, ...] = (0, 1)


@dataclass
class Decoder:
    module: Any
    tokenizer: Tokenizer
    name: str = "small"
    device: str = "cpu"


@pytest.mark.parametrize(
    ("bos", "eos", "start"), [(1, 0, 1), (0, None, 0), (None, 0, 0), (None, 1, 1)]
)
def test_a_text_begins_with_the_start_token_or_the_one_that_ends_documents(bos, eos, start):
    ids = sample_ids(Decoder(small_llama(), Tokenizer(bos, eos)), 3, 12, seed=0)
    assert ids.shape == (3, 12) and set(ids[:, 0].tolist()) == {start}
    assert ids[:, 1:].min() > 1  # no special token is drawn


def test_a_tokenizer_with_neither_is_refused():
    with pytest.raises(EigenlensError, match="small cannot sample a text"):
        sample_ids(Decoder(small_llama(), Tokenizer(None, None)), 1, 4, seed=0)


def test_tokens_are_drawn_from_the_model_and_again_from_a_seed():
    """The first drawn tokens follow the model's own probabilities, special tokens left out."""
    model = Decoder(small_llama(), Tokenizer(1, 0))
    ids = sample_ids(model, 4000, 2, seed=0)
    assert torch.equal(ids, sample_ids(model, 4000, 2, seed=0))
    with torch.no_grad():
        p = model.module(input_ids=torch.tensor([[1]])).logits[0, -1].softmax(-1)
    p[[0, 1]] = 0
    found = torch.bincount(ids[:, 1], minlength=len(p)) / 4000
    assert (found - p / p.sum()).abs().max() < 0.03

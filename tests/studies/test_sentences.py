"""What depth and comparisons say of themselves, with every number taken again by hand."""

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel

from eigenlens import compare, study
from eigenlens.captures import Head
from eigenlens.diagnostics.depth import Depth
from eigenlens.spectra.overlap import Overlap
from eigenlens.stats import DepthNumber
from eigenlens.studies.comparison import Comparison, Pair


def numbers(metric, values, stack="encoder"):
    """A metric along depth.

    The first value goes into block 0, the others come out of the blocks.
    """
    first = DepthNumber(stack, 0, "input", "all", metric, None, values[0], None, None, 1)
    return [
        first,
        *(
            DepthNumber(stack, i, "output", "all", metric, None, v, None, None, 1)
            for i, v in enumerate(values[1:])
        ),
    ]


def test_rank_and_cosine_along_depth():
    depth = Depth(
        (*numbers("effective_rank", [9.0, 2.5, 4.0]), *numbers("cosine", [0.25, 0.9, 0.5]))
    )
    assert (
        depth.sentence
        == "The effective rank of the tokens goes from 9.0 to 4.0 over 2 blocks; it is lowest"
        " (2.5) at depth 1. The mean cosine of two tokens goes from 0.25 to 0.50."
    )
    assert Depth(()).sentence == "" and "<svg" not in Depth(())._repr_html_()


def test_each_stack_has_its_sentence():
    both = [
        *numbers("effective_rank", [9.0, 8.0]),
        *numbers("cosine", [0.1, 0.2]),
        *numbers("effective_rank", [5.0, 6.0], "decoder"),
        *numbers("cosine", [0.3, 0.4], "decoder"),
    ]
    message = Depth(tuple(both)).sentence
    assert (
        "of the encoder goes from 9.0 to 8.0" in message
        and "of the decoder goes from 5.0 to 6.0" in message
    )


def test_a_comparison_speaks_of_the_heads_at_the_largest_rank():
    names = (Head("x", 0, 0), Head("x", 0, 1))

    def pair(level, rank, scale):
        there = Overlap(
            "a",
            "b",
            names,
            names,
            rank,
            0.1,
            scale * np.array([[0.8, 0.1], [0.3, 0.4]]),
            np.full((2, 2), 0.75),
        )
        back = Overlap("b", "a", names, names, rank, 0.1, there.matrix.T, np.full((2, 2), 0.5))
        return Pair(level, rank, there, back, None)

    found = Comparison(
        (), "centred", (pair("head", 4, 0.5), pair("head", 16, 1.0), pair("layer", 16, 0.1))
    )
    assert (
        found.sentence
        == "a and b: two heads, one of each study, share 0.40 of their leading 16 directions on"
        " average, 4.0 times chance (0.100); a head and its best match in the other study share"
        " 0.60. The directions of the first study explain 75 % of the variance that the second"
        " study's own directions explain; the other way round it is 50 %."
    )


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    shape = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "vocab_size": 50,
    }
    return BertModel(
        BertConfig(**shape, max_position_embeddings=16), add_pooling_layer=False
    ).eval()


@pytest.mark.parametrize("only", ["rows", "matrices", "depth", "moments"])
def test_a_study_of_anything_shows_itself(model, only):
    """Its picture is of what it holds; a study of moments has none."""
    found = study(
        model, torch.randint(0, 50, (20, 12)), max_length=12, max_inputs=20, rank=4, only=[only]
    )
    view = found._repr_html_()
    assert ("<svg" in view) == (only != "moments")
    message = {
        "rows": "score rows",
        "matrices": "score matrices",
        "depth": "effective rank of the tokens",
    }
    assert only not in message or message[only] in view
    assert found.spectra._repr_html_().count("<svg") == (only in {"rows", "matrices"})


def test_a_comparison_shows_itself(model):
    ids = torch.randint(0, 50, (40, 12))
    view = compare(
        *(
            study(model, part, max_length=12, max_inputs=20, only=["rows"])
            for part in (ids[:20], ids[20:])
        ),
        ranks=[4],
    )._repr_html_()
    assert (
        "<svg" in view
        and "<h4>Comparison of 2 studies</h4>" in view
        and "two heads, one of each study, share" in view
    )

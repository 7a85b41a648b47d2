"""The tables of a study with more heads than a line has room for."""

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel

import eigenlens as el
from eigenlens.cli.terminal import show

HEADS = 40


@pytest.fixture(scope="module")
def wide():
    """A study of two layers of 40 heads."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=50,
        hidden_size=2 * HEADS,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        initializer_range=0.3,
    )
    ids = np.random.default_rng(0).integers(0, 50, (24, 8))
    return el.study(BertModel(config, add_pooling_layer=False), ids, only="rows")


def dimensions(study, layer):
    heads = study.spectra.select(analysis="rows", level="head", centring="centred")
    return {s.head: s.dimension(0.9) for s in heads if s.layer == layer}


def test_by_default_a_layer_is_one_line_with_its_range(wide, capsys):
    show(wide)
    printed = capsys.readouterr().out
    for layer in (0, 1):
        found = dimensions(wide, layer)
        least, most = min(found.values()), max(found.values())
        line = next(line for line in printed.splitlines() if line.startswith(f"L{layer} "))
        label, heads, low, first, middle, high, last = line.split()
        assert (label, int(heads), int(low), int(high)) == (f"L{layer}", HEADS, least, most)
        assert float(middle) == np.median(list(found.values()))
        assert found[int(first[2:-1])] == least and found[int(last[2:-1])] == most
    assert "H39 " not in printed


def test_in_full_every_head_is_there_once(wide, capsys):
    show(wide, full=True)
    lines = capsys.readouterr().out.splitlines()
    shown = {0: [], 1: []}
    for start in (i for i, line in enumerate(lines) if line.startswith("layer  H")):
        for layer, line in enumerate(lines[start + 2 : start + 4]):
            shown[layer] += map(int, line.split()[1:])
    for layer in (0, 1):
        assert shown[layer] == list(dimensions(wide, layer).values())

"""Tensors that come from files and messages."""

import numpy as np
import torch

from eigenlens.run.arrays import ALIGNMENT, aligned, as_tensors


def test_products_with_what_was_read_have_the_last_bits_of_what_was_written():
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 18, 64, generator=draw)
    bytes_ = torch.empty(x.numel() + 2)
    read = bytes_[2:].view(18, 64).copy_(x)  # at a multiple of 8, as in a file
    assert read.data_ptr() % ALIGNMENT
    found = aligned({"x": read, "mine": x})
    assert found["x"].data_ptr() % ALIGNMENT == 0
    assert found["mine"] is x
    assert torch.equal(found["x"] @ y.T, x @ y.T)
    assert torch.equal(found["x"] @ y[0], x @ y[0])


def test_own_tensors_do_not_change_what_they_were_made_from():
    array = np.arange(6.0).reshape(2, 3)
    own, shared = (as_tensors({"x": array}, own=own)["x"] for own in (True, False))
    own.zero_()
    assert array[1, 2] == 5
    shared.zero_()
    assert not array.any()

"""Files are complete or absent, and a killed writer leaves nothing that stays."""

import multiprocessing
import os
import time

import pytest
import torch

from eigenlens.run.files import read_tensors, write_tensors
from run.processes import PATIENCE


def write_for_ever(path):
    while True:
        write_tensors(path, {"x": torch.zeros(2_000_000)})


@pytest.mark.skipif(os.name == "nt", reason="kills a process")
def test_what_a_killed_writer_left_goes_with_the_next_one(tmp_path):
    """Killed while the bytes are written, which safetensors does under a name of its own."""
    writer = multiprocessing.get_context("spawn").Process(
        target=write_for_ever, args=(tmp_path / "x.safetensors",)
    )
    writer.start()
    deadline = time.monotonic() + PATIENCE
    while not any(f.startswith(".tmp") for _, _, files in os.walk(tmp_path) for f in files):
        assert time.monotonic() < deadline, "safetensors writes no file of its own any more"
    writer.kill()
    writer.join()
    write_tensors(tmp_path / "x.safetensors", {"x": torch.ones(3)})
    assert [file.name for file in tmp_path.iterdir()] == ["x.safetensors"]
    assert read_tensors(tmp_path / "x.safetensors")["x"].tolist() == [1, 1, 1]

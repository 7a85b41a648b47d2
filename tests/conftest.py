"""Settings for every test: no hub, one thread a worker, the same random numbers."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _same_random_numbers():
    torch.manual_seed(0)

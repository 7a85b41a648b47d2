"""A model that a run works with, and what is left of it afterwards."""

import numpy as np
import pytest
import torch

from eigenlens import Dask, EigenlensError, load
from eigenlens.passes.use_model import use_model


@pytest.mark.parametrize("float64", [False, True])
def test_a_module_is_as_before_when_the_run_ends(bert, float64):
    module = load(bert).module.train()
    data = np.arange(40).reshape(4, 10)
    with use_model(module, data, float64=float64) as used:
        assert not used.model.module.training
        assert (used.model.module is module) == (not float64)
        assert next(used.model.module.parameters()).dtype == (
            torch.float64 if float64 else torch.float32
        )
        assert used.names == used.names and len(list(used.scratch.iterdir())) == 1
    assert module.training and next(module.parameters()).dtype == torch.float32
    assert not used.scratch.exists()


def test_data_that_is_not_given_is_the_default_of_the_model(bert):
    with use_model(bert) as used:
        assert used.names == ("python-docs",)


def test_a_module_in_memory_is_refused_where_other_processes_compute(bert):
    refused = pytest.raises(EigenlensError, match="was never saved")
    with refused, use_model(load(bert).module, engine=Dask(workers=1)):
        pytest.fail("the run began")
    with use_model(bert, engine=Dask(workers=1)) as used:
        assert used.ref.place == str(bert.resolve())

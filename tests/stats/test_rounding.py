"""Below which a relative residual is rounding."""

import numpy as np
import pytest
import torch
from torch import nn

from eigenlens.stats.geometry import relative_residual
from eigenlens.stats.rounding import describe_residual, precision_of, rounding_floor, rows_in_words


@pytest.mark.parametrize(("name", "kind"), [("float32", np.float32), ("float64", np.float64)])
def test_the_floor_is_eight_spacings_and_no_rounding_of_four_exceeds_it(name, kind):
    """Equal tokens whose entries are each off by up to 4ε of their size, the worst signs among
    them.
    """
    eps = float(np.finfo(kind).eps)
    assert rounding_floor(name) == 8 * eps
    x = torch.randn(
        1, 1, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    ).expand(1, 16, 24)
    worst = torch.ones(1, 16, 24, dtype=torch.float64)
    worst[:, ::2] = -1
    for off in (worst, torch.rand(1, 16, 24, dtype=torch.float64) * 2 - 1):
        found = float(relative_residual(x * (1 + 4 * eps * off)))
        assert 0 < found < rounding_floor(name)
    assert float(relative_residual(x * (1 + 20 * eps * worst))) > rounding_floor(name)


def test_the_coarsest_parameter_decides():
    assert precision_of(nn.Linear(2, 2)) == "float32"
    assert precision_of(nn.Linear(2, 2).double()) == "float64"
    assert (
        precision_of(nn.Sequential(nn.Linear(2, 2).double(), nn.Linear(2, 2).bfloat16()))
        == "bfloat16"
    )
    assert precision_of(nn.ReLU()) == "float32"


def test_only_residuals_below_the_floor_become_words():
    rows = [
        {"depth": 0, "residual": 1e-7, "cosine": 1e-7},
        {"depth": 1, "residual": None, "cosine": 1.0},
    ]
    assert rows_in_words(rows, {"residual"}, 1e-6) == [
        {**rows[0], "residual": "below rounding"},
        rows[1],
    ]
    assert (
        describe_residual(1e-7, 1e-6),
        describe_residual(1e-6, 1e-6),
        describe_residual(0.25, 1e-6),
    ) == (
        "below rounding",
        "1e-06",
        "0.25",
    )

"""A module compiled by torch is studied as the one it was made of."""

import numpy as np
import pytest
import torch

import eigenlens as el
from studies.modules_in_hand import IDS, SMALL, Encoder
from tiny import small_bert


@pytest.mark.slow
@pytest.mark.parametrize("how", ["wrapped", "in place", "a part", "own module"])
def test_a_compiled_module_is_studied_as_the_one_it_was_made_of(how):
    def plain():
        torch.manual_seed(0)
        return Encoder().eval() if how == "own module" else small_bert()

    model = plain()
    if how in ("wrapped", "own module"):
        model = torch.compile(model, backend="eager")
    elif how == "in place":
        model.compile(backend="eager")
    else:
        model.encoder.layer[0] = torch.compile(model.encoder.layer[0], backend="eager")
    with torch.no_grad():
        model(IDS[:2])  # compiled by now
    options = {**SMALL, "only": ("rows", "depth")}
    found, expected = el.study(model, IDS, **options), el.study(plain(), IDS, **options)
    assert found.facts.model.fingerprint == expected.facts.model.fingerprint
    for a, b in zip(found.spectra, expected.spectra, strict=True):
        np.testing.assert_allclose(a.eigenvalues, b.eigenvalues, rtol=1e-5, atol=1e-9)
    with torch.no_grad(), el.capture(model) as calls:
        model(IDS[:2])
    assert len(calls) == 2
    assert torch._dynamo.eval_frame._stance.stance == "default"
    el.collapse(model, IDS, **SMALL, paths=0, bounds=0, variants=["full"])

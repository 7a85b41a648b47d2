"""Expensive parts are measured on inputs by their place among all.

Batches of any size, also with padding, give the same.
"""

import numpy as np
import pytest
import torch

from diagnostics.passes import subject_of
from eigenlens.captures import capture_layers
from eigenlens.studies.diagnostic_runner import DiagnosticRunner
from tiny import small_bert


@pytest.mark.parametrize("padded", [False, True])
def test_relevance_balanced_keys_and_bounds_do_not_depend_on_the_batch(padded):
    draw = np.random.default_rng(0)
    ids = draw.integers(1, 50, (26, 12))
    inputs = {"input_ids": torch.tensor(ids)}
    if padded:
        lengths = draw.integers(2, 13, 26)
        inputs["attention_mask"] = torch.tensor(np.arange(12) < lengths[:, None]).long()
    names = ("keys", "smoothing", "relevance")
    model = small_bert()
    found = []
    for size in (3, 7):
        batches = [
            {key: x[at : at + size] for key, x in inputs.items()} for at in range(0, 26, size)
        ]
        found.append(diagnosed_in_batches(model, batches, names))
    for name in names:
        one, other = (each[name].result() for each in found)
        assert [(n.at, n.name, n.number) for n in one.numbers] == [
            (n.at, n.name, n.number) for n in other.numbers
        ]
        assert [n.mean for n in one.numbers] == pytest.approx(
            [n.mean for n in other.numbers], rel=1e-4, abs=1e-6
        )
    counted = {name: {n.name: n.number for n in found[0][name].result().numbers} for name in names}
    # of 26 inputs every second is shown, of these every second is expensive
    assert counted["relevance"]["mean"] == counted["keys"]["balanced_below"] == 7
    assert counted["keys"]["below"] == 13
    sampled = range(0, 26, 4)
    whole = len(sampled) if not padded else sum(lengths[place] == 12 for place in sampled)
    assert counted["smoothing"].get("v", 0) == whole


def diagnosed_in_batches(model, batches, names):
    """The diagnostics as a study shows them every second input."""
    studied = subject_of(model, batches[0])
    diagnosing = DiagnosticRunner.of(studied, {name: {} for name in names}, 2)
    paths = {site.name: site.kind for site in studied.sites.values()}
    place = 0
    with (
        torch.no_grad(),
        diagnosing.attached(),
        capture_layers(model, paths, diagnosing.layer, calls=diagnosing.call),
    ):
        for batch in batches:
            diagnosing.shown(batch, place)
            model(**batch)
            place += len(batch["input_ids"])
    return diagnosing.diagnostics

"""Every statistic.

One pass equals any split into shards, merged in any grouping, through files or not.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save

from eigenlens.captures import Site
from eigenlens.stats import (
    MatrixGram,
    MatrixProjection,
    MatrixSketch,
    QueryKeyMoments,
    RowMoments,
    WithinSpectra,
)
from stats.calls import FORMS, call

# forms in which whole matrices have one mask
FIXED = ["full", "grouped", "causal", "window", "capped", "biased"]


def pilot(form):
    gram = MatrixGram()
    for layer in (0, 1):
        gram.update(call(form, batch=6, layer=layer, seed=100))
    return gram


def makers(form):
    rows = {
        "rows": RowMoments,
        "pattern rows": lambda: RowMoments("pattern"),
        "moments": QueryKeyMoments,
        "gram": MatrixGram,
        "within": WithinSpectra,
    }
    if form in FIXED:
        tests = MatrixSketch.from_pilot(pilot(form)).tests
        bases = {str(site): x[:, :4] for site, x in tests.items()}
        bases |= {
            "self/0/layer": tests[Site("self", 0)][0, :3],
            "self/stack": tests[Site("self", 1)][1, :3],
        }
        rows |= {
            "sketch": lambda: MatrixSketch(tests),
            "projection": lambda: MatrixProjection(bases),
        }
    return rows


def settings_of(statistic):
    return {"sketch": ("tests", "of"), "projection": ("bases", "of")}.get(statistic, ())


def seen(make, calls):
    statistic = make()
    for each in calls:
        statistic.update(each)
    return statistic


def through_file(name, statistic):
    kept = {key: getattr(statistic, key) for key in settings_of(name)}
    state = load(save(statistic.state()))
    again = type(statistic).from_state(state, **kept)
    assert all(torch.equal(x, again.state()[key]) for key, x in statistic.state().items())
    return again


@settings(max_examples=60, deadline=None)
@given(
    form=st.sampled_from(FORMS),
    cuts=st.lists(st.integers(0, 6), max_size=4),
    left=st.booleans(),
    by_file=st.booleans(),
)
def test_one_pass_equals_any_split_into_shards(form, cuts, left, by_file):
    calls = [call(form, batch=2, layer=i % 2, seed=i) for i in range(6)]
    bounds = [0, *sorted(cuts), 6]
    for name, make in makers(form).items():
        whole = seen(make, calls).state()
        shards = [seen(make, calls[a:b]) for a, b in zip(bounds, bounds[1:])]
        if by_file:
            shards = [through_file(name, shard) for shard in shards]
        before = [{key: x.clone() for key, x in shard.state().items()} for shard in shards]
        if left:  # ((a + b) + c) …
            merged = shards[0]
            for shard in shards[1:]:
                merged.merge(shard)
            untouched = range(1, len(shards))
        else:  # … (a + (b + c))
            for first, second in reversed(list(zip(shards, shards[1:]))):
                first.merge(second)
            merged, untouched = shards[0], [len(shards) - 1] if len(shards) > 1 else []
        assert merged.state().keys() == whole.keys()
        for key, tensor in whole.items():
            torch.testing.assert_close(
                merged.state()[key],
                tensor,
                rtol=1e-9,
                atol=1e-9,
                msg=lambda m, n=name, k=key: f"{n} {k}: {m}",
            )
        for index in untouched:
            assert all(
                torch.equal(x, before[index][key]) for key, x in shards[index].state().items()
            )


@pytest.mark.parametrize("name", ["rows", "moments", "gram", "sketch", "projection", "within"])
def test_memory_does_not_grow_with_inputs(name):
    """All but the exact form: their state after many inputs is as large as after few."""
    make = makers("causal")[name]

    def size(number):
        return sum(
            x.numel()
            for x in seen(make, [call("causal", seed=i) for i in range(number)]).state().values()
        )

    assert (size(8) > size(2)) == (name == "gram")

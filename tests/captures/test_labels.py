"""What a person reads of a head is its label, what a file has of a layer is its key."""

import copy
from itertools import product

import pytest

from eigenlens.captures import Head, Labels, Site, labelled, location, location_of
from eigenlens.captures.sites import field_of

T5 = ("encoder", "decoder", "decoder.cross")


def test_one_stack_is_not_named():
    labels = Labels(["encoder"])
    assert labels(Head("encoder", 3, 4)) == Head("encoder", 3, 4).label == "L3H4"
    assert labels(Site("encoder", 3)) == Site("encoder", 3).label == "L3"
    assert labels("encoder") == labels.stack("encoder") == "encoder"


@pytest.mark.parametrize(
    ("stacks", "where", "label"),
    [
        (("encoder", "decoder"), Head("encoder", 0, 11), "encoder L0H11"),
        (("encoder", "decoder"), Site("decoder", 10), "decoder L10"),
        (T5, Head("decoder", 3, 4), "decoder L3H4"),
        (T5, Head("decoder.cross", 3, 4), "cross L3H4"),
        (T5, Site("decoder.cross", 3), "cross L3"),
        (T5, "decoder.cross", "cross"),
        (("self", "cross"), Head("self", 1, 2), "self L1H2"),
        (("self", "cross"), Head("cross", 1, 2), "cross L1H2"),
        (("cross",), Head("cross", 1, 2), "L1H2"),
        # two stacks would be called the same
        (("text.cross", "image.cross"), Head("image.cross", 1, 2), "image.cross L1H2"),
        (("cross", "decoder.cross"), Site("decoder.cross", 1), "decoder.cross L1"),
        # one that is none of the stacks is never taken for one of them
        (("encoder",), Head("decoder", 1, 2), "decoder L1H2"),
    ],
)
def test_of_several_stacks_each_is_named(stacks, where, label):
    assert Labels(stacks)(where) == label
    assert Labels(reversed(stacks * 2))(where) == label


@pytest.mark.parametrize("stacks", [("self",), T5, ("a.cross", "b.cross", "cross", "a")])
def test_no_two_heads_or_layers_share_a_label(stacks):
    heads = [Head(*at) for at in product(stacks, range(12), range(12))]
    places = [*heads, *dict.fromkeys(head.site for head in heads), *stacks]
    labels = Labels(stacks)
    assert len({labels(at) for at in places}) == len(places)


@pytest.mark.parametrize("stack", [*T5, "self", "model.vision/tower"])
def test_keys_are_read_as_they_were_written(stack):
    for layer in (0, 3, 10):
        site = Site(stack, layer)
        assert str(site) == f"{stack}/{layer}"
        assert Site.parse(str(site)) == site
        assert field_of(f"{site}/values") == (site, "values")


@pytest.mark.parametrize("at", [Head("decoder.cross", 3, 4), Site("encoder", 3)])
def test_records_and_copies_give_the_location_again(at):
    assert location(**vars(at)) == location_of({**vars(at), "mean": 0.5}) == at
    assert location_of({**vars(at), "head": getattr(at, "head", None)}) == at
    assert copy.deepcopy(at) == at
    assert len({at, location(**vars(at))}) == 1


def test_the_order_is_stack_layer_head():
    heads = [Head(*at) for at in product(("a", "b"), (2, 10), (9, 11))]
    shuffled = [heads[i] for i in (3, 0, 7, 1, 6, 2, 5, 4)]
    assert sorted(shuffled) == heads
    assert heads[0].site == Site("a", 2) < Site("a", 10) < Site("b", 2)


def test_tables_to_read_have_one_column_for_where():
    rows = [
        {"model": "one", "stack": "encoder", "layer": 1, "head": 2, "rate": 0.5},
        {"model": "one", "stack": "encoder", "layer": 10, "head": 0, "rate": 0.25},
    ]
    assert labelled(rows) == [
        {"model": "one", "head": "L1H2", "rate": 0.5},
        {"model": "one", "head": "L10H0", "rate": 0.25},
    ]
    both = [
        {"stack": "decoder", "layer": 0, "x": 1},
        {"stack": "decoder.cross", "layer": 0, "x": 2},
    ]
    assert labelled(both) == [{"layer": "decoder L0", "x": 1}, {"layer": "cross L0", "x": 2}]


def test_the_stacks_of_one_model_do_not_name_those_of_another():
    rows = [
        {"model": "bert", "stack": "encoder", "layer": 1},
        {"model": "t5", "stack": "encoder", "layer": 1},
        {"model": "t5", "stack": "decoder", "layer": 1},
    ]
    assert [row["layer"] for row in labelled(rows)] == ["L1", "encoder L1", "decoder L1"]


def test_heads_without_a_stack_are_of_models_with_one():
    rows = [{"model": "one", "layer": 1, "head": 2, "rank": 5}]
    assert labelled(rows) == [{"model": "one", "head": "L1H2", "rank": 5}]


def test_tables_of_other_things_stay_as_they_are():
    for rows in (
        [],
        [{"stack": "encoder", "depth": 3}],
        [{"layer": 1, "rank": 4}],
        [{"layer": "first", "stack": "encoder"}],
        [{"layer": 1, "head": "linear"}],
    ):
        assert labelled(rows) == rows

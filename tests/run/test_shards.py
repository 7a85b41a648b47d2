"""Inputs are cut at the ends of documents, and always into the same tree."""

import numpy as np
import pytest

from eigenlens import EigenlensError
from eigenlens.run.shards import (
    SHARDS_PER_GROUP,
    Failure,
    Shard,
    cut_at_documents,
    most_states,
    shard_groups,
    stop_error,
)


def documents_of(*lengths):
    return np.repeat(np.arange(len(lengths)), lengths)


@pytest.mark.parametrize("seed", range(20))
def test_every_input_is_in_one_shard_and_documents_stay_whole(seed):
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 12))
    lengths = rng.integers(1, 15, size=int(rng.integers(1, 30)))
    documents = documents_of(*lengths)
    runs = cut_at_documents(documents, size)
    assert [i for start, stop in runs for i in range(start, stop)] == list(range(len(documents)))
    ends = {*np.cumsum(lengths).tolist()}
    for start, stop in runs:
        rest = min(end for end in ends if end >= min(start + size, len(documents))) - start
        assert stop - start <= 2 * size
        assert stop in ends or rest > 2 * size, "cut inside of a document that is not too long"


def test_a_document_longer_than_two_shards_is_cut_inside():
    assert cut_at_documents(documents_of(50), 20) == [(0, 20), (20, 50)]
    assert cut_at_documents(documents_of(100, 3), 10)[:3] == [(0, 10), (10, 20), (20, 30)]
    assert cut_at_documents(documents_of(3, 3, 3, 3), 4) == [(0, 6), (6, 12)]
    assert cut_at_documents(documents_of(), 4) == []


def test_shards_have_their_group_by_their_place_alone():
    shards = [Shard(i, 1, (), int) for i in range(2 * SHARDS_PER_GROUP + 3)]
    assert [[shard.number for shard in shard_group] for shard_group in shard_groups(shards)] == [
        list(range(SHARDS_PER_GROUP)),
        list(range(SHARDS_PER_GROUP, 2 * SHARDS_PER_GROUP)),
        [2 * SHARDS_PER_GROUP, 2 * SHARDS_PER_GROUP + 1, 2 * SHARDS_PER_GROUP + 2],
    ]


def test_a_process_holds_three_states_at_most():
    assert [
        most_states(number) for number in (0, 1, 2, SHARDS_PER_GROUP, SHARDS_PER_GROUP + 1, 1000)
    ] == [0, 1, 2, 2, 3, 3]


def test_a_shard_is_named_by_its_documents():
    assert (
        str(Shard(3, 64, ("a.txt", "b.txt"), int))
        == "shard 3 (64 inputs of the documents a.txt, b.txt)"
    )
    assert str(Shard(0, 1, ("a.txt",), int)) == "shard 0 (1 input of the document a.txt)"
    assert (
        str(Shard(0, 9, tuple("abcdefg"), int))
        == "shard 0 (9 inputs of the documents a, b, c, d, e and 2 more)"
    )


def test_a_failure_is_told_in_one_line():
    shard = Shard(7, 2, ("a",), int)
    assert (
        str(stop_error(shard, ValueError("wrong\nTraceback")))
        == "shard 7 (2 inputs of the document a) failed: ValueError: wrong"
    )
    assert str(stop_error(shard, EigenlensError("our own words"))).endswith("failed: our own words")
    assert Failure.of(shard, KeyError()).record() == {
        "shard": 7,
        "inputs": 2,
        "documents": ["a"],
        "error": "KeyError",
    }

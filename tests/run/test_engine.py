"""The local engine folds shards in a fixed order, goes on where it stopped, and says what
failed.
"""

import pytest
import torch

from eigenlens import EigenlensError
from eigenlens.run.engine import Local, choose_engine, use_engine
from eigenlens.run.shards import PartialFold
from run.jobs import STEPS, Failing, Spelling, some_shards

TREE = "(((((((0 1) 2) 3) 4) 5) 6) 7)"


def fold(job, number, engine=None, **options):
    return list((engine or Local()).fold(job, some_shards(number), **options))


def test_shards_are_merged_one_after_the_other_inside_their_group():
    steps = fold(Spelling(), 11)
    assert [at.state for at in steps][:3] == ["0", "(0 1)", "((0 1) 2)"]
    assert [at.state for at in steps if at.complete] == [TREE, "((8 9) 10)"]
    assert [(at.group, at.shards) for at in steps][-4:] == [(0, 8), (1, 1), (1, 2), (1, 3)]


@pytest.mark.parametrize("stop", range(1, 12))
def test_it_goes_on_from_every_place_where_it_may_have_stopped(stop):
    steps, messages = fold(Spelling(), 11), []
    rest = fold(Spelling(), 11, resume_from=steps[stop - 1], progress=messages.append)
    assert [at.state for at in [*steps[:stop], *rest] if at.complete] == [
        at.state for at in steps if at.complete
    ]
    assert messages == [STEPS * i for i in range(stop + 1, 12)], (
        "only what is left is run, and counted from there"
    )


def test_a_shard_that_fails_ends_the_run_and_is_named():
    with pytest.raises(EigenlensError) as raised:
        fold(Failing(fail=(5,)), 11)
    assert (
        str(raised.value)
        == "shard 5 (4 inputs of the document document 5) failed: ValueError: 5 is not to my taste"
    )


def test_or_it_is_left_out_and_recorded():
    steps = fold(Failing(fail=(0, 5)), 11, Local("partial"))
    whole = [at for at in steps if at.complete]
    assert [at.state for at in whole] == ["(((((1 2) 3) 4) 6) 7)", "((8 9) 10)"]
    assert [failure.shard for failure in whole[0].failed] == [0, 5]
    assert not whole[1].failed


def test_a_group_that_fails_completely_has_no_state():
    first, second = [
        at for at in fold(Failing(fail=tuple(range(8))), 11, Local("partial")) if at.complete
    ]
    assert (first.state, len(first.failed), second.state) == (None, 8, "((8 9) 10)")


def test_after_failures_it_goes_on_from_every_place_too():
    job, engine = Failing(fail=(0, 1, 9)), Local("partial")
    steps = fold(job, 11, engine)
    for stop in range(1, 12):
        kept = steps[stop - 1]
        # failures are kept elsewhere
        resume_from = PartialFold(kept.group, kept.shards, kept.complete, kept.state)
        whole = [
            at
            for at in [*steps[:stop], *fold(job, 11, engine, resume_from=resume_from)]
            if at.complete
        ]
        assert [at.state for at in whole] == ["(((((2 3) 4) 5) 6) 7)", "(8 10)"]


def test_what_progress_raises_is_no_failure_of_a_shard():
    class Stop(Exception):
        pass

    def progress(done):
        if done > 2 * STEPS:
            raise Stop

    with pytest.raises(Stop):
        fold(Spelling(), 11, Local("partial"), progress=progress)


def test_an_interruption_is_no_failure_of_a_shard():
    class Interrupted(Spelling):
        def run(self, content, tick):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fold(Interrupted(), 3, Local("partial"))


def test_another_answer_to_failure_is_refused():
    with pytest.raises(EigenlensError, match="'stop' or 'partial', not 'ignore'"):
        Local("ignore")


def test_the_engine_in_force_is_the_innermost_and_its_threads_hold_only_inside():
    class Two(Local):
        threads = 2

    mine = torch.get_num_threads()
    two, given = Two(), Local()
    with use_engine(two):
        assert torch.get_num_threads() == 2
        assert choose_engine() is two
        assert choose_engine(given) is given
    assert torch.get_num_threads() == mine
    assert type(choose_engine()) is Local


def test_a_job_gets_back_what_was_merged_while_its_group_goes_on():
    """Neither the state that the others are merged into, nor the last one of a group."""
    given = []

    class Thrifty(Spelling):
        def recycle(self, state):
            given.append(state)

    fold(Thrifty(), 11)
    assert given == ["1", "2", "3", "4", "5", "6", "9"]

"""Small work in one thread each, and how long threads wait in the command."""

import os
import subprocess
import sys
import threading

import pytest
import torch

from eigenlens.threads import CHOSEN, WAITING, decompose_batch, eigh, map_in_threads, one_thread


@pytest.fixture(params=[1, 2, 3])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def gram(*shape):
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return x @ x.mT


@pytest.mark.parametrize("shape", [(1, 5, 5), (7, 4, 4), (40, 48, 48), (3, 200, 200)])
def test_decompositions_are_torchs_own_whatever_the_threads(threads, shape):
    batch = gram(*shape)
    values, vectors = eigh(batch)
    torch.testing.assert_close(values, torch.linalg.eigvalsh(batch))
    torch.testing.assert_close(vectors @ torch.diag_embed(values) @ vectors.mT, batch)
    torch.testing.assert_close(
        decompose_batch(torch.linalg.svdvals, batch), torch.linalg.svdvals(batch)
    )


def test_what_a_matrix_gives_does_not_depend_on_the_threads():
    batch, found = gram(40, 48, 48), []
    before = torch.get_num_threads()
    for number in (1, 2, 3):
        torch.set_num_threads(number)
        found.append(eigh(batch))
    torch.set_num_threads(before)
    for values, vectors in found[1:]:
        assert torch.equal(values, found[0][0]) and torch.equal(vectors, found[0][1])


def test_each_item_has_one_thread_and_stands_in_its_order(threads):
    with torch.no_grad():
        seen = map_in_threads(
            lambda item: (item, torch.get_num_threads(), torch.is_grad_enabled()), range(20)
        )
    assert seen == [(item, 1, False) for item in range(20)]
    assert torch.get_num_threads() == threads


def test_the_threads_are_back_after_an_error(threads):
    def fails(item):
        raise ValueError(f"item {item}")

    with pytest.raises(ValueError, match="item 0"):
        map_in_threads(fails, range(4))
    with pytest.raises(ValueError, match="here"), one_thread():
        assert torch.get_num_threads() == 1
        raise ValueError("here")
    assert torch.get_num_threads() == threads


def test_blocks_of_several_threads_leave_the_threads_as_they_were(threads):
    first_in, second_in, found = threading.Event(), threading.Event(), []

    def second():
        assert first_in.wait(120)
        with one_thread():
            second_in.set()
            assert left.wait(120)
        found.append(torch.get_num_threads())

    left, other = threading.Event(), threading.Thread(target=second)
    other.start()
    with one_thread():
        first_in.set()
        assert second_in.wait(120)
    left.set()
    other.join()
    fresh = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    fresh.start()
    fresh.join()
    assert [torch.get_num_threads(), *found] == [threads] * 3


COMMAND = """
import sys
from eigenlens.cli import main
sys.argv = ["eigenlens", "--version"]
try:
    main()
except SystemExit:
    assert "torch" not in sys.modules, "torch reads the settings when it is loaded"
"""
PROGRAM = "import eigenlens; eigenlens.study"


def settings(start, **chosen):
    """What a process has of the settings of waiting after its start."""
    code = f"{start}\nimport os; print([os.environ.get(name) for name in {list(WAITING)}])"
    own = {name: value for name, value in os.environ.items() if name not in CHOSEN}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**own, **chosen},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()[-1]


def test_the_command_waits_quietly_and_a_program_of_the_user_as_it_likes():
    assert settings(COMMAND) == str(list(WAITING.values()))
    assert settings(PROGRAM) == "[None, None]"


def test_what_the_user_has_chosen_stays():
    assert settings(COMMAND, GOMP_SPINCOUNT="7") == "['7', None]"
    assert settings(COMMAND, OMP_WAIT_POLICY="active") == "[None, None]"

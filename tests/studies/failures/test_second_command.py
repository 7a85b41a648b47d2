"""Two commands at a time in one folder."""

import pytest

from eigenlens.run.engine import Local
from studies.identical import assert_identical


@pytest.mark.parametrize("engine", ["local", "dask"])
def test_a_second_command_in_the_folder_is_refused(
    place, make, undisturbed, of_size, warm, tmp_path, engine
):
    refused = []

    def progress(_what, done, _total):
        if done and not refused:
            command = ["study", place / "bert", place / "a.txt", "-o", tmp_path / "s"]
            refused.append(warm(*command, "--resume"))

    make(
        "gram",
        tmp_path / "s",
        engine=Local() if engine == "local" else of_size(2),
        progress=progress,
    )
    assert (refused[0].returncode, refused[0].stderr) == (
        2,
        f"eigenlens: another process is working in {tmp_path / 's'}; wait for it to end, or name"
        " another folder\n",
    )
    assert_identical(undisturbed("gram"), tmp_path / "s")

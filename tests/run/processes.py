"""A Dask cluster of processes of one's own, which can be killed one by one."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

TESTS = Path(__file__).parents[1]
PATIENCE = 600
"""Seconds until what has not happened never will: far more than a loaded machine takes."""


def environment(**more):
    """Of a process that finds the modules of the tests."""
    here = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": here, "OMP_NUM_THREADS": "1", **more}


def until(true, seconds=PATIENCE):
    """Wait for something to become true, and give it back."""
    end = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)
    return found


class Cluster:
    """A scheduler, and workers without a nanny: what is killed stays dead."""

    def __init__(self, folder, workers=1, **settings):
        self.folder, self.workers, self.settings = Path(folder), [], settings
        self.folder.mkdir(parents=True)
        self.file = self.folder / "scheduler.json"
        self.scheduler = self._start(
            "scheduler", "--port", "0", "--scheduler-file", self.file, "--no-dashboard"
        )
        until(self.file.exists)
        for _ in range(workers):
            self.add()

    def _start(self, what, *options):
        command = [sys.executable, "-m", "distributed.cli.dask_" + what, *map(str, options)]
        log = open(self.folder / "log", "ab")  # noqa: SIM115
        with log:
            given = environment(**{f"DASK_{name}": value for name, value in self.settings.items()})
            return subprocess.Popen(command, stdout=log, stderr=log, env=given, cwd=self.folder)

    @property
    def address(self):
        import json

        return json.loads(self.file.read_text())["address"]

    def add(self, *options):
        """One worker more."""
        fixed = (
            "--no-nanny",
            "--nthreads",
            1,
            "--no-dashboard",
            "--local-directory",
            self.folder / "space",
        )
        self.workers.append(self._start("worker", "--scheduler-file", self.file, *fixed, *options))

    def kill(self, process):
        process.send_signal(signal.SIGKILL)
        process.wait()

    def kill_workers(self):
        for worker in self.workers:
            self.kill(worker)
        self.workers.clear()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.kill_workers()
        self.kill(self.scheduler)


def give_up_soon(client):
    """A client that looks for a lost scheduler for a second, not for the patience of these tests.

    One that was killed never comes back.
    """
    client._timeout = 1


def resident(pid):
    """Bytes of a process in memory."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))

"""Runs a study that is killed again and again, and resumed until it is finished.

`python killed.py MODEL DATA FOLDER OPTIONS MOMENTS`: the model is loaded once; every attempt is a
child that saves a checkpoint after every shard. MOMENTS is JSON. A list of numbers: shares of the
time of a whole run, one for each attempt that is killed; what is finished before is put aside, and
begun anew. The last checkpoint, as `held 3`, the stage and its group: every attempt dies before a
change of the folder (a file about to be opened, renamed, made or removed), three changes further on
than the attempt before if that came to no new checkpoint; from the last checkpoint on once more
from the first change to the very end, one by one. Prints how many attempts were killed and what
they had reached, as JSON.
"""

import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import torch

from eigenlens import load, study
from eigenlens.run.checkpoints import Checkpoints
from eigenlens.run.files import LOCK

WATCHED = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod")


def attempt(model, data, folder, options, event):
    """The child: runs the study; dies by itself before the given event in the folder."""
    seen = 0

    def hook(name, args):
        nonlocal seen
        if (
            name in WATCHED
            and isinstance(args[0], str | os.PathLike)
            and str(args[0]).startswith(str(folder))
        ):
            seen += 1
            if seen == event:
                os.kill(os.getpid(), signal.SIGKILL)

    if event:
        sys.addaudithook(hook)
    Checkpoints.due = lambda _: True
    study(model, data, folder, **options, resume=True)


def run(model, data, folder, options, event=0, seconds=None):
    """One attempt in a child, killed before an event or after some seconds.

    Returns whether it was killed.
    """
    child = os.fork()
    if not child:
        try:
            attempt(model, data, folder, options, event)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        sys.exit(
            f"the attempt that was to be killed at event {event} or after {seconds} s failed by"
            " itself"
        )
    return os.WIFSIGNALED(status)


def standing_of(folder):
    """The number of the last checkpoint, and its stage and group."""
    marks = [
        json.loads(mark.read_text()) for mark in (folder / "unfinished").glob("checkpoint-*.json")
    ]
    last = max(marks, key=lambda mark: mark["number"], default=None)
    return last and (last["number"], "{stage} {group}".format(**last["standing"]))


def tidy(folder):
    """Remove what an attempt leaves that is killed after the study is written."""
    shutil.rmtree(folder / "unfinished", ignore_errors=True)
    (folder / LOCK).unlink(missing_ok=True)


def put_aside(folder):
    """A finished study makes room for another one, and is kept to be looked at."""
    tidy(folder)
    folder.rename(folder.with_name(f"{folder.name} {len(list(folder.parent.iterdir()))}"))


def main():
    name, data, folder, options, moments = sys.argv[1:]
    torch.set_num_threads(1)
    model, options, folder, moments = (
        load(name),
        json.loads(options),
        Path(folder),
        json.loads(moments),
    )
    begin = time.monotonic()
    run(model, data, folder, options)
    whole = time.monotonic() - begin
    shutil.rmtree(folder)
    stages = []
    if isinstance(moments, list):
        for moment in moments:
            while not run(model, data, folder, options, seconds=moment * whole):
                # done before its moment came: the next one, which begins anew, is killed sooner
                put_aside(folder)
                whole *= 0.9
            standing = standing_of(folder)
            stages.append(standing and standing[1])
            if (folder / "study.json").is_file():  # killed while it tidied up
                put_aside(folder)
    else:
        event, standing, at_the_end = 1, None, False
        while not (folder / "study.json").is_file() and run(model, data, folder, options, event):
            if len(stages) > 200:
                sys.exit(f"no attempt gets further than {stages[-1]}")
            before, standing = standing, standing_of(folder)
            stages.append(standing and standing[1])
            event += (1 if at_the_end else 3) if standing == before else 0
            if stages[-1] == moments and not at_the_end:
                event, at_the_end = 1, True
    if not (folder / "study.json").is_file():
        run(model, data, folder, options)
    tidy(folder)
    print(json.dumps({"kills": len(stages), "stages": stages}))


if __name__ == "__main__":
    main()

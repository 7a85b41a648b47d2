"""The command in processes of its own that start warm.

One process loads the libraries once and forks for every command.

A command here is as alone as in a shell: it has its own arguments, folder, environment, standard
streams and end. Only the start of Python is not its own: tests of that, such as how many threads a
process begins with, start one themselves.

`python warm.py` is the process that forks. It reads one JSON object per line, and answers each with
the return code.
"""

import gc
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path


class Warm:
    """`warm("show", folder, cwd=…)` gives what `subprocess.run` of that command would."""

    def __init__(self):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.server = subprocess.Popen([sys.executable, __file__], env=environment, **pipes)
        assert self.server.stdout.readline() == "ready\n"

    def __call__(self, *args, cwd=None, env=None, input="", unread=()):
        """`unread` are the streams (1, 2) whose reader has left before the command begins."""
        with tempfile.TemporaryDirectory() as folder:
            streams = [Path(folder) / name for name in ("in", "out", "err")]
            streams[0].write_text(input)
            asked = {
                "args": list(map(str, args)),
                "cwd": str(cwd or Path.cwd()),
                "env": dict(env or os.environ),
                "streams": list(map(str, streams)),
                "unread": list(unread),
            }
            print(json.dumps(asked), file=self.server.stdin, flush=True)
            code = int(self.server.stdout.readline())
            out, err = (stream.read_text() if stream.exists() else "" for stream in streams[1:])
            return subprocess.CompletedProcess(args, code, out, err)

    def close(self):
        self.server.stdin.close()
        self.server.wait()


def begin(asked):
    """The child: takes on everything of the command."""
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    tempfile.tempdir = None  # found anew, by the command's environment
    for fd, path in enumerate(asked["streams"]):
        if fd in asked["unread"]:
            read, file = os.pipe()
            os.close(read)
        else:
            file = os.open(path, os.O_RDONLY if fd == 0 else os.O_WRONLY | os.O_CREAT)
        os.dup2(file, fd)
        os.close(file)
    for fd, name in ((0, "stdin"), (1, "stdout"), (2, "stderr")):
        stream = open(fd, "w" if fd else "r", encoding="utf-8", closefd=False)  # noqa: SIM115
        if fd == 2:
            stream.reconfigure(line_buffering=True, errors="backslashreplace")
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    sys.argv = ["eigenlens", *asked["args"]]


def load_all():
    """Load what commands load when they work."""
    import eigenlens
    from eigenlens import bench, lab, papers  # noqa: F401

    for name in eigenlens.__all__:
        getattr(eigenlens, name)


def main():

    from eigenlens import cli

    load_all()
    gc.collect()
    gc.freeze()  # so that children need not go through all of it when they end
    print("ready", flush=True)
    for line in sys.stdin:
        child = os.fork()
        if not child:
            begin(json.loads(line))
            cli.main()
            return
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()

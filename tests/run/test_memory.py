"""What is left of memory is the least of what the machine, every control group and the address
space leave.
"""

import os
import subprocess
import sys

import psutil
import pytest
import torch

from eigenlens.run import memory

GB = 2**30


def a_machine(root, available=16 * GB, groups="", files=None):
    """Files as a Linux kernel shows them.

    `files` are those of the control groups, by their path below /sys/fs/cgroup.
    """
    shown = {
        "proc/meminfo": (
            f"MemTotal:       99999999 kB\nMemFree:  1 kB\nMemAvailable:   {available // 1024}"
            " kB\nHugePages_Total: 0\n"
        ),
        "proc/self/status": (
            "Name:\tpython\nVmSize:\t  4096 kB\nVmHWM:\t  3072 kB\nVmRSS:\t  2048 kB\n"
        ),
        "proc/self/cgroup": groups,
        **{f"sys/fs/cgroup/{path}": content for path, content in (files or {}).items()},
    }
    for path, content in shown.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(content)
    return root


def test_a_machine_without_limits_leaves_what_is_available(tmp_path):
    assert memory.free_bytes(root=a_machine(tmp_path)) == 16 * GB


def test_a_group_leaves_its_limit_less_what_is_used_and_not_cached(tmp_path):
    files = {
        "job/memory.max": f"{8 * GB}\n",
        "job/memory.current": f"{5 * GB}\n",
        "job/memory.stat": f"anon {4 * GB}\nactive_file 7\ninactive_file {GB}\n",
    }
    assert memory.free_bytes(root=a_machine(tmp_path, groups="0::/job\n", files=files)) == 4 * GB


def test_the_tightest_group_on_the_way_up_counts(tmp_path):
    files = {
        "slurm/job/memory.max": "max\n",
        "slurm/job/memory.current": f"{GB}\n",
        "slurm/memory.max": f"{6 * GB}\n",
        "slurm/memory.current": f"{5 * GB}\n",
        "memory.max": f"{12 * GB}\n",
        "memory.current": f"{5 * GB}\n",
    }
    assert memory.free_bytes(root=a_machine(tmp_path, groups="0::/slurm/job\n", files=files)) == GB


def test_groups_of_version_1_count_by_their_memory_controller(tmp_path):
    files = {
        "memory/docker/x/memory.limit_in_bytes": f"{3 * GB}\n",
        "memory/docker/x/memory.usage_in_bytes": f"{2 * GB}\n",
        "memory/docker/x/memory.stat": f"inactive_file 5\ntotal_inactive_file {GB // 2}\n",
        "cpu/docker/x/memory.limit_in_bytes": "1\n",
        "cpu/docker/x/memory.usage_in_bytes": "1\n",
    }
    root = a_machine(
        tmp_path, groups="5:cpu,cpuacct:/docker/x\n4:memory:/docker/x\n0::/\n", files=files
    )
    assert memory.free_bytes(root=root) == 3 * GB // 2


def test_a_container_that_sees_its_group_as_the_top_is_limited_too(tmp_path):
    files = {"memory.max": f"{2 * GB}\n", "memory.current": f"{GB}\n"}
    assert (
        memory.free_bytes(
            root=a_machine(tmp_path, groups="0::/kubepods/of/the/host\n", files=files)
        )
        == GB
    )


def test_a_group_over_its_limit_leaves_nothing(tmp_path):
    files = {"memory.max": f"{GB}\n", "memory.current": f"{2 * GB}\n"}
    assert memory.free_bytes(root=a_machine(tmp_path, groups="0::/\n", files=files)) == 0


def test_the_address_space_limits(tmp_path, monkeypatch):
    monkeypatch.setattr(psutil.Process, "rlimit", lambda *_: (GB, psutil.RLIM_INFINITY))
    assert memory.free_bytes(root=a_machine(tmp_path)) == GB - 4096 * 1024


def test_without_proc_the_system_is_asked(tmp_path):
    assert (
        0
        < memory.free_bytes(root=tmp_path)
        <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    )
    assert memory.resident_bytes(root=tmp_path) > 10 * 2**20


def test_what_this_process_has_is_read_from_its_status(tmp_path):
    root = a_machine(tmp_path)
    assert (memory.resident_bytes(root), memory.peak_resident_bytes(root)) == (
        2048 * 1024,
        3072 * 1024,
    )


def test_a_gpu_says_itself_what_is_left(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (123, 456))
    assert memory.free_bytes("cuda:1") == 123


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_that_was_given_back_stays_in_the_peak_and_not_in_the_resident():
    code = (
        "import torch; from eigenlens.run.memory import peak_resident_bytes, resident_bytes\n"
        "before = resident_bytes(); x = torch.ones(25_000_000); held = resident_bytes(); del x\n"
        "print(held - before, resident_bytes() - before, peak_resident_bytes() - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    held, after, most = map(int, done.stdout.split())
    assert held > 95e6 and after < 20e6 and most > 95e6

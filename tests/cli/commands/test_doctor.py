"""What the command says of a machine; nothing that is missing or damaged stops it."""

import json
import platform

import pytest
import torch

from cli.commands.typed import strict
from eigenlens import __version__, extras
from eigenlens.cli import machine
from eigenlens.extras import EXTRAS
from eigenlens.kernels import build
from eigenlens.plans import calibration


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, on a machine without a compiler."""
    monkeypatch.setenv("EIGENLENS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.delenv(build.SWITCH, raising=False)
    return tmp_path / "cache"


@pytest.fixture
def short(monkeypatch):
    """Calibrations take no time."""
    monkeypatch.setattr(calibration, "LENGTHS", (64, 128))


def asked(run, *options):
    done = run("doctor", *options, "--json")
    assert done.code == 0
    return strict(done.out)


def test_it_says_what_there_is(run, cache):
    found = asked(run)
    assert found["versions"]["eigenlens"] == __version__
    assert found["versions"]["torch"] == torch.__version__
    assert found["versions"]["python"] == platform.python_version()
    assert found["processor"]["threads"] == torch.get_num_threads()
    assert found["processor"]["instructions"] == torch.backends.cpu.get_cpu_capability()
    assert found["processor"]["free_bytes"] > 0 and found["processor"]["cores"] >= 1
    assert [extra["name"] for extra in found["extras"]] == list(EXTRAS)
    assert {one["name"] for one in found["programs"]} == {"npm", "apt-get", "dpkg-deb"}
    assert found["cache"]["folder"] == str(cache) and found["cache"]["writable"]
    table = run("doctor").out
    for words in (__version__, torch.__version__, *EXTRAS, str(cache), "stories15m", "vega"):
        assert words in table


def test_missing_libraries_are_named_with_the_command_that_installs_them(run, cache, monkeypatch):
    gone = {"dask", "distributed", "PIL"}
    here = extras._here
    monkeypatch.setattr(extras, "_here", lambda name: name not in gone and here(name))
    found = {extra["name"]: extra for extra in asked(run)["extras"]}
    assert found["dask"]["missing"] == ["dask", "distributed"]
    assert found["vision"]["missing"] == ["Pillow"]
    assert found["dask"]["install"] == "pip install 'eigenlens[dask]'"
    assert found["catalogue"]["missing"] == [] and found["catalogue"]["install"] is None
    printed = run("doctor").out
    assert "no: dask and distributed" in " ".join(printed.split())
    assert "Install the libraries with: pip install 'eigenlens[vision,dask]'\n" in printed


def test_without_a_kernel_it_says_why_and_what_serves_instead(run, cache):
    kernel = asked(run)["kernel"]
    assert not kernel["compiled"] and kernel["file"] is None
    assert kernel["missing"].startswith("no C++ compiler was found (tried no-such-compiler)")
    sentence = (
        f"There is no native kernel: {kernel['missing']}. The torch form of attention is used"
        " instead."
    )
    assert sentence in run("doctor").out


def test_the_cache_is_listed_by_what_it_holds(run, cache):
    for name, size in {"models/a/b": 1000, "models/c": 500, "vega/x.js": 7, "mine.txt": 3}.items():
        path = cache / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"0" * size)
    (cache / "models" / "gone").symlink_to(cache / "nowhere")
    held = {one["name"]: (one["files"], one["bytes"]) for one in asked(run)["cache"]["holds"]}
    assert held["packages"] == (0, 0) and held["vega"] == (1, 7) and held["other"] == (1, 3)
    files, size = held["models"]
    assert files == 3 and size == 1500 + (cache / "models" / "gone").lstat().st_size
    assert set(held) == {*machine.HOLDS, "other"}


def test_a_cache_that_cannot_be_written_is_said(run, cache, short):
    cache.write_text("a file")
    found = asked(run)["cache"]
    assert not found["writable"] and found["problem"]
    assert f"it cannot be written ({found['problem']}); set EIGENLENS_CACHE" in run("doctor").out
    done = run("doctor", "--calibrate")
    assert done.code == 0 and "Attention on cpu with " in done.out


def test_without_a_calibration_it_says_how_to_measure(run, cache):
    assert asked(run)["calibrations"] == []
    assert "was not measured yet: eigenlens doctor --calibrate measures it" in run("doctor").out


def test_it_measures_what_attention_takes(run, cache, short):
    done = run("doctor", "--calibrate", "--width", "8", "--json")
    assert "measuring attention on this machine" in done.err
    (one,) = strict(done.out)["calibrations"]
    assert one["width"] == 8 and one["kernel"] is None
    assert asked(run)["calibrations"] == [one]
    (again,) = asked(run, "--calibrate", "--width", "8")["calibrations"]
    assert again["timings"] != one["timings"]
    both = asked(run, "--calibrate")["calibrations"]
    assert [found["width"] for found in both] == [8, 64] and both[0] == again


def test_its_table_has_the_longest_inputs_and_all_lengths_if_asked(run, cache, short):
    run("doctor", "--calibrate", "--width", "8")
    printed = run("doctor").out
    assert "heads of width 8, measured " in printed and "All lengths: eigenlens doctor --full" in (
        printed
    )
    for name in ("torch ms", "native ms", "torch ns", "native ns", "torch / native"):
        assert name in printed
    full = run("doctor", "--full").out
    assert (printed.count("\ngathered keys "), full.count("\ngathered keys ")) == (2, 4)


@pytest.mark.parametrize("content", ["", "null", "{}", json.dumps({"version": 1, "timings": 3})])
def test_a_foreign_file_in_the_cache_changes_nothing(run, cache, content):
    for folder in ("calibrations", "kernels"):
        (cache / folder).mkdir(parents=True)
        (cache / folder / "foreign.json").write_text(content)
    assert asked(run)["calibrations"] == []


def test_gpus_are_named_with_their_memory(run, cache, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda i: f"card {i}")

    def free(device):
        if str(device) == "cuda:1":
            raise RuntimeError("busy")
        return 8_000_000_000, 16_000_000_000

    monkeypatch.setattr(torch.cuda, "mem_get_info", free)
    assert asked(run)["devices"] == [
        {"name": "cuda:0", "what": "card 0", "free_bytes": 8_000_000_000},
        {"name": "cuda:1", "what": "card 1", "free_bytes": None},
    ]
    line = "Devices: cpu, cuda:0 (card 0, 8.0 GB free) and cuda:1 (card 1); there is no mps."
    assert line in run("doctor").out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--width", "64"), "--width says what --calibrate measures; add --calibrate"),
        (("--calibrate", "--width", "0"), "greater than or equal to 1"),
        (("--calibrate", "--width", "many"), "it takes a whole number"),
        (("--calibrat",), "No such option"),
        (("now",), "unexpected extra argument"),
    ],
)
def test_bad_options_end_with_2_and_one_sentence(run, options, words):
    done = run("doctor", *options)
    assert done.code == 2 and words in done.err and done.out == ""
    assert done.err.startswith("eigenlens: ") and done.err.count("\n") == 1

"""The native kernel is compiled once into the cache; without it, attention is computed by torch."""

import pytest
import torch

from eigenlens.attention.head_forms import HeadForm, LayerForms
from eigenlens.attention.head_keys import keep_keys
from eigenlens.attention.kept_attention import attend_kept
from eigenlens.kernels import build, native

VERSION = 'if [ "$1" = --version ]; then echo "toy 1.0"; exit 0; fi\n'
OUTPUT = 'while [ "$1" != -o ]; do shift; done\n'
"""Lines of a script: tell a version; go on to the option that names the output."""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache; what other tests compiled is forgotten, and what this one does, too."""
    monkeypatch.setenv("EIGENLENS_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(build.SWITCH, raising=False)
    build._kernel.cache_clear()
    yield tmp_path / "cache"
    build._kernel.cache_clear()


@pytest.fixture
def compiler(tmp_path, monkeypatch, cache):
    """`compiler(script)` is the compiler from then on, by its variable CXX."""

    def use(script):
        path = tmp_path / "a compiler"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("CXX", str(path))
        build._kernel.cache_clear()
        return path

    return use


def assert_served_by_torch(reason):
    """There is no kernel, the reason is one line that holds these words, and attention works."""
    found = build.kernel()
    assert found.library is None and found.path is None
    assert reason in found.missing and "\n" not in found.missing and len(found.missing) < 600
    q, k, v = (torch.randn(1, 2, 100, 8) for _ in range(3))
    assert not native.serves(q, k, v)
    forms = LayerForms((HeadForm("window", window=64), HeadForm("blocks", 0.01)), causal=True)
    kept = keep_keys(q, k, v, forms, scale=8**-0.5)
    out = attend_kept(q, k, v, kept, 8**-0.5)
    expected = attend_kept(q, k, v, kept, 8**-0.5, form="reference")
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=0)


def test_without_a_compiler_torch_serves(cache, monkeypatch, tmp_path):
    missing = tmp_path / "no-compiler"
    monkeypatch.setenv("CXX", str(missing))
    assert_served_by_torch(f"no C++ compiler was found (tried {missing}); install g++, or set CXX")


@pytest.mark.parametrize("named", ["", "a 'quote", "/"])
def test_so_it_does_where_cxx_names_no_program(cache, monkeypatch, named):
    monkeypatch.setenv("CXX", named)
    assert_served_by_torch("no C++ compiler was found")


def test_a_program_that_fails_at_once_is_no_compiler(compiler):
    path = compiler("exit 1")
    assert_served_by_torch(f"the C++ compiler {path} does not tell its version (it ended with code")


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'error: no' >&2; echo 'and more' >&2; exit 1", "code 1: error: no and more"),
        ("exit 3", "failed with code 3: no message"),
        ("exit 0", "failed with code 0"),
        (r"printf '\377\376' >&2; exit 1", "failed with code 1: "),
        (f"{OUTPUT} printf 'no library \\377' > \"$2\"", "cannot be loaded"),
        (f'{OUTPUT} : > "$2"', "cannot be loaded"),
    ],
    ids=["fails", "fails-silently", "writes-nothing", "prints-bytes", "garbage", "empty-file"],
)
def test_a_compiler_that_fails_is_said_in_one_sentence(compiler, cache, script, reason):
    compiler(VERSION + script)
    assert_served_by_torch(reason)
    assert build.kernel().compiler == "toy 1.0"
    assert [path.name for path in (cache / "kernels").iterdir()] == [".lock"]


def test_a_library_without_its_functions_is_no_kernel(compiler):
    compiler(f"{VERSION}{OUTPUT}echo 'int other;' | c++ -shared -fPIC -x c++ - -o \"$2\"")
    assert_served_by_torch("cannot be loaded")


def test_the_switch_leaves_the_kernel_out(cache, monkeypatch):
    monkeypatch.setenv(build.SWITCH, "0")
    assert_served_by_torch("EIGENLENS_NATIVE=0 leaves the native kernel out")
    assert not cache.exists()


def test_a_cache_that_cannot_be_written_is_said(compiler, cache):
    cache.write_text("a file")
    compiler(VERSION)
    assert_served_by_torch(f"the cache {cache / 'kernels'} cannot be written: ")


def test_a_compiler_may_have_options_of_its_own(compiler, monkeypatch):
    path = compiler(f'[ "$1" = --own ] || exit 1; shift\n{VERSION}')
    monkeypatch.setenv("CXX", f"'{path}' --own")
    assert build.kernel().compiler == "toy 1.0"


def test_a_changed_cxx_is_seen_in_the_same_process(compiler, monkeypatch):
    compiler(VERSION)
    assert "failed with code 0" in build.kernel().missing
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "tried no-such-compiler" in build.kernel().missing


COPIES = f'echo "$@" >> "$0.calls"\n{OUTPUT}cp "$0.so" "$2"'
"""Lines of a script that counts its calls, and copies a library that was compiled before."""


@pytest.fixture(scope="module")
def library():
    """The library of this machine, from the user's own cache."""
    found = build.kernel()
    if found.path is None:
        pytest.skip(f"there is no kernel here: {found.missing}")
    return found.path.read_bytes()


@pytest.fixture
def copying(library, compiler):
    """The file that lists the calls of a compiler that has its library ready."""
    path = compiler(VERSION + COPIES)
    path.with_name(f"{path.name}.so").write_bytes(library)
    return path.with_name(f"{path.name}.calls")


def test_what_was_compiled_is_kept(copying):
    first = build.kernel()
    assert first.library is not None and first.missing is None and first.path.is_file()
    build._kernel.cache_clear()
    assert build.kernel().path == first.path
    assert len(copying.read_text().splitlines()) == 1


@pytest.mark.parametrize("size", [0, 100, 8192])
def test_a_damaged_library_is_compiled_anew(copying, size):
    first = build.kernel()
    content = first.path.read_bytes()
    first.path.unlink()  # it is loaded here: what is written goes to another file
    first.path.write_bytes(content[:size])
    build._kernel.cache_clear()
    again = build.kernel()
    assert again.library is not None and again.path == first.path
    assert again.path.read_bytes() == content
    assert len(copying.read_text().splitlines()) == 2


def test_another_source_has_another_file(copying, monkeypatch, tmp_path):
    first = build.kernel().path
    source = tmp_path / "changed.cpp"
    source.write_bytes(build.SOURCE.read_bytes() + b"// changed\n")
    monkeypatch.setattr(build, "SOURCE", source)
    build._kernel.cache_clear()
    second = build.kernel().path
    assert second.parent == first.parent and second.name != first.name
    assert str(source) in copying.read_text().splitlines()[1]

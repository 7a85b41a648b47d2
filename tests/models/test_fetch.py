"""Files come from a registry once, are checked, and none of their code runs.

Everything here is local.
"""

import base64
import hashlib
import io
import json
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from eigenlens.errors import EigenlensError
from eigenlens.models import fetch as fetching
from eigenlens.models.fetch import Source, cache_folder, fetch

CONTENT = b"weights"
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EIGENLENS_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def downloads(monkeypatch: pytest.MonkeyPatch) -> list[Source]:
    """A registry that hands out CONTENT and lists what it was asked for."""
    asked: list[Source] = []

    def download(source: Source, folder: Path) -> Path:
        asked.append(source)
        (folder / "file.whl").write_bytes(CONTENT)
        return folder / "file.whl"

    monkeypatch.setitem(fetching.DOWNLOADERS, "pypi-wheel", download)
    return asked


@pytest.fixture
def sdist(tmp_path: Path) -> Path:
    """A source archive whose build leaves a trace."""
    path = tmp_path / "demo_pkg-1.2.tar.gz"
    trap = f"open({str(tmp_path / 'build-ran')!r}, 'w')"
    with tarfile.open(path, "w:gz") as tar:
        info = tarfile.TarInfo("demo_pkg-1.2/setup.py")
        info.size = len(trap)
        tar.addfile(info, io.BytesIO(trap.encode()))
    return path


@pytest.fixture
def plain_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """pip without the settings of this machine."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def test_the_cache_is_where_the_environment_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("EIGENLENS_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "eigenlens"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "eigenlens"


def test_a_file_is_fetched_once(downloads: list[Source]) -> None:
    source = Source("pypi-wheel", "demo", "1", SHA256)
    first, second = fetch(source), fetch(source)
    assert first == second
    assert first.read_bytes() == CONTENT
    assert len(downloads) == 1


def test_a_wrong_sha256_names_both_and_keeps_nothing(downloads: list[Source]) -> None:
    with pytest.raises(EigenlensError, match=f"expected sha256 {'0' * 64}, got {SHA256}"):
        fetch(Source("pypi-wheel", "demo", "1", "0" * 64))
    assert not [file for file in cache_folder().rglob("*") if file.is_file()]


def test_a_damaged_cached_file_is_fetched_again(downloads: list[Source]) -> None:
    source = Source("pypi-wheel", "demo", "1", SHA256)
    fetch(source).write_bytes(b"damaged")
    assert fetch(source).read_bytes() == CONTENT
    assert len(downloads) == 2


def test_an_unwritable_cache_says_what_to_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EIGENLENS_CACHE", str(tmp_path / "file"))
    with pytest.raises(EigenlensError, match="Set EIGENLENS_CACHE"):
        fetch(Source("npm", "demo", "1"))


@pytest.mark.parametrize(
    ("registry", "tool"), [("npm", "npm is not installed"), ("debian", "apt-get and dpkg-deb")]
)
def test_a_missing_tool_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, registry: fetching.Registry, tool: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EigenlensError, match=tool):
        fetch(Source(registry, "demo", "1"))


def test_a_failing_tool_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    npm = tmp_path / "npm"
    npm.write_text(
        "#!/bin/sh\necho 'npm error code E1' >&2\necho 'npm error no such thing' >&2\nexit 1\n"
    )
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        EigenlensError, match=r"the npm package demo@1: npm says: npm error no such thing\. Check"
    ):
        fetch(Source("npm", "demo", "1"))


@pytest.mark.slow
@pytest.mark.usefixtures("plain_pip")
def test_a_wheel_comes_through_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wheel = tmp_path / "demo_pkg-1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("demo_pkg/data.txt", "data")
        # A dependency that exists nowhere: it must not be looked for.
        metadata = (
            "Metadata-Version: 2.1\nName: demo-pkg\nVersion: 1.2\nRequires-Dist:"
            " no-such-dependency\n"
        )
        archive.writestr("demo_pkg-1.2.dist-info/METADATA", metadata)
        archive.writestr(
            "demo_pkg-1.2.dist-info/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr("demo_pkg-1.2.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert (
        fetch(Source("pypi-wheel", "demo-pkg", "1.2", sha256(wheel))).read_bytes()
        == wheel.read_bytes()
    )
    with pytest.raises(
        EigenlensError, match=r"Cannot fetch the Python package demo-pkg==9: pip says"
    ):
        fetch(Source("pypi-wheel", "demo-pkg", "9"))


@pytest.mark.usefixtures("plain_pip")
def test_a_source_archive_comes_from_a_local_index_and_its_build_is_not_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sdist: Path
) -> None:
    empty, index = tmp_path / "empty", tmp_path / "simple"
    empty.mkdir()
    (index / "demo-pkg").mkdir(parents=True)
    page = (
        '<a href="../../demo_pkg-1.1.tar.gz">old</a> <a'
        ' href="../../demo_pkg-1.2.tar.gz#sha256=0">demo</a>'
    )
    (index / "demo-pkg/index.html").write_text(f"<html><body>{page}</body></html>")
    monkeypatch.setenv("PIP_INDEX_URL", empty.as_uri())
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", f"{(tmp_path / 'nowhere').as_uri()} {index.as_uri()}")
    fetched = fetch(Source("pypi-sdist", "Demo.Pkg", "1.2", sha256(sdist)))
    assert fetched.read_bytes() == sdist.read_bytes()
    assert not (tmp_path / "build-ran").exists()
    with pytest.raises(EigenlensError, match=r"Demo\.Pkg==9: none of the 3 package indexes"):
        fetch(Source("pypi-sdist", "Demo.Pkg", "9"))


@pytest.fixture
def server(sdist: Path) -> Iterator[str]:
    """An index that speaks JSON and wants a password; its address, with both in it."""
    login = "Basic " + base64.b64encode(b"me:secret").decode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = {"files": [{"filename": sdist.name, "url": f"../../files/{sdist.name}"}]}
            answers = {
                "/simple/demo-pkg/": json.dumps(page).encode(),
                f"/files/{sdist.name}": sdist.read_bytes(),
            }
            allowed = self.headers["Authorization"] == login and "json" in self.headers["Accept"]
            self.send_response(200 if allowed and self.path in answers else 404)
            self.end_headers()
            self.wfile.write(answers.get(self.path, b""))

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://me:secret@127.0.0.1:{http.server_port}/simple"
        http.shutdown()


@pytest.mark.usefixtures("plain_pip")
def test_a_source_archive_comes_from_a_json_index_with_a_password(
    monkeypatch: pytest.MonkeyPatch, server: str, sdist: Path
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", server)
    assert fetch(Source("pypi-sdist", "demo-pkg", "1.2", sha256(sdist))).name == sdist.name
    with pytest.raises(EigenlensError) as caught:
        fetch(Source("pypi-sdist", "other", "1"))
    assert "404" in str(caught.value) or "Not Found" in str(caught.value)
    assert "secret" not in str(caught.value)

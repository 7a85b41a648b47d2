"""Only named, regular members come out of an archive."""

import io
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from eigenlens.errors import EigenlensError
from eigenlens.models.archives import extract, member, open_member


def tar_of(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for info, content in members:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def entry(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.fixture
def tarball(tmp_path: Path) -> Path:
    return tar_of(
        tmp_path / "a.tar.gz",
        (entry("package/a.txt"), b"alpha"),
        (entry("package/b.txt"), b"beta"),
        (entry("package/soft", tarfile.SYMTYPE, "/etc/passwd"), b""),
        (entry("package/hard", tarfile.LNKTYPE, "package/a.txt"), b""),
        (entry("package/device", tarfile.CHRTYPE), b""),
        (entry("package/folder", tarfile.DIRTYPE), b""),
        (entry("../outside.txt"), b"climbed"),
        (entry("/absolute.txt"), b"rooted"),
    )


@pytest.fixture
def zipped(tmp_path: Path) -> Path:
    path = tmp_path / "a.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("package/a.txt", "alpha")
        link = zipfile.ZipInfo("package/soft")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
        archive.writestr("package/folder/", "")
        archive.writestr("../outside.txt", "climbed")
    return path


def test_a_named_member_is_read_whole(tarball: Path, zipped: Path) -> None:
    assert member(tarball, "package/b.txt") == b"beta"
    assert member(zipped, "package/a.txt") == b"alpha"


def test_a_member_can_be_streamed(tarball: Path) -> None:
    with open_member(tarball, "package/a.txt") as stream:
        assert (stream.read(2), stream.read()) == (b"al", b"pha")


@pytest.mark.parametrize(
    "name", ["package/soft", "package/hard", "package/device", "package/folder"]
)
def test_tar_members_that_are_no_files_are_refused(tarball: Path, name: str) -> None:
    with pytest.raises(EigenlensError, match="refused"):
        member(tarball, name)


@pytest.mark.parametrize("name", ["package/soft", "package/folder/"])
def test_zip_members_that_are_no_files_are_refused(zipped: Path, name: str) -> None:
    with pytest.raises(EigenlensError, match="refused"):
        member(zipped, name)


@pytest.mark.parametrize("name", ["../outside.txt", "/absolute.txt", "package/../../outside.txt"])
def test_paths_out_of_the_archive_are_refused(tarball: Path, zipped: Path, name: str) -> None:
    for archive in (tarball, zipped):
        with pytest.raises(EigenlensError, match="outside of the archive"):
            member(archive, name)


def test_extraction_writes_what_was_named_and_nothing_else(tarball: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    extract(tarball, {"package/a.txt": folder / "renamed.txt"})
    assert [(file.name, file.read_bytes()) for file in folder.iterdir()] == [
        ("renamed.txt", b"alpha")
    ]
    assert not (tmp_path / "outside.txt").exists()


def test_an_absent_member_and_a_broken_archive_say_so(tarball: Path, tmp_path: Path) -> None:
    with pytest.raises(EigenlensError, match=r"no member 'package/c\.txt'"):
        member(tarball, "package/c.txt")
    broken = tmp_path / "broken.tar.gz"
    broken.write_bytes(b"not an archive")
    with pytest.raises(EigenlensError, match="as an archive"):
        member(broken, "x")
    cut = tmp_path / "cut.tar.gz"
    cut.write_bytes(tarball.read_bytes()[:60])
    with pytest.raises(EigenlensError, match="as an archive"):
        member(cut, "package/b.txt")


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg-deb is not installed")
def test_a_debian_package_is_read_like_a_tar(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "DEBIAN").mkdir(parents=True)
    control = (
        "Package: demo\nVersion: 1\nArchitecture: all\nMaintainer: nobody"
        " <nobody@localhost>\nDescription: demo\n"
    )
    (tree / "DEBIAN/control").write_text(control)
    (tree / "usr").mkdir()
    (tree / "usr/data.txt").write_text("data")
    (tree / "usr/link").symlink_to("data.txt")
    package = tmp_path / "demo.deb"
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "-b", tree, package], check=True, capture_output=True
    )
    assert member(package, "usr/data.txt") == b"data"
    with pytest.raises(EigenlensError, match="refused"):
        member(package, "usr/link")

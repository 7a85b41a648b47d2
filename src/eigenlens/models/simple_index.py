"""Find a source archive on pip's package indexes, and download it as a plain file.

`pip download` of a source archive runs its build to learn the metadata. Here the index's project
page is read instead (JSON, or the older HTML of links); it gives the address of the file, and no
code of the package is executed.
"""

import ast
import base64
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
from html.parser import HTMLParser
from http.client import HTTPException
from pathlib import Path
from typing import IO
from urllib.error import URLError
from urllib.parse import unquote, urldefrag, urljoin, urlsplit, urlunsplit
from urllib.request import Request, urlopen

from eigenlens.errors import EigenlensError

ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.2"


def download_sdist(name: str, version: str, folder: Path) -> Path:
    """Write the `.tar.gz` of `name==version` into the folder, from the first index that has it."""
    settings = _pip_settings()
    urls = index_urls(settings)
    troubles: list[str] = []
    for index in urls:
        page = f"{index.rstrip('/')}/{_normal(name)}/"
        try:
            link = next((u for u in _links(page, settings) if _is_sdist(u, name, version)), None)
            if link is None:
                continue
            target = folder / _filename(link)
            with _open(link, settings) as response, target.open("wb") as file:
                shutil.copyfileobj(response, file)
            return target
        except (OSError, HTTPException, ValueError) as error:
            # An index without the project is no reason to stop: the next may have it. Local ones
            # are often empty.
            if urlsplit(index).scheme != "file":
                troubles.append(f"{_public(index)}: {getattr(error, 'reason', None) or error}")
    tried = "; ".join(troubles) or "no index lists this version"
    raise EigenlensError(
        f"none of the {len(urls)} package indexes of pip has it ({tried}). "
        "Check the connection and pip's index settings (pip config list), then try again."
    )


def index_urls(settings: dict[str, str] | None = None) -> list[str]:
    """Return pip's index URLs, the main one first.

    From pip's settings, else the default that its help text prints.
    """
    settings = _pip_settings() if settings is None else settings
    extra = settings.get("extra-index-url", "").split()
    if settings.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        return []
    main = settings.get("index-url") or _default_index()
    return [*([main] if main else []), *extra]


def _pip_settings() -> dict[str, str]:
    """Return what `pip config list` says for downloads.

    The environment comes before the command's section, and that before the global one.
    """
    settings: dict[str, str] = {}
    lines = [line.partition("=") for line in _pip("config", "list").splitlines()]
    for section in ("global", "download", ":env:"):
        for key, _, value in lines:
            if key.startswith(section + "."):
                settings[key.removeprefix(section + ".")] = str(ast.literal_eval(value))
    return settings


def _default_index() -> str | None:
    option = re.search(
        r"--index-url <url>.*?\(default:?\s+(\S+?)\)", _pip("download", "--help"), re.DOTALL
    )
    return option.group(1) if option else None


def _pip(*arguments: str) -> str:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    # A wide terminal keeps an address on one line of the help text.
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "COLUMNS": "1000"}, check=False
    )
    if done.returncode != 0:
        raise EigenlensError(f"pip does not run in this Python. Run: {sys.executable} -m ensurepip")
    return done.stdout


def _links(page: str, settings: dict[str, str]) -> list[str]:
    # A local index is a tree of folders, whose page is a file that no server adds for us.
    local = urlsplit(page).scheme == "file"
    with _open(page + "index.html" if local else page, settings) as response:
        body = response.read()
    if body.lstrip().startswith(b"{"):
        hrefs = [file["url"] for file in json.loads(body)["files"]]
    else:
        parser = _Anchors()
        parser.feed(body.decode("utf-8", "replace"))
        hrefs = parser.hrefs
    return [urldefrag(urljoin(page, href)).url for href in hrefs]


class _Anchors(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.hrefs: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.hrefs += [value for key, value in attrs if tag == "a" and key == "href" and value]


def _open(url: str, settings: dict[str, str]) -> IO[bytes]:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https", "file"):
        raise URLError(f"addresses of the kind {parts.scheme}: are not supported")
    request = Request(_public(url), headers={"Accept": ACCEPT})
    if parts.username is not None:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        request.add_header("Authorization", "Basic " + base64.b64encode(login.encode()).decode())
    context = None
    if parts.scheme == "https":
        context = ssl.create_default_context(
            cafile=settings.get("cert") or os.environ.get("SSL_CERT_FILE")
        )
    response: IO[bytes] = urlopen(request, timeout=60, context=context)
    return response


def _public(url: str) -> str:
    """Return the address without the user name and password that it may contain."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _is_sdist(url: str, name: str, version: str) -> bool:
    stem = _filename(url).removesuffix(f"-{version}.tar.gz")
    return stem != _filename(url) and _normal(stem) == _normal(name)


def _filename(url: str) -> str:
    return unquote(urlsplit(url).path).rpartition("/")[2]


def _normal(name: str) -> str:
    """Normalise a project name: lower case, and any run of `-`, `_`, `.` becomes one dash."""
    return re.sub(r"[-_.]+", "-", name).lower()

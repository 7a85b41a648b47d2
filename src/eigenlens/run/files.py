"""Write files that are complete or absent: to a temporary file, synced, then renamed."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..errors import EigenlensError

LOCK = ".lock"
"""The file that a process locks while it works in a folder.

It is no part of any result: it goes when the process is done, and one that a killed process left
behind locks nothing.
"""


def made_folder(folder: str | Path) -> Path:
    """Make a folder if it is not there, and return it."""
    folder = Path(folder)
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def is_empty(folder: Path) -> bool:
    """Whether a folder holds nothing, or nothing but its lock."""
    return all(path.name == LOCK for path in folder.iterdir())


def write_json(path: Path, content: Any) -> None:
    write_text(path, json.dumps(content, indent=1) + "\n")


def write_text(path: Path, content: str) -> None:
    # the same bytes on every system
    _replace(path, lambda part: part.write_text(content, encoding="utf-8", newline="\n"))


def write_tensors(
    path: Path, tensors: dict[str, Tensor], facts: Mapping[str, str] | None = None
) -> None:
    """Write tensors, and `facts` as the metadata of the file."""
    apart = {name: x.detach().cpu().contiguous() for name, x in tensors.items()}
    seen: set[int] = set()
    for name, x in apart.items():  # a file holds no part of a tensor, and no tensor twice
        store = x.untyped_storage()
        if store.nbytes() > x.numel() * x.element_size() or (
            x.numel() and store.data_ptr() in seen
        ):
            apart[name] = x.clone()
        seen.add(store.data_ptr())
    # the file has its own, and sums in another order round otherwise
    facts = {**(facts or {}), "order": json.dumps(list(apart))}
    content = apart or {"empty": torch.zeros(0)}
    _replace(path, lambda part: _save_alone(part, lambda file: save_file(content, file, facts)))


def _save_alone(path: Path, save: Any) -> None:
    """Let safetensors write a file in a folder of its own, then move it to its place.

    It writes to a file with a random name beside the one it is given. If the process is killed
    meanwhile, nobody would find that one again; this folder goes with the next attempt.
    """
    room = path.with_name(path.name + ".room")
    shutil.rmtree(room, ignore_errors=True)
    room.mkdir()
    try:
        save(room / path.name)
        os.replace(room / path.name, path)
    finally:
        shutil.rmtree(room, ignore_errors=True)


def _replace(path: Path, write: Any) -> None:
    part = path.with_name(path.name + ".part")
    try:
        with disk_errors(path):
            write(part)
            os.chmod(part, 0o666 & ~_umask())
            with open(part, "r+b") as file:  # Windows syncs no file that is open for reading alone
                os.fsync(file.fileno())
            os.replace(part, path)
            _sync_folder(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise


def _sync_folder(folder: Path) -> None:
    """The new name of a file survives a power cut, too. Windows cannot open a folder as a file."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise EigenlensError(f"{path} cannot be read: {error}") from error


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file, in the order in which they were written."""
    try:
        tensors = load_file(path)
        with safe_open(path, "pt") as file:
            order = json.loads((file.metadata() or {}).get("order", "[]"))
    except (OSError, SafetensorError, ValueError, RecursionError) as error:
        raise EigenlensError(
            f"{path} is missing, damaged or cut short: {' '.join(str(error).split())[:200]}"
        ) from error
    tensors.pop("empty", None)
    known = (
        [name for name in order if isinstance(name, str) and name in tensors]
        if isinstance(order, list)
        else []
    )
    return {name: tensors[name] for name in dict.fromkeys([*known, *tensors])}


def seal(record: Mapping[str, Any]) -> str:
    """Return a digest of a record in the form that JSON gives back."""
    plain = json.loads(json.dumps(record))
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn a full disk or a folder that cannot be written into an error of one sentence."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        in_words = re.search(r"os error (\d+)", str(error))  # as safetensors tells it
        number = int(in_words[1]) if in_words else getattr(error, "errno", None)
        if number in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
            raise EigenlensError(
                f"the disk is full: {path} could not be written; free some space"
            ) from error
        if number in {
            errno.EROFS,
            errno.EACCES,
            errno.EPERM,
            errno.ENOTDIR,
            errno.EEXIST,
            errno.ENAMETOOLONG,
            errno.ENOENT,
            errno.EISDIR,
            errno.ELOOP,
        }:
            raise EigenlensError(f"{path} cannot be written: {os.strerror(number)}") from error
        raise


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder for this process; a second process is refused.

    The lock ends with the process, however that ends.
    """
    from filelock import FileLock, Timeout

    # a soft lock would outlive its process, so a disk without locks gets none
    lock = FileLock(folder / LOCK, blocking=False, thread_local=False, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout as error:
        raise EigenlensError(
            f"another process is working in {folder}; wait for it to end, or name another folder"
        ) from error
    except OSError:
        pass  # a network disk without locks, or a folder that the first write will say is read-only
    try:
        yield
    finally:
        if lock.is_locked:
            # While it is held: who opened this file before does not get a lock on a deleted file.
            # Windows deletes no open file; there, the release does it.
            with contextlib.suppress(OSError):
                (folder / LOCK).unlink()
            lock.release()

"""The cache folder, and the compiled kernels that are stored in it."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from gossamer.errors import GossamerWarning
from gossamer.io.output_files import atomically_replacing

MOST_BYTES = 2**30
"""The most bytes of compiled kernels on disk, approximately; the least recently used kernels are
removed first."""

PRIVATE = 0o600
"""The permissions of files in the cache folder. Others may not write code that is run from there,
nor read the names of networks."""
_DIGEST = hashlib.sha256().digest_size
_MOST_UNWRITTEN = 2**29
"""The most bytes of kernels that are kept in memory because they could not be written; the least
recently used kernels are removed first."""
_CHECK_EVERY = 2**24
"""Bytes that a process writes between two checks of the folder's size, a rule of thumb."""
_ABANDONED_SECONDS = 3600
"""Seconds after which a half-written file is removed: its writer must have died."""
_warned: set[Path] = set()
_unwritten: OrderedDict[str, bytes] = OrderedDict()
_unchecked = _CHECK_EVERY
"""Bytes written since the last check of the folder's size. The first write triggers a check."""
_lock = threading.Lock()


def cache_folder() -> Path:
    """Return the cache folder: $GOSSAMER_CACHE, else $XDG_CACHE_HOME/gossamer, else
    ~/.cache/gossamer."""
    if folder := os.environ.get("GOSSAMER_CACHE"):
        return Path(folder)
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared) / "gossamer"
    return Path(os.path.expanduser("~")) / ".cache" / "gossamer"


def make_private(folder: Path) -> None:
    """Make a folder, and the folders above it, that only their owner may enter. Existing folders
    keep their permissions. Raises OSError."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(0o700, exist_ok=True)
    if not missing and not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))


def write_atomically(path: Path, data: bytes) -> bool:
    """Replace a file in the cache folder as a whole. Returns False, after a warning, and leaves the
    file unchanged where the folder cannot be written."""
    try:
        make_private(path.parent)
        with atomically_replacing(path, PRIVATE) as file:
            file.write(data)
    except OSError as error:
        warn_unwritable(path.parent, str(error.strerror))
        return False
    return True


def warn_unwritable(folder: Path, reason: str) -> None:
    """Give a warning, once in a process, that a folder of the cache cannot be written."""
    if folder not in _warned:
        _warned.add(folder)
        warnings.warn(
            f"the cache folder {folder} cannot be written ({reason}): what is compiled or measured "
            "now is lost at exit; set GOSSAMER_CACHE to a folder that you can write",
            GossamerWarning, stacklevel=3)


def cached(key: Sequence[str], build: Callable[[], bytes]) -> tuple[bytes, bool]:
    """Return the bytes of a key, and whether they came from the cache.

    Where no process has stored the key, or its entry is damaged, build() makes the bytes, and they
    are stored: on disk, or in the memory of this process where the folder cannot be written.
    """
    data = stored(key)
    if data is not None:
        return data, True
    data = build()
    _store(_name(key), data)
    return data, False


def stored(key: Sequence[str]) -> bytes | None:
    """Return the bytes of a key that any process has stored; None where there is no intact entry.
    """
    name = _name(key)
    data = _intact(cache_folder() / "kernels" / name)
    return _unwritten_entry(name) if data is None else data


def forget(key: Sequence[str]) -> None:
    """Drop one entry, if it is there and the folder can be written."""
    name = _name(key)
    with _lock:
        _unwritten.pop(name, None)
    with contextlib.suppress(OSError):
        (cache_folder() / "kernels" / name).unlink(missing_ok=True)


def _name(key: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(key).encode()).hexdigest()


def _store(name: str, data: bytes) -> None:
    path = cache_folder() / "kernels" / name
    if write_atomically(path, hashlib.sha256(data).digest() + data):
        _limit_size(path.parent, len(data))
    else:
        _keep_unwritten(name, data)


def _unwritten_entry(name: str) -> bytes | None:
    with _lock:
        if name in _unwritten:
            _unwritten.move_to_end(name)
        return _unwritten.get(name)


def _keep_unwritten(name: str, data: bytes) -> None:
    with _lock:
        _unwritten[name] = data
        while sum(map(len, _unwritten.values())) > _MOST_UNWRITTEN:
            _unwritten.popitem(last=False)


def _intact(path: Path) -> bytes | None:
    try:
        stored = path.read_bytes()
    except OSError:
        return None
    digest, data = stored[:_DIGEST], stored[_DIGEST:]
    if hashlib.sha256(data).digest() != digest:
        return None
    with contextlib.suppress(OSError):
        # the time of modification records the last use
        os.utime(path)
    return data


def _limit_size(folder: Path, written: int) -> None:
    """Remove the least recently used entries beyond MOST_BYTES, once in _CHECK_EVERY bytes written.

    Other processes may read or remove entries meanwhile: a process builds a missing entry again.
    """
    global _unchecked
    with _lock:
        _unchecked += written
        if _unchecked < _CHECK_EVERY:
            return
        _unchecked = 0
    entries = sorted(_entries(folder))
    excess = sum(size for _, size, _ in entries) - MOST_BYTES
    for _, size, path in entries:
        if excess <= 0:
            return
        try:
            path.unlink(missing_ok=True)
            excess -= size
        except OSError:
            continue


def _entries(folder: Path) -> Iterator[tuple[int, int, Path]]:
    """Yield the time of last use, the size and the path of each entry. Remove half-written files
    whose writers have died."""
    with contextlib.suppress(OSError):
        for path in list(folder.iterdir()):
            with contextlib.suppress(OSError):
                status = path.stat()
                if not path.name.startswith("."):
                    yield status.st_mtime_ns, status.st_size, path
                elif time.time() - status.st_mtime > _ABANDONED_SECONDS:
                    path.unlink(missing_ok=True)

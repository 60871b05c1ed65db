"""The cache folder and the compiled kernels in it."""

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
"""Approximate maximum bytes of compiled kernels on disk.

If there are more, the least recently used kernels are removed first.
"""

PRIVATE = 0o600
"""The permissions of files in the cache folder.

Other users must not be able to write code that this user runs, or to read names of networks.
"""
_DIGEST = hashlib.sha256().digest_size
_MOST_UNWRITTEN = 2**29
"""Maximum bytes of kernels that are kept in memory because they could not be written to disk.

If there are more, the least recently used kernels are removed first.
"""
_CHECK_EVERY = 2**24
"""Bytes that a process writes between two checks of the folder's size; a rule of thumb."""
_ABANDONED_SECONDS = 3600
"""Age in seconds at which a partially written file is removed.

The process that wrote a file of this age must have died.
"""
_warned: set[Path] = set()
_unwritten: OrderedDict[str, bytes] = OrderedDict()
_unchecked = _CHECK_EVERY
"""Bytes written since the last check of the folder's size. The first write triggers a check."""
_lock = threading.Lock()


def cache_folder() -> Path:
    """Return the cache folder.

    The folder is $GOSSAMER_CACHE, else $XDG_CACHE_HOME/gossamer, else ~/.cache/gossamer.
    """
    if folder := os.environ.get("GOSSAMER_CACHE"):
        return Path(folder)
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared) / "gossamer"
    return Path(os.path.expanduser("~")) / ".cache" / "gossamer"


def make_private(folder: Path) -> None:
    """Create a folder and its parents, accessible only by their owner.

    Existing folders keep their permissions. Raises OSError if a folder cannot be created.
    """
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(0o700, exist_ok=True)
    if not missing and not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))


def write_atomically(path: Path, data: bytes) -> bool:
    """Replace a file in the cache folder atomically.

    If the folder cannot be written, issue a warning, leave the file unchanged and return False.
    """
    try:
        make_private(path.parent)
        with atomically_replacing(path, PRIVATE) as file:
            file.write(data)
    except OSError as error:
        warn_unwritable(path.parent, str(error.strerror))
        return False
    return True


def warn_unwritable(folder: Path, reason: str) -> None:
    """Warn that a cache folder cannot be written, once per folder and process."""
    if folder not in _warned:
        _warned.add(folder)
        warnings.warn(
            f"the cache folder {folder} cannot be written ({reason}): compiled kernels and "
            "measurements will be lost at exit; set GOSSAMER_CACHE to a writable folder",
            GossamerWarning, stacklevel=3)


def cached(key: Sequence[str], build: Callable[[], bytes]) -> tuple[bytes, bool]:
    """Return the bytes stored for a key, and whether they came from the cache.

    If the key is not stored or its entry is damaged, build() creates the bytes. The new bytes are
    stored on disk or, if the folder cannot be written, in the memory of this process.
    """
    data = stored(key)
    if data is not None:
        return data, True
    data = build()
    _store(_name(key), data)
    return data, False


def stored(key: Sequence[str]) -> bytes | None:
    """Return the bytes stored for a key; None if there is no intact entry."""
    name = _name(key)
    data = _intact(cache_folder() / "kernels" / name)
    return _unwritten_entry(name) if data is None else data


def forget(key: Sequence[str]) -> None:
    """Remove one entry, if it exists and the folder can be written."""
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
        # the modification time records the last use
        os.utime(path)
    return data


def _limit_size(folder: Path, written: int) -> None:
    """Remove the least recently used entries beyond MOST_BYTES.

    The size is checked once per _CHECK_EVERY bytes written. Concurrent processes are safe: they
    rebuild missing entries.
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
    """Yield the last use, size and path of each entry.

    Partially written files of processes that have died are removed.
    """
    with contextlib.suppress(OSError):
        for path in list(folder.iterdir()):
            with contextlib.suppress(OSError):
                status = path.stat()
                if not path.name.startswith("."):
                    yield status.st_mtime_ns, status.st_size, path
                elif time.time() - status.st_mtime > _ABANDONED_SECONDS:
                    path.unlink(missing_ok=True)

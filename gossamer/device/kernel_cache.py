"""The cache folder: where compiled kernels, and other things dear to make, are kept on disk."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from gossamer.errors import GossamerWarning

_DIGEST = hashlib.sha256().digest_size
_warned: set[Path] = set()


def cache_folder() -> Path:
    """$GOSSAMER_CACHE, else $XDG_CACHE_HOME/gossamer, else ~/.cache/gossamer."""
    if own := os.environ.get("GOSSAMER_CACHE"):
        return Path(own)
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared) / "gossamer"
    return Path(os.path.expanduser("~")) / ".cache" / "gossamer"


def write_atomically(path: Path, data: bytes) -> bool:
    """Replaces a file in the cache folder, or leaves it as it was. False, with one warning a
    process that names the folder, when it cannot be written."""
    partial: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, partial = tempfile.mkstemp(prefix=".partial-", dir=path.parent)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.replace(partial, path)
    except OSError as error:
        if partial is not None:
            Path(partial).unlink(missing_ok=True)
        if path.parent not in _warned:
            _warned.add(path.parent)
            warnings.warn(
                f"the cache folder {path.parent} cannot be written ({error.strerror}): what is "
                "compiled or measured now is lost at exit; set GOSSAMER_CACHE to a folder of yours",
                GossamerWarning, stacklevel=2)
        return False
    return True


def cached(key: Sequence[str], build: Callable[[], bytes]) -> bytes:
    """What build() returned when it was called with this key before, by any process; a missing
    or damaged entry is built again."""
    name = hashlib.sha256("\0".join(key).encode()).hexdigest()
    path = cache_folder() / "kernels" / name
    data = _intact(path)
    if data is None:
        data = build()
        write_atomically(path, hashlib.sha256(data).digest() + data)
    return data


def forget(key: Sequence[str]) -> None:
    """Drops one entry, if it is there and the folder can be written."""
    name = hashlib.sha256("\0".join(key).encode()).hexdigest()
    with contextlib.suppress(OSError):
        (cache_folder() / "kernels" / name).unlink(missing_ok=True)


def _intact(path: Path) -> bytes | None:
    try:
        stored = path.read_bytes()
    except OSError:
        return None
    digest, data = stored[:_DIGEST], stored[_DIGEST:]
    return data if hashlib.sha256(data).digest() == digest else None
